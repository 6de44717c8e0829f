"""Optimizers of Optax by name: a small network learns, and all that surrounds an update holds."""

import contextlib
import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from processes import on_devices
from small_configs import PAPER

from transformer.models.functional import FunctionalModel
from transformer.models.loss import Loss
from transformer.runs.checkpoints import Checkpoints
from transformer.system.errors import UserError
from transformer.system.sharding import MeshConfig, data_mesh, make_mesh, state_sharding
from transformer.training.optimizers import make_optimizer, scaled
from transformer.training.schedules import make_schedule
from transformer.training.step import TrainState, init_state, make_train_step

TRAINING = dataclasses.replace(PAPER.training, seed=5, ema=0.9)
# Names, with arguments, of all kinds of state.
OPTIMIZERS = {
    "optax.lion": {"b1": 0.95, "weight_decay": 0.1},
    "optax.adafactor": {"min_dim_size_to_factor": 2},
    "optax.contrib.muon": {"consistent_rms": 0.2},
    "optax.contrib.schedule_free_adamw": {"b1": 0.95},
    "optax.contrib.ademamix": {"mu_dtype": "bfloat16"},
}
RULES = ((r"hidden/kernel", P("fsdp", "tensor")), (r".*bias", P()), (r"output/kernel", P()))


def config(name, arguments=None, **changes):
    fixed = {"schedule": "constant", "peak_learning_rate": 0.03, "warmup_steps": 0}
    return dataclasses.replace(PAPER.optimizer, name=name, arguments=arguments, **fixed, **changes)


def optimizer(*given, **changes):
    changed = config(*given, **changes)
    return make_optimizer(changed, make_schedule(changed, None))


class Network(nnx.Module):
    """Two layers, which learn the sum of the squares of four numbers."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(4, 8, rngs=rngs)
        self.output = nnx.Linear(8, 1, rngs=rngs)

    def loss(self, x_BI, rngs, label_smoothing):
        y_B = self.output(jnp.tanh(self.hidden(x_BI)))[:, 0]
        loss = jnp.sum((y_B - jnp.sum(x_BI**2, axis=1)) ** 2)
        return Loss(loss, loss, jnp.int32(x_BI.shape[0]), {})


def updates(chosen, count: int, mesh=None, training=TRAINING):
    """A step of the network, its batches, and the states and losses after each of some updates."""
    mesh = mesh or data_mesh(jax.devices()[:1])
    toy = FunctionalModel(Network, RULES)
    step = make_train_step(toy, chosen, training, mesh)
    batches = count * [np.random.default_rng(0).normal(size=(1, 8, 4)).astype(np.float32)]
    state, states, losses = init_state(toy, chosen, 2, training.ema), [], []
    state = jax.device_put(state, state_sharding(mesh, state, RULES))
    for batch in batches:
        state, metrics = step(state, batch)
        states.append(jax.tree.map(jnp.copy, state))
        losses.append(float(metrics.loss / metrics.tokens))
    return step, batches, states, losses


def first_update(chosen, grads, params):
    update = jax.jit(lambda *trees: chosen.update(trees[0], chosen.init(trees[1]), trees[1])[0])
    return jax.tree.map(np.asarray, update(grads, params))


def assert_equal(found, expected) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_network_learns_and_goes_on_from_a_checkpoint(name, tmp_path):
    """Also clipped. An update that is not finite changes no bit of the rest of the state."""
    chosen = optimizer(name, OPTIMIZERS[name], max_grad_norm=5.0)
    step, batches, states, losses = updates(chosen, 12)
    assert losses[-1] < 0.9 * losses[0]
    with contextlib.closing(
        Checkpoints(tmp_path, keep_last=1, best_metric="nll", direction="lower")
    ) as checkpoints:
        checkpoints.save(states[-2], {}, scheduled=True)
        restored = checkpoints.restore_newest(states[0]).state
    assert_equal(restored, states[-2])
    after, metrics = step(restored, batches[-1])
    assert_equal(after, states[-1])
    skipped, metrics = step(after, batches[-1] * jnp.nan)
    assert bool(metrics.skipped)
    assert_equal(skipped._replace(step=states[-1].step), states[-1])


def test_the_moving_average_in_numpy():
    """Its decay rises from 1/10; the parameters are those without it."""
    chosen = optimizer("optax.sgd")
    _, _, states, _ = updates(chosen, 12)
    plain = updates(chosen, 12, training=dataclasses.replace(TRAINING, ema=0.0))[2]
    assert plain[-1].ema == {}
    assert_equal(plain[-1].params, states[-1].params)
    params = [np.asarray(state.params["hidden"]["kernel"], np.float64) for state in states]
    average, toy = params[0] * 0, FunctionalModel(Network, RULES)
    average += np.asarray(init_state(toy, chosen, 2).params["hidden"]["kernel"])
    for step, now in enumerate(params):
        decay = min(0.9, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * now
        found = states[step].ema["hidden"]["kernel"]
        np.testing.assert_allclose(found, average, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "arguments", "ours"),
    [
        ("optax.lion", {"weight_decay": 0.1}, "mask"),
        ("optax.lars", {"weight_decay": 0.1}, "weight_decay_mask"),
        ("optax.contrib.muon", {"weight_decay": 0.1}, "weight_decay_mask"),
    ],
)
def test_only_weights_decay(name, arguments, ours):
    """Without a gradient, decay is all that happens."""
    params = {"kernel": np.ones((2, 3)), "bias": np.ones(3), "table_VD": np.ones((5, 2))}
    found = first_update(optimizer(name, arguments), jax.tree.map(np.zeros_like, params), params)
    assert np.all(found["kernel"] < 0)
    np.testing.assert_array_equal(found["bias"], 0)


def test_muon_takes_the_matrices_of_layers():
    """Their update has no small singular value; Adam's first one of the rest goes by the sign."""
    rng = np.random.default_rng(0)
    params = {"kernel": np.ones((5, 7)), "table_VD": np.ones((5, 7)), "bias": np.ones(7)}
    grads = jax.tree.map(lambda x: rng.normal(size=x.shape), params)
    found = first_update(optimizer("optax.contrib.muon"), grads, params)
    values = np.linalg.svd(found["kernel"] / 0.03, compute_uv=False)
    assert values.min() > 0.5 * values.max()
    for name in ("table_VD", "bias"):
        length = -found[name] * np.sign(grads[name])
        np.testing.assert_allclose(length, float(length.max()), rtol=1e-4)


def test_the_parameters_of_a_schedule_free_run_are_those_to_evaluate():
    """As Optax has them, whose own parameters are where the gradient is taken."""
    name, arguments = "optax.contrib.schedule_free_sgd", {"b1": 0.8}
    _, batches, (*_, state), _ = updates(optimizer(name, arguments), 9)
    toy = FunctionalModel(Network, RULES)
    own = optax.contrib.schedule_free_sgd(lambda count: 0.03, b1=0.8)

    @jax.jit
    def update(y, own_state, x_BI):
        grads = jax.grad(lambda y: toy.bind(y).loss(x_BI, None, 0.0).loss / 8)(y)
        steps, own_state = own.update(grads, own_state, y)
        return optax.apply_updates(y, steps), own_state

    y = init_state(toy, own, 2).params
    own_state = own.init(y)
    for batch in batches:
        y, own_state = update(y, own_state, batch[0])
    expected = optax.contrib.schedule_free_eval_params(own_state, y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), state.params, expected)
    assert not np.allclose(state.params["hidden"]["kernel"], y["hidden"]["kernel"], atol=1e-3)


def test_a_plateau_scales_the_updates():
    grads = {"kernel": np.ones((2, 3)), "bias": np.ones(3)}
    plain = optimizer("optax.lion", {"weight_decay": 0.5})
    chosen = scaled(plain)

    @jax.jit
    def both(grads):
        state = chosen.init(grads)._replace(scale=np.float32(0.25))
        found = chosen.update(grads, state, grads, apply=np.array(True))
        return found, plain.update(grads, plain.init(grads), grads)

    (found, state), (expected, inner) = both(grads)
    assert_equal(found, jax.tree.map(lambda x: 0.25 * np.asarray(x), expected))
    assert_equal(state.inner, inner)
    assert float(state.scale) == 0.25


@pytest.mark.parametrize("name", ["optax.lion", "optax.contrib.muon", "optax.sm3", "optax.adam"])
def test_state_is_split_like_parameters(name):
    # SM3 has no schedule, and sums of other shapes than their parameter.
    chosen = optax.sm3(0.1) if name == "optax.sm3" else optimizer(name)
    mesh = AbstractMesh((1, 2, 2), ("data", "fsdp", "tensor"))
    params = {"hidden": {"kernel": np.ones((134, 142)), "bias": np.ones(142)}}
    state = TrainState(np.int32(0), params, jax.eval_shape(chosen.init, params), {}, params)
    leaves = zip(*map(jax.tree.leaves, (state, state_sharding(mesh, state, RULES))), strict=True)
    shapes = [sharding.shard_shape(leaf.shape) for leaf, sharding in leaves]
    moments = {"optax.lion": 1, "optax.contrib.muon": 1, "optax.sm3": 1, "optax.adam": 2}
    assert shapes.count((67, 71)) == 2 + moments[name]  # the parameter, and its average


def muon_on(count: int) -> list[float]:
    mesh = make_mesh(MeshConfig(1, count, 1), jax.devices()[:count])
    return updates(optimizer("optax.contrib.muon"), 6, mesh)[3]


@pytest.mark.slow
def test_split_parameters_take_the_same_updates():
    command = [sys.executable, __file__]
    found = subprocess.run(command, env=on_devices(2), capture_output=True, text=True, check=True)
    np.testing.assert_allclose(json.loads(found.stdout), muon_on(1), rtol=1e-4)


ARGUMENTS = [  # optimizer.name, optimizer.arguments and the message
    ("optax.lyon", None, "'optax.lyon', which Optax does not have; did you mean optax.lion?"),
    ("optax.muon", None, "did you mean optax.contrib.muon?"),
    ("optax.contrib.muon", {"ns_coeffs": (3.4, -4.8, 2.0)}, "give numbers, text, True, F"),
    ("optax.lion", {"b1": float("inf")}, "give numbers, text, True, False or [lists]"),
    ("optax.lion", {"b1": 0.9 + 0j}, "give numbers, text, True, False or [lists]"),
    ("optax.contrib.schedule_free_adamw", {"b1": 0.0}, "b1 must be above 0"),
    ("lion", None, "it must be one of: adam, adamw, adafactor, sgd, bert_adam, lamb, or an "),
    ("prodigi", None, "an optimizer of Optax, such as optax.contrib.prodigy"),
    ("optax.lion", {"beta1": 1}, "'beta1', which cannot be given to optax.lion; did you mean"),
    ("optax.lion", {"learning_rate": 1}, "'learning_rate', which cannot be given to optax.l"),
    ("optax.lion", {"mask": None}, "the schedule and the names of parameters give it; it ta"),
    ("optax.lion", {"b1": "high"}, "cannot be used here with optimizer.arguments = {'b1': "),
    ("optax.lbfgs", None, "missing 3 required keyword-only arguments: 'value', 'grad'"),
    ("optax.noisy_sgd", None, "its state has key<fry>, which no checkpoint keeps"),
    ("adam", {"b1": 0.8}, "optimizer.arguments is {'b1': 0.8}, and adam has fields of its"),
]
FIELDS = [  # optimizer.name, other fields and the message
    ("optax.lion", {"beta1": 0.8}, "beta1 is 0.8, but optax.lion does not use it; leave"),
    ("optax.lion", {"weight_decay": 0.1}, "weight_decay is 0.1, but optax.lion does not"),
    (
        *("optax.contrib.schedule_free_adamw", {"plateau_patience": 3}),
        "plateau_patience is 3, and optax.contrib.schedule_free_adamw does without falling",
    ),
    ("optax.lion", {"plateau_factor": 1.0}, "plateau_factor is 1.0; it must be at least 0"),
]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [*((name, {"arguments": given}, message) for name, given, message in ARGUMENTS), *FIELDS],
)
@pytest.mark.filterwarnings("ignore:Specifying a key")
def test_what_cannot_be_chosen(name, changes, message):
    with pytest.raises(UserError) as error:
        config(name, **changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


if __name__ == "__main__":
    print(json.dumps(muon_on(2)))
