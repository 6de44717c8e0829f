"""One update of two networks: what it depends on, and what it changes."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_configs import PAPER

from configs import sagan_cifar10
from transformer.models.family import Sizes, build_model
from transformer.models.functional import FunctionalModel
from transformer.models.sagan.sagan import Average, SAGANConfig
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh
from transformer.tasks.image_generation import ImageGenerator, ImagesConfig
from transformer.training.adversarial import (
    ImageBatch,
    from_bytes,
    make_adversarial_step,
    to_bytes,
)
from transformer.training.freezing import is_frozen, with_frozen
from transformer.training.optimizers import by_part
from transformer.training.step import TrainState

TASK = dataclasses.replace(
    ImagesConfig(**sagan_cifar10.get_config().task.to_dict()), average_decay=0.75, average_from=2
)
TRAINING = dataclasses.replace(PAPER.training, seed=7)
MODEL = SAGANConfig("sagan", 32, 1, 3, 8, 8, "paper", 16, "float32")


class Rate:
    """Gradient descent, so that a difference of parameters is the gradient times the rate.

    The rate is state, so that one compiled step serves all rates.
    """

    def __init__(self, rate):
        self.init = lambda params: {"updates": jnp.int32(0), "rate": jnp.float32(rate)}

    def update(self, grads, state, params):
        steps = jax.tree.map(lambda g: -state["rate"] * g, grads)
        return steps, state | {"updates": state["updates"] + 1}


RATES = by_part({"discriminator": Rate(0.5), "generator": Rate(0.25)})


def both(rate):
    return by_part({"discriminator": Rate(rate), "generator": Rate(rate)})


@pytest.fixture(scope="module")
def update(random_params):
    model = build_model(MODEL, Sizes(2, 2, False, 1, 1))
    params = jax.tree.map(lambda x: 0.3 * x, random_params(model))
    extra = jax.tree.map(lambda x: jnp.full(x.shape, x.size**-0.5), model.abstract_extra())
    state = TrainState(jnp.int32(0), params, RATES.init(params), extra)
    mesh = data_mesh(jax.devices()[:1])
    step = make_adversarial_step(model, RATES, TRAINING, TASK, (3, 2), False, mesh)
    images = np.random.default_rng(0).integers(0, 256, (1, 5, 32, 32, 1), np.uint8)
    batch = ImageBatch(images, np.array([[0, 1, 1, 0, 1]], np.int32))

    def run(step=step):
        return step(jax.tree.map(jnp.array, state), batch)

    return state, run


def moved(a, b) -> dict[str, bool]:
    pairs = zip(*(jax.tree_util.tree_leaves_with_path(x) for x in (a, b)), strict=True)
    return {jax.tree_util.keystr(k): bool(np.any(x != y)) for (k, x), (_, y) in pairs}


@pytest.mark.slow
def test_both_networks_their_optimizers_and_vectors_move(update):
    state, run = update
    new, metrics = run()
    assert new.step == 1
    assert [int(x["updates"]) for x in new.opt_state] == [1, 1]
    changed = moved(state.params, new.params)
    assert all(changed["['discriminator']" + name] for name in ("['classes']['kernel']",))
    assert changed["['generator']['first']['kernel']"]
    changed = moved(state.extra, new.extra)
    assert changed["['discriminator']['blocks'][0]['conv1']['u_O']"]
    assert changed["['generator']['blocks'][0]['conv1']['u_O']"]
    assert changed["['generator']['norm']['mean_C']"]
    assert metrics.tokens == 5
    assert not metrics.skipped
    terms = {name: float(x) / 5 for name, x in metrics.terms.items()}
    assert terms["discriminator_loss"] == float(metrics.loss) / 5 == float(metrics.watched) / 5
    assert terms["generator_loss"] != 0
    norm = np.hypot(terms["generator_grad_norm"], terms["discriminator_grad_norm"])
    assert metrics.grad_norm == pytest.approx(norm)


@pytest.mark.slow
def test_what_is_frozen_stays(update):
    state, run = update
    freeze = "discriminator/blocks/0,generator/first,*/attention"
    mesh, optimizer = data_mesh(jax.devices()[:1]), with_frozen(RATES, freeze)
    model = build_model(MODEL, Sizes(2, 2, False, 1, 1))
    training = dataclasses.replace(TRAINING, freeze=freeze)
    step = make_adversarial_step(model, optimizer, training, TASK, (3, 2), False, mesh)
    found, metrics = run(step=step)
    norms = {}
    for name, changed in moved(state.params, found.params).items():
        names = name[2:-2].replace("']['", "/").replace("'][", "/").replace("]['", "/")
        assert not (changed and is_frozen(freeze, names)), names
        norms[names] = changed
    assert not norms["discriminator/blocks/0/conv1/kernel"]
    assert norms["discriminator/blocks/1/conv1/kernel"]
    assert not norms["generator/first/kernel"]
    _, whole = run()
    assert 0 < metrics.grad_norm < whole.grad_norm
    assert not metrics.stuck


def test_a_generator_that_is_frozen_is_not_stuck():
    """It has no gradient, and that is meant."""
    ((_, _, metrics),) = toy_update(freeze="generator")
    assert metrics.terms["generator_grad_norm"] == 0
    assert not metrics.stuck


class Scale(nnx.Module):
    """Grey pixels tanh(w z), or their logits w x."""

    def __init__(self, weight, makes_images):
        self.weight, self.makes_images = nnx.Param(jnp.float32(weight)), makes_images

    def __call__(self, x, labels_B, decay=None, update=False):
        y = self.weight[...] * x
        return jnp.tanh(y)[:, :, None, None] if self.makes_images else y[:, 0, 0, 0]


class Toy(nnx.Module):
    def __init__(self, rngs):
        self.generator = Scale(0.5, makes_images=True)
        self.discriminator = Scale(0.0, makes_images=False)
        self.average = nnx.data({"weight": Average(jnp.float32(2))})


TOY = FunctionalModel(Toy)


@functools.cache
def toy_step(freeze=None):
    """A step of the toy, and its first state."""
    rates = with_frozen(RATES, freeze) if freeze else RATES
    training = dataclasses.replace(TRAINING, freeze=freeze)
    params, extra = TOY.init(0), TOY.init_extra(0)
    state = TrainState(jnp.int32(0), params, rates.init(params), extra)
    mesh = data_mesh(jax.devices()[:1])
    step = make_adversarial_step(TOY, rates, training, TASK, (1, 2), False, mesh)
    return step, jax.tree.map(np.array, state)


def toy_update(generator_weight=0.5, parts=1, rate=None, steps=(0,), freeze=None):
    """For each number of an update: the state before and after it, and its metrics.

    Of the toy: white images, and no noise that is near 0. rate: of both networks.
    """
    step, state = toy_step(freeze)
    params = state.params | {"generator": {"weight": np.float32(generator_weight)}}
    state = state._replace(params=params)
    if rate is not None:
        opt_state = jax.tree.map(np.array, both(rate).init(params))
        state = state._replace(opt_state=opt_state)
    batch = ImageBatch(np.full((parts, 3, 1, 1, 1), 255, np.uint8), np.zeros((parts, 3), np.int32))
    for number in steps:
        before = state._replace(step=np.int32(number))
        after, metrics = step(jax.tree.map(jnp.array, before), batch)
        yield before, jax.tree.map(np.array, after), metrics


def test_two_time_scales():
    """The step of each network is its rate times its gradient, whose norm is logged."""
    ((before, after, metrics),) = toy_update()
    assert after.step == 1
    assert [int(x["updates"]) for x in after.opt_state] == [1, 1]
    for name, rate in (("discriminator", 0.5), ("generator", 0.25)):
        length = abs(float(after.params[name]["weight"] - before.params[name]["weight"]))
        logged = float(metrics.terms[f"{name}_grad_norm"]) / 3
        assert length == pytest.approx(rate * logged, rel=1e-3)
        assert length > 0


def test_the_average():
    """Until update 2 the generator itself; then three quarters of the old average."""
    (_, first, _), (_, second, _) = toy_update(steps=(1, 2))
    assert first.extra["average"]["weight"] == first.params["generator"]["weight"]
    expected = 0.75 * 2 + 0.25 * second.params["generator"]["weight"]
    np.testing.assert_allclose(second.extra["average"]["weight"], expected, rtol=1e-6)


def test_what_is_drawn_depends_on_the_number_of_the_update_alone():
    weights = [
        float(new.params["generator"]["weight"]) for _, new, _ in toy_update(steps=(3, 3, 4))
    ]
    assert weights[0] == weights[1] != weights[2]


def test_an_update_that_is_not_finite_changes_nothing():
    ((before, after, metrics),) = toy_update(float("nan"), steps=(5,))
    assert metrics.skipped
    assert after.step == 6
    jax.tree.map(np.testing.assert_array_equal, before._replace(step=6), after)


def test_the_loss_before_the_update_is_watched():
    """At first all logits are 0, and the loss is 2, however far the first step then goes."""
    ((_, _, metrics),) = toy_update(parts=2, rate=1e6)
    assert metrics.watched == 2 * metrics.tokens == 12
    assert metrics.loss > 1e5


@pytest.mark.parametrize(
    ("weight", "rate", "is_stuck"),
    [
        (0.5, 1.0, False),
        (1e9, 1.0, True),  # all pixels are black or white
        (0.5, 0.0, True),  # the discriminator gives every image the logit 0
        (0.5, 1e-3, False),  # a tenth of a per cent of it would do
    ],
)
def test_a_generator_without_a_gradient_is_stuck(weight, rate, is_stuck):
    ((_, _, metrics),) = toy_update(weight, rate=rate)
    assert metrics.stuck == is_stuck
    assert not metrics.skipped


def test_bytes_and_numbers():
    x = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(to_bytes(from_bytes(x)), x)
    assert from_bytes(np.array([0, 255], np.uint8)).tolist() == [-1, 1]


def test_a_task_section_that_cannot_be():
    for changes, message in (
        ({"discriminator_steps": 0}, "task.discriminator_steps is 0"),
        ({"average_decay": 1.0}, "task.average_decay is 1.0"),
        ({"statistics": "batch"}, "task.statistics is 'batch'"),
    ):
        with pytest.raises(UserError, match=message):
            dataclasses.replace(TASK, **changes)


@pytest.mark.slow
def test_noise_has_no_outliers():
    """Of 8 million numbers JAX's generator makes about two the lowest float there is."""
    model = dataclasses.replace(MODEL, noise_size=2**17)
    config = types.SimpleNamespace(data=None, task=TASK, model=model)
    generator = ImageGenerator(config, ["a"], None, data_mesh(jax.devices()[:1]))
    noise_NZ = generator.noise(np.arange(64))
    assert np.abs(noise_NZ).max() < 7
    assert noise_NZ.std() == pytest.approx(1, abs=0.01)
    assert np.abs(generator.noise(np.arange(64), truncation=0.5)).max() < 0.5
    for truncation in (float("nan"), float("inf"), 0.0):
        with pytest.raises(UserError, match=f"the truncation is {truncation}; give a number above"):
            generator.noise(np.arange(1), truncation)
