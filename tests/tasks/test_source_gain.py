"""Source gain: none for a model that ignores its source, much for one that copies."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging
from flax import nnx
from small_configs import MODEL, sizes_of

from transformer.data.batches import EvaluationBatches, PackedPairs
from transformer.decoding.ensemble import Ensemble
from transformer.decoding.translation import with_eos
from transformer.models.family import build_model
from transformer.models.functional import FunctionalModel
from transformer.models.loss import Loss
from transformer.system.sharding import data_mesh
from transformer.tasks import source_gain
from transformer.tasks.seq2seq import Seq2Seq

TEXTS = ["5 6", "7 8 9", "10", "11 12 13 14", "5 6", "15 16"]


class Copier(nnx.Module):
    """Gives 0.9 to a token that the pair's own source has, and 0.01 to any other."""

    def loss(self, batch, rngs, label_smoothing):
        in_pair = batch.tgt_segments_BT[..., None] == batch.src_segments_BS[:, None]
        is_same = batch.tgt_out_BT[..., None] == batch.src_BS[:, None]
        nll_BT = jnp.where((in_pair & is_same).any(-1), -jnp.log(0.9), -jnp.log(0.01))
        real_BT = batch.tgt_segments_BT > 0
        nll = (nll_BT * real_BT).sum()
        return Loss(nll, nll, real_BT.sum())


def task_of(model):
    task = object.__new__(Seq2Seq)
    task.model, task.mesh = model, data_mesh(jax.devices()[:1])
    task.data = SimpleNamespace(packing=True, max_source_length=9, max_target_length=9)
    ids = lambda texts: [with_eos([int(x) for x in text.split()]) for text in texts]  # noqa: E731
    task.translator = SimpleNamespace(token_pairs=lambda *sides: tuple(map(ids, sides)))
    return task


def scores(task, variables, hypotheses=TEXTS, **options):
    sides = TEXTS, TEXTS, hypotheses
    found = source_gain.source_scores(task, variables, *sides, **options)
    assert all(score["needs_model"] for score in found.values())
    return {name: score["score"] for name, score in found.items()}


def test_a_copier_gains_much_in_packed_rows_too():
    task = task_of(FunctionalModel(lambda rngs: Copier()))
    # Of 14 tokens and 6 EOS, which all sources have, another source has only the EOS.
    gain = 14 * np.log(0.9 / 0.01) / 20
    expected = {"source_gain": pytest.approx(gain), "distinct": 5, "commonest": 100 / 3}
    assert scores(task, ({}, {})) == expected
    pairs = source_gain.in_batches(task, *task.translator.token_pairs(TEXTS, TEXTS)).packed.pairs
    like = EvaluationBatches(PackedPairs(pairs, 12, 11, seed=0), rows=1, num_shards=1)
    assert len(like) > 1  # batches of a row, and
    assert max(np.diff(like.packed.row_offsets)) > 1  # rows of several pairs
    shapes = []
    task.measure = lambda params, extra, batch, measure=task.measure: (
        shapes.append(jax.tree.map(jnp.shape, batch)) or measure(params, extra, batch)
    )
    checked = []
    assert scores(task, ({}, {}), like=like, check=checked.append) == expected
    assert {*shapes} == {jax.tree.map(np.shape, like[0])}  # nothing else is compiled
    assert checked
    task.model = Ensemble([task.model])  # which has no loss
    assert scores(task, ([{}], [{}])).keys() == {"distinct", "commonest"}


def test_a_transformer_without_cross_attention_gains_nothing(random_params):
    model = build_model(MODEL, sizes_of(19))
    params = random_params(model)
    task = task_of(model)
    assert abs(scores(task, (params, {}))["source_gain"]) > 1e-3
    output = params["decoder_layers"][0]["cross_attention"]["output"]
    params["decoder_layers"][0]["cross_attention"]["output"] = jax.tree.map(jnp.zeros_like, output)
    assert abs(scores(task, (params, {}))["source_gain"]) < 1e-6


@pytest.mark.parametrize(
    "sources",
    ["", "a", "aaa", "ab", "abc", "aab", "aaaab", "abababab", "a" * 200 + "b" * 100],
)
def test_no_pair_keeps_its_source(sources):
    numbers, others = source_gain.sample(sources)
    assert all(sources[i] != sources[j] for i, j in zip(numbers, others, strict=True))
    assert len(set(numbers)) == (min(len(sources), 256) if len(set(sources)) > 1 else 0)
    if len(set(sources)) == len(sources):
        assert sorted(others) == sorted(numbers)  # a permutation
    assert (numbers, others) == source_gain.sample(sources)


@pytest.mark.parametrize(
    ("gain", "distinct", "is_warned"),
    [
        (0.02, 20, True),  # like the recorded T-ED: 20 of 500
        (0.02, 490, False),  # a language that it learns first
        (0.9, 6, False),  # answers, of which few are right
        (0.02, 6, True),
        (float("nan"), 6, False),
    ],
)
def test_a_collapse_is_named(monkeypatch, gain, distinct, is_warned):
    task = task_of(None)
    task.measured = lambda params, extra, batches, check: [Loss(0.0, next(nats), 1)]
    said = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: said.append(text % values))
    hypotheses = [str(min(i, distinct - 1)) for i in range(500)]
    for warns in (True, False):
        nats = iter([3.0 + gain, 3.0])
        scores(task, ({}, {}), hypotheses, warns=warns)
    assert len(said) == is_warned
    if is_warned:
        assert f"of 500 outputs only {distinct} differ" in said[0]
