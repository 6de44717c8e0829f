"""Baselines for masked tokens: guesses by counting."""

from collections.abc import Iterable

import numpy as np

from transformer.data.documents import Documents
from transformer.data.sequences import Masked


def masked_baselines(training: Documents, batches: Iterable[Masked]) -> dict[str, float]:
    """Shares of masked tokens that two guesses get right, each a number from 0 to 1.

    unigram: the token that is most frequent in training. bigram: the token that most often follows
    the one before in training; the unigram if the one before is masked, or was never followed.
    """
    unigram = int(np.bincount(training.tokens).argmax())
    follower = _followers(training)
    right, total = np.zeros(2, np.int64), 0
    for batch in batches:
        is_masked_BP = batch.labels_BP > 0
        rows = np.nonzero(is_masked_BP)[0]
        labels = batch.labels_BP[is_masked_BP]
        before = batch.tokens_BS[rows, batch.masked_BP[is_masked_BP] - 1]  # [CLS] is never masked
        known = before < len(follower)
        guess = np.where(known, follower[np.where(known, before, 0)], -1)
        guess = np.where(guess < 0, unigram, guess)
        right += [(labels == unigram).sum(), (labels == guess).sum()]
        total += len(labels)
    return dict(zip(("unigram", "bigram"), (right / max(total, 1)).tolist(), strict=True))


def _followers(documents: Documents) -> np.ndarray:
    """The token that most often follows each token within a document; -1 if none does."""
    tokens, size = documents.tokens.astype(np.int64), int(documents.tokens.max()) + 1
    pairs = tokens[:-1] * size + tokens[1:]
    ends = documents.offsets[documents.starts[1:-1]] - 1  # pairs across the end of a document
    codes, counts = np.unique(np.delete(pairs, ends), return_counts=True)
    order = np.lexsort((-codes, counts))  # the last of a token is its most frequent
    found = np.full(size, -1, np.int64)
    found[codes[order] // size] = codes[order] % size
    return found
