"""Frozen parameters: bit for bit as they were, and unseen by norms, clipping and optimizers."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_optimizers import CONFIGS, optimizer
from test_step import TRAINING, model, start, update_batch

from transformer.data.batches import layout
from transformer.runs.checkpoints import Checkpoints
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh, state_sharding
from transformer.training.freezing import check_freeze, is_frozen, stopped, with_frozen
from transformer.training.optimizers import OPTIMIZERS, by_part
from transformer.training.step import abstract_state, make_train_step


@pytest.mark.parametrize(
    ("freeze", "name", "expected"),
    [
        ("encoder_*", "encoder_layers/0/feed_forward/hidden/kernel", True),
        ("encoder_layers/0", "encoder_layers/0/feed_forward/hidden/kernel", True),
        ("encoder_layers/0", "encoder_layers/01/feed_forward/hidden/kernel", False),
        ("encoder", "encoder_layers/0/feed_forward/hidden/kernel", False),
        ("*/bias", "encoder_layers/0/feed_forward/hidden/bias", True),
        ("*/bias", "encoder_layers/0/feed_forward/hidden/kernel", False),
        ("nothing, *_embedding", "source_embedding/table_VD", True),
        ("Source*", "source_embedding/table_VD", False),
        (None, "source_embedding/table_VD", False),
    ],
)
def test_what_a_pattern_matches(freeze, name, expected):
    assert is_frozen(freeze, name) == expected


PARAMS = {"encoder": {"kernel": np.ones((3, 5)), "bias": np.ones(5)}, "table": np.ones((7, 2))}


def test_it_is_counted():
    assert check_freeze("encoder/kernel", PARAMS) == "1 of 3 arrays, 15 of 34 parameters"
    assert check_freeze(None, PARAMS) == "0 of 3 arrays, 0 of 34 parameters"


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        (
            "encoders",
            r"has 'encoders', which matches none of the 3 names; they begin with encoder,",
        ),
        ("table,decoder*", r"has 'decoder\*', .* some are encoder/bias, encoder/kernel, table$"),
        ("encoder,table", "is 'encoder,table', and that is every parameter; leave some to train"),
    ],
)
def test_what_cannot_be_frozen(freeze, message):
    with pytest.raises(UserError, match=f"^training.freeze {message}"):
        check_freeze(freeze, PARAMS)


def test_patterns_are_given():
    with pytest.raises(UserError, match=r"^training\.freeze is ' ,'; give patterns"):
        dataclasses.replace(TRAINING, freeze=" ,")


def test_off_it_is_not_there():
    adam = optimizer()
    assert with_frozen(adam, None) is adam
    assert stopped(None, PARAMS) is PARAMS


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_others_move_as_if_there_were_no_more(name):
    """Clipping by the global norm and weight decay, too; -0.0 stays -0.0."""
    inner = optimizer(name=name, max_grad_norm=1.0, **CONFIGS[name])
    frozen = with_frozen(inner, "encoder")
    kernel, table = np.float32([[-0.0, 0.0, 3.0]]), np.float32(np.arange(14.0).reshape(7, 2))
    params = {"encoder": {"kernel": kernel}, "table": PARAMS["table"]}
    rest = {"encoder": {}, "table": PARAMS["table"]}

    @jax.jit
    def run(params, rest):
        state, expected, found = frozen.init(params), inner.init(rest), []
        for scale in (1.0, -7.0):
            grads = {"encoder": {"kernel": np.full((1, 3), 1e6)}, "table": scale * table}
            updates, state = frozen.update(grads, state, params, apply=True)
            steps, expected = inner.update(rest | {"table": scale * table}, expected, rest)
            found.append((updates, steps))
        return state, expected, found

    state, expected, found = run(params, rest)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    for updates, steps in found:
        np.testing.assert_array_equal(updates["table"], steps["table"])
        assert np.all(updates["table"][1:] != 0)
        assert (kernel + np.asarray(updates["encoder"]["kernel"])).tobytes() == kernel.tobytes()
    jax.tree.map(np.testing.assert_array_equal, state, expected)


def test_two_optimizers():
    """A part of one network, or all of it."""
    params = {"discriminator": {"a": np.ones(3), "b": np.ones(2)}, "generator": PARAMS["encoder"]}
    chosen = by_part({name: optimizer(name="sgd", **CONFIGS["sgd"]) for name in params})
    for freeze, still in (("discriminator/a", {"a"}), ("discriminator", {"a", "b"})):
        frozen = with_frozen(chosen, freeze)
        grads = {"discriminator": {"a": np.ones(3), "b": np.ones(2)}}
        updates, _ = frozen.update(grads, frozen.init(params), params)
        moved = {name for name, x in updates["discriminator"].items() if np.any(x)}
        assert moved == {"a", "b"} - still
        assert updates.keys() == grads.keys()


@pytest.mark.slow
def test_a_step_and_its_checkpoint(tmp_path):
    toy, mesh = model(), data_mesh(jax.devices()[:1])
    batch = update_batch(layout(119, 0, 17, 17, 1))
    config = dataclasses.replace(TRAINING, freeze="encoder_*, */bias", label_smoothing=0.0)
    momentum = optax.with_extra_args_support(optax.sgd(1.0, momentum=0.9))  # at first plain descent
    sgd = with_frozen(momentum, config.freeze)
    step = make_train_step(toy, sgd, config, mesh)
    state, free = start(sgd), dataclasses.replace(config, freeze=None)
    plain = make_train_step(toy, momentum, free, mesh)
    before = jax.tree.map(np.asarray, state.params)
    whole, _ = plain(start(momentum), batch)
    state, metrics = step(state, batch)
    squares = 0.0
    leaves = zip(
        jax.tree.leaves_with_path(before), *map(jax.tree.leaves, (state.params, whole.params))
    )
    for (path, old), new, other in leaves:
        name = "/".join(str(key.key) for key in path)
        if is_frozen(config.freeze, name):
            assert np.asarray(new).tobytes() == old.tobytes(), name
        else:
            assert np.any(new != old), name
            np.testing.assert_allclose(new, other, rtol=1e-4, atol=1e-5)
            squares += float(jnp.sum((new - old) ** 2))
    assert float(metrics.grad_norm) == pytest.approx(squares**0.5, rel=1e-3)  # at a rate of 1

    # A run goes on from a checkpoint as it would have.
    shapes = abstract_state(toy, sgd)
    shardings = state_sharding(mesh, shapes, toy.sharding)
    like = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        shapes,
        shardings,
    )
    store = Checkpoints(tmp_path, keep_last=3, best_metric="nll", direction="lower")
    with contextlib.closing(store) as checkpoints:
        checkpoints.save(state, {}, scheduled=True)
        checkpoints.record_scores(1, {"nll": 1.0})
        restored = checkpoints.restore_newest(like, scheduled_only=False).state
    expected, _ = step(state, batch)
    found, _ = step(restored, batch)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
