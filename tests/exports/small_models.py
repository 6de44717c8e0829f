"""Models to export: random parameters, with a tokenizer of a few words."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import optax
from small_configs import MODEL, PAPER

from transformer.data.sentencepiece import train_sentencepiece
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import BOS, EOS, PAD
from transformer.models.family import build_model
from transformer.models.loss import cross_entropy
from transformer.runs.restore import Chosen, TrainedModel
from transformer.system.sharding import data_mesh
from transformer.tasks.seq2seq import Seq2Seq, sizes_of

LINES = ["one two", "three", "two  three one", "ünö", "one one one one"]


@functools.cache
def tokenizer(vocab_size: int):
    return train_sentencepiece(["one two three"], vocab_size=vocab_size, model_type="bpe")


def trained_model(
    random_params, vocab_sizes=(271,), beam_size=4, seed=0, base=MODEL, search=None, **changes
):
    """A TrainedModel with the given fields of the model section.

    search: further fields of the decoding section.
    """
    tokenizers = [tokenizer(size) for size in vocab_sizes]
    tokenizers = Tokenizers(tokenizers[0], tokenizers[-1])
    decoding = dataclasses.replace(
        PAPER.decoding, **{"beam_size": beam_size, "length_penalty": 0.0} | (search or {})
    )
    config = dataclasses.replace(
        PAPER,
        model=dataclasses.replace(base, **changes),
        tokenizer=dataclasses.replace(PAPER.tokenizer, joint=tokenizers.joint),
        decoding=decoding,
    )
    model = build_model(config.model, sizes_of(config, tokenizers))
    task = Seq2Seq(config.data, tokenizers, model, decoding, data_mesh())
    params = random_params(model, seed)
    return TrainedModel(Path("run"), config, task, Chosen("last", [3], 3, False), params, {})


def trained(model: TrainedModel, updates: int = 60) -> TrainedModel:
    """After some updates on LINES, each of which has another line as its translation."""
    tokenizers = model.task.tokenizers
    src_BS = _rows(tokenizers.source, LINES, [])
    tgt_BT = _rows(tokenizers.target, LINES[::-1], [BOS])
    adam = optax.adam(0.01)

    def loss(params):
        logits_BTV = model.task.model.bind(params)(src_BS, tgt_BT[:, :-1])
        real_BT = tgt_BT[:, 1:] != PAD
        return cross_entropy(logits_BTV, tgt_BT[:, 1:], real_BT, label_smoothing=0.1).loss

    @jax.jit
    def update(params, state):
        updates, state = adam.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    params, state = model.params, adam.init(model.params)
    for _ in range(updates):
        params, state = update(params, state)
    return dataclasses.replace(model, params=params)


def _rows(tokenizer, lines: list[str], first: list[int]) -> np.ndarray:
    return _padded([[*first, *tokenizer.encode(line), EOS] for line in lines])


def _padded(rows: list[list[int]]) -> np.ndarray:
    width = max(map(len, rows))
    return np.array([row + [PAD] * (width - len(row)) for row in rows])


def log_probs(model: TrainedModel, pairs: list[tuple[list[int], list[int]]]) -> list[np.ndarray]:
    """The log-probability of each token of each target, which ends in EOS."""
    bound = model.task.model.bind(model.params)
    src_BS = _padded([[*source, EOS] for source, _ in pairs])
    tgt_in_BT = _padded([[BOS, *target[:-1]] for _, target in pairs])
    log_probs_BTV = np.asarray(jax.jit(lambda: jax.nn.log_softmax(bound(src_BS, tgt_in_BT)))())
    return [x[np.arange(len(y)), y] for x, (_, y) in zip(log_probs_BTV, pairs)]
