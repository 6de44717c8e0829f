import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from small_configs import MODEL, PAPER

from transformer.data.batches import Batch, Layout, PackedPairs, TrainingBatches
from transformer.data.token_cache import TokenizedPairs
from transformer.data.vocabulary import EOS
from transformer.models.family import Sizes, build_model
from transformer.models.functional import FunctionalModel
from transformer.models.loss import Loss
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh
from transformer.training.optimizers import make_optimizer
from transformer.training.schedules import make_schedule
from transformer.training.step import (
    StepMetrics,
    TrainState,
    begun,
    init_state,
    make_nll_step,
    make_train_step,
)

VOCABULARY = 23

TRAINING = dataclasses.replace(
    PAPER.training,
    steps=11,
    tokens_per_update=119,
    seed=5,
    log_every=1,
    checkpoint_every=1,
    full_validation_every=1,
    keep_last=1,
    best_metric="nll",
)
SGD = optax.with_extra_args_support(optax.sgd(1.0))
ADAM = dataclasses.replace(PAPER.optimizer, warmup_steps=7)


def adam_of(config, width=14):
    return make_optimizer(config, make_schedule(config, width))


@functools.cache
def model(**changes) -> FunctionalModel:
    sizes = Sizes(VOCABULARY, VOCABULARY, joint=True, max_source_length=31, max_target_length=31)
    return build_model(dataclasses.replace(MODEL, **changes), sizes)


def reversible_pairs(count: int) -> TokenizedPairs:
    """A toy language: word 3 + i of the source is 3 + 7 i mod 19 of the target."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(2, 8, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    source = rng.integers(0, 19, offsets[-1])
    source, target = 4 + source, 4 + 7 * source % 19
    source[offsets[1:] - 1] = target[offsets[1:] - 1] = EOS
    return TokenizedPairs(source, offsets, target, offsets, report={})


# Of two shapes, since each compiles a step: in one part; and in three, with 5 empty rows.
WHOLE, SPLIT = Layout(7, 1, 7), Layout(7, 3, 4)


def update_batch(rows: Layout, step: int = 0, width: int = 17) -> Batch:
    packed = PackedPairs(reversible_pairs(43), width, width, seed=3)
    return TrainingBatches(packed, rows, seed=3)[step]


@functools.cache
def compiled(optimizer_config, seed: int, label_smoothing: float, dropout: float):
    """A fresh state and a train step."""
    toy = model(dropout=dropout)
    adam = adam_of(optimizer_config) if optimizer_config else SGD
    config = dataclasses.replace(TRAINING, seed=seed, label_smoothing=label_smoothing)
    return start(adam), make_train_step(toy, adam, config, data_mesh(jax.devices()[:1]))


def one_step(
    batch: Batch,
    optimizer_config=None,
    seed=5,
    label_smoothing=0.1,
    dropout=0.0,
    step=0,
) -> tuple[TrainState, StepMetrics]:
    """The state after one update: by default of plain gradient descent with rate 1, so that
    the parameters show the gradient itself."""
    state, train_step = compiled(optimizer_config, seed, label_smoothing, dropout)
    state = jax.tree.map(jnp.array, state)  # a copy, which the step may use up
    return train_step(state._replace(step=jnp.int32(step)), batch)


def start(adam=None) -> TrainState:
    """A first state, drawn by NumPy, since compiling the initialisers takes seconds."""
    rng = np.random.default_rng(2)
    shapes = model().abstract_params()
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.2, x.shape), x.dtype), shapes)
    return begun(adam or SGD, params, {})


def assert_trees_close(a, b, **tolerance) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


def largest_difference(a, b) -> float:
    return max(
        float(np.abs(np.subtract(x, y)).max()) for x, y in zip(*map(jax.tree.leaves, (a, b)))
    )


# --- What a step computes -----------------------------------------------------------------


def test_accumulated_is_one_big_batch():
    whole, split = update_batch(WHOLE), update_batch(SPLIT)
    assert split.num_tokens == whole.num_tokens
    whole_state, whole_metrics = one_step(whole)
    split_state, split_metrics = one_step(split)
    assert_trees_close(whole_state.params, split_state.params, rtol=0, atol=1e-6)
    assert_trees_close(whole_metrics, split_metrics, rtol=1e-5)
    # The tolerance means something: the gradient is much larger.
    assert largest_difference(start().params, split_state.params) > 0.01


def test_metrics_of_a_step():
    batch = update_batch(SPLIT)
    state, metrics = one_step(batch)
    flat = Batch(*(x.reshape(12, -1) for x in batch))
    params = start().params
    loss = jax.jit(lambda params: model().bind(params).loss(flat, None, 0.1))(params)
    assert int(metrics.tokens) == np.count_nonzero(batch.tgt_out_BT)
    np.testing.assert_allclose(metrics.loss, loss.loss, rtol=1e-5)
    np.testing.assert_allclose(metrics.terms["nll"], loss.nll, rtol=1e-5)
    assert abs(metrics.loss - metrics.terms["nll"]) > 0.01
    squares = jax.tree.map(lambda x, y: np.sum((x - np.asarray(y)) ** 2), params, state.params)
    norm = np.sqrt(sum(jax.tree.leaves(squares)))
    np.testing.assert_allclose(metrics.grad_norm, norm, rtol=1e-3)
    assert int(state.step) == 1


def test_packed_is_unpacked():
    packed = PackedPairs(reversible_pairs(13), 17, 17, seed=3)
    rows = [packed.batch(np.array([row])) for row in range(len(packed))]
    together = packed.batch(np.array([2, 3] + 5 * [-1]))
    # The same sentences, each in a row of its own and at its start.
    alone = [np.zeros((7, 17), np.int32) for _ in range(5)]
    row = 0
    for packed_row in (rows[2], rows[3]):
        for segment in range(1, packed_row.src_segments_BS.max() + 1):
            is_src = packed_row.src_segments_BS == segment
            is_tgt = packed_row.tgt_segments_BT == segment
            for x, y, here in zip(alone, packed_row, (is_src, is_src, is_tgt, is_tgt, is_tgt)):
                x[row, : here.sum()] = y[here]
            row += 1
    alone = Batch(*alone)
    alone = alone._replace(
        src_segments_BS=np.sign(alone.src_segments_BS),
        tgt_segments_BT=np.sign(alone.tgt_segments_BT),
    )
    assert 4 < row <= 7
    assert alone.num_tokens == together.num_tokens

    packed_state, packed_metrics = one_step(Batch(*(x[None] for x in together)))
    alone_state, alone_metrics = one_step(Batch(*(x[None] for x in alone)))
    assert_trees_close(packed_metrics, alone_metrics, rtol=1e-5)
    assert_trees_close(packed_state.params, alone_state.params, rtol=0, atol=1e-6)


def test_padding_adds_nothing():
    """Nor does what stands where the segment ids say padding."""
    narrow = update_batch(WHOLE)
    narrow_state, narrow_metrics = one_step(narrow)
    noisy = narrow._replace(
        src_BS=np.where(narrow.src_segments_BS, narrow.src_BS, 7),
        tgt_in_BT=np.where(narrow.tgt_segments_BT, narrow.tgt_in_BT, 5),
        tgt_out_BT=np.where(narrow.tgt_segments_BT, narrow.tgt_out_BT, 11),
    )
    assert (noisy.src_BS != narrow.src_BS).any()
    noisy_state, noisy_metrics = one_step(noisy)
    assert_trees_close(narrow_metrics, noisy_metrics, rtol=1e-6)
    assert_trees_close(narrow_state.params, noisy_state.params, rtol=0, atol=1e-6)


def test_a_batch_of_padding_changes_nothing():
    state, metrics = one_step(Batch(*(np.zeros((1, 7, 17), np.int32) for _ in range(5))))
    assert [float(x) for x in jax.tree.leaves(metrics)] == 7 * [0]
    assert_trees_close(state.params, start().params, rtol=0)


@pytest.mark.slow
def test_dropout_is_fresh_at_each_step_and_follows_the_seed():
    row = update_batch(Layout(1, 1, 1))
    first_part = Batch(*(np.concatenate([x, 0 * x]) for x in row))
    second_part = Batch(*(x[::-1] for x in first_part))

    def loss(batch=first_part, **arguments):
        return float(one_step(batch, dropout=0.3, **arguments)[1].loss)

    losses = [loss(), loss(), loss(step=1), loss(seed=6), loss(second_part)]
    assert losses[0] == losses[1]
    assert len(set(losses)) == 4


def test_nll_step_is_without_dropout_and_smoothing():
    batch = update_batch(WHOLE)
    nll_step = make_nll_step(model(dropout=0.5), data_mesh(jax.devices()[:1]))
    loss = nll_step(start().params, {}, Batch(*(x[0] for x in batch)))
    _, metrics = one_step(batch)
    np.testing.assert_allclose(
        [loss.loss, loss.nll], [metrics.terms["nll"], metrics.terms["nll"]], rtol=1e-5
    )


def test_a_step_reuses_the_memory_of_its_state():
    _, step = compiled(None, 5, 0.1, 0.0)
    state = start()
    step(state, update_batch(WHOLE))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((state.params, state.opt_state)))


def test_the_first_state_follows_the_seed():
    linear = FunctionalModel(lambda rngs: nnx.Linear(2, 3, rngs=rngs), ((r".*", P()),))
    states = [init_state(linear, SGD, seed).params for seed in (2, 2, 3)]
    assert largest_difference(states[0], states[1]) == 0
    assert largest_difference(states[0], states[2]) > 0.1


# --- Extra state, and terms of the loss -----------------------------------------------------


class Counter(nnx.Variable):
    """What a module keeps beside its parameters."""


class Counting(nnx.Module):
    """y = w x, which counts its calls and pays for the size of w."""

    def __init__(self):
        self.w = nnx.Param(jnp.array(3.0))
        self.calls = Counter(jnp.array(0.0))

    def loss(self, x_BT, rngs, label_smoothing):
        self.calls[...] = self.calls[...] + 1
        nll, size = self.w[...] * x_BT.sum(), 10 * self.w[...] ** 2
        tokens = jnp.int32(x_BT.size)
        return Loss(nll + size, nll, tokens, {"size": size})


def test_extra_state_and_terms_go_through_a_step():
    toy = FunctionalModel(lambda rngs: Counting(), ((r"w", P()),))
    step = make_train_step(toy, SGD, TRAINING, data_mesh(jax.devices()[:1]))
    state = init_state(toy, SGD, seed=2)
    assert (float(state.params["w"]), float(state.extra["calls"])) == (3, 0)
    x_ABT = jnp.array([[[1.0, 2.0]], [[3.0, 5.0]], [[7.0, 11.0]]])
    state, metrics = step(state, x_ABT)
    # Three parts, each seen once, one after the other. Gradient: 29 + 3 * 20 * 3, of 6 tokens.
    assert float(state.extra["calls"]) == 3
    np.testing.assert_allclose(state.params["w"], 3 - (29 + 180) / 6, rtol=1e-6)
    np.testing.assert_allclose(metrics.loss, 3 * 29 + 3 * 90, rtol=1e-6)
    np.testing.assert_allclose(metrics.watched, 3 * 29, rtol=1e-6)
    np.testing.assert_allclose([metrics.terms["nll"], metrics.terms["size"]], [87, 270], rtol=1e-6)
    # An update that is skipped leaves it as it is.
    state, metrics = step(state, x_ABT * jnp.nan)
    assert bool(metrics.skipped)
    assert float(state.extra["calls"]) == 3


def test_extra_state_is_refused_where_devices_share_the_rows():
    """Each would have its own: they see other rows."""
    toy = FunctionalModel(lambda rngs: Counting(), ((r"w", P()),))
    mesh = AbstractMesh((1, 2, 1), ("data", "fsdp", "tensor"))
    with pytest.raises(ValueError, match="extra state cannot be that of all rows"):
        make_train_step(toy, SGD, TRAINING, mesh)


# --- Runs ---------------------------------------------------------------------------------


@pytest.mark.slow  # compiled with all optimisations
def test_moments_are_not_copied():
    """XLA on the CPU copied all of them at each update for want of an order to write in."""
    toy, adam = model(), adam_of(ADAM)
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        step = make_train_step(toy, adam, TRAINING, data_mesh(jax.devices()[:1]))
        text = step.lower(start(adam), update_batch(WHOLE)).compile().as_text()
    finally:
        jax.config.update("jax_disable_most_optimizations", True)
    assert re.search(r"%state_opt_state\w*mu__\w*kernel", text)
    copied = re.findall(r"copy\(%state_opt_state\w*(?:mu|nu)__\w*kernel", text)
    assert not copied


# --- The configuration --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "training.steps is 0; it must be at least 1"),
        ({"seed": -1}, "training.seed is -1; it must be at least 0"),
        ({"seed": 2**63}, "training.seed is 9223372036854775808; it must be at least 0 and below"),
        (
            {"label_smoothing": 1.0},
            "training.label_smoothing is 1.0; it must be at least 0 and below 1",
        ),
        (
            {"checkpoint_every": 4, "full_validation_every": 6},
            "training.full_validation_every = 6 is not a multiple",
        ),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(TRAINING, **changes)
