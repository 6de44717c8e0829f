"""The vectors of words in a model's embedding, and their first two principal components."""

import collections
import itertools
import re
from collections.abc import Sequence

import jax
import numpy as np

from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError
from transformer.system.sharding import name_of

SIDES = "source", "encoder", "embedding", "target"  # whose table is taken, if there are several
EXAMPLES = 10_000  # of the validation split, in which words are counted
LETTERS = r"[^\W\d_]+"


def word_vectors(model: TrainedModel, words: Sequence[str]) -> np.ndarray:
    """The rows [N, D] of words in the embedding that reads the source.

    A word of several tokens has their mean. Raises UserError for a model without an embedding.
    """
    tables = {name_of(p): x for p, x in jax.tree_util.tree_leaves_with_path(model.params)}
    tables = {n: x for n, x in tables.items() if n.endswith(("embedding/table_VD", "embedding_VE"))}
    names = [name for side in SIDES for name in tables if name.startswith(side)]
    if not names:
        raise UserError(f"{model.workdir} is no single model of words; give one")
    table_VD = np.asarray(tables[names[0]], np.float32)
    if hasattr(model.task, "tokenizers"):
        tokenizer = model.task.tokenizers.source
        ids = [x[len(tokenizer.beginning) :] for x in tokenizer.encode_batch(words, num_threads=1)]
    else:
        ids = model.task.tokenizer.encode_batch(words)
    for word, tokens in zip(words, ids, strict=True):
        if not tokens:
            raise UserError(f"the word {word!r:.60} has no tokens; leave it out")
    return np.stack([table_VD[tokens].mean(axis=0) for tokens in ids])


def frequent_words(model: TrainedModel, count: int = 60) -> list[str]:
    """The most frequent words of the validation split; of a translation model, of its sources."""
    if not hasattr(model.task, "open_source"):
        raise UserError(f"{model.workdir} has no pairs in which words can be counted; name words")
    model.check_paths()
    counts: collections.Counter = collections.Counter()
    pairs = model.task.open_source(model.task.data, "validation").pairs()
    for source, target in itertools.islice(pairs, EXAMPLES):
        counts.update(re.findall(LETTERS, source or target))
    return [word for word, _ in counts.most_common(count)]


def principal_components(vectors_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points [N, 2] of the vectors, and the share of the variance on each of the two axes."""
    if len(vectors_ND) < 3:
        raise UserError(f"{len(vectors_ND)} words are given; a plane needs three or more")
    centred_ND = vectors_ND - vectors_ND.mean(axis=0)
    u_NX, s_X, _ = np.linalg.svd(centred_ND, full_matrices=False)
    points_N2 = u_NX[:, :2] * s_X[:2]
    # The signs of the axes are arbitrary: the farthest point lies on the positive side.
    points_N2 *= np.sign(points_N2[np.abs(points_N2).argmax(axis=0), range(2)])
    return points_N2, s_X[:2] ** 2 / max(np.sum(s_X**2), np.finfo(np.float32).tiny)
