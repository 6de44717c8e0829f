"""The task images: its two optimizers, and what its scores are of."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import sagan_cifar10
from transformer.data.labelled_images import ImageSet
from transformer.models.family import Sizes, build_model
from transformer.models.sagan.sagan import SAGANConfig
from transformer.models.sagan.spectral import power_iteration
from transformer.system.sharding import data_mesh
from transformer.tasks.image_generation import ImageGenerator, ImagesConfig
from transformer.tasks.images import ImageTraining, two_optimizers
from transformer.training.optimizers import OptimizerConfig
from transformer.training.schedules import make_schedule

TASK = ImagesConfig(**sagan_cifar10.get_config().task.to_dict())
MODEL = SAGANConfig("sagan", 32, 1, 3, 8, 8, "paper", 16, "float32")
SCHEDULE = {"schedule": "linear", "warmup_steps": 2, "decay_steps": 4}


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_the_discriminators_schedule_counts_updates(name):
    """Of three steps each: rates rise to the peak at update 2 and are half of it at update 3."""
    options = {**sagan_cifar10.get_config().optimizer.to_dict(), **SCHEDULE, "name": name}
    if name == "sgd":
        options |= {"beta2": 0.98, "epsilon": 1e-9}
    config = types.SimpleNamespace(
        optimizer=OptimizerConfig(**options | {"peak_learning_rate": 0.5}),
        task=dataclasses.replace(TASK, discriminator_steps=3, discriminator_learning_rate=8.0),
        training=types.SimpleNamespace(ema=0.0),
    )
    optimizer = two_optimizers(config, make_schedule(config.optimizer, None))
    params = {"discriminator": jnp.zeros(1), "generator": jnp.zeros(1)}
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    rates = {"discriminator": [], "generator": []}
    for _ in range(3):
        for network in 3 * ["discriminator"] + ["generator"]:
            # Adam without momentum divides by the size of the gradient, which is 1.
            moved, state = update({network: jnp.ones(1)}, state, params)
            rates[network].append(-float(moved[network][0]))
    np.testing.assert_allclose(rates["discriminator"], np.repeat([4, 8, 4], 3), rtol=1e-5)
    np.testing.assert_allclose(rates["generator"], [0.25, 0.5, 0.25], rtol=1e-5)


def test_validation_is_of_all_classes():
    """The discriminator sees the same rows each time, also where folders have sorted them."""
    judged = []

    def logits(state, images_NHWC, labels_N):
        np.testing.assert_array_equal(images_NHWC[:, 0, 0, 0], labels_N)
        judged.append(labels_N)
        return np.zeros(len(labels_N))

    task = types.SimpleNamespace(
        rows=64,
        ready=lambda params, extra: None,
        noise=lambda seeds_N: seeds_N,
        images=lambda ready, noise_NZ, labels_N: images_of(labels_N),
        logits=logits,
    )
    config = types.SimpleNamespace(
        task=dataclasses.replace(TASK, samples_every=0),
        training=types.SimpleNamespace(tokens_per_update=4, seed=0),
        model=MODEL,
    )
    labels_N = np.repeat(np.arange(5), 100)
    images = ImageSet(images_of(labels_N), labels_N, list("abcde"))
    training = ImageTraining(config, data_mesh(jax.devices()[:1]), task, images, images)
    state = types.SimpleNamespace(step=0, params=None, extra=None)
    for _ in range(2):
        training.validate(state, False, lambda: None)
    assert np.bincount(judged[0], minlength=5).min() >= 6  # of 64; 13 if they were even
    for other in judged[1:]:
        np.testing.assert_array_equal(other, judged[0])


def test_standing_statistics_are_of_classes_at_random():
    """Of a thousand classes 512 images have some from everywhere, each time the same."""
    config = types.SimpleNamespace(data=None, task=TASK, model=MODEL)
    classes = list(map(str, range(1000)))
    generator = ImageGenerator(config, classes, None, data_mesh(jax.devices()[:1]))
    seen = []

    def restate(params, extra, batch):
        drawn, _ = batch
        seen.append(np.asarray(drawn.labels_B))
        return extra

    generator._restate = restate
    for _ in range(2):
        generator.ready({}, {"average": jnp.zeros(1)})
    first, again = np.concatenate(seen[:8]), np.concatenate(seen[8:])
    np.testing.assert_array_equal(first, again)
    assert np.bincount(first // 100, minlength=10).min() > 30  # 51 if they were even


@pytest.mark.slow
def test_images_are_normalised_by_the_vectors_of_the_average(random_params):
    """Not by those of the live generator, whose weights are others."""
    model = build_model(MODEL, Sizes(2, 2, False, 1, 1))
    config = types.SimpleNamespace(data=None, task=TASK, model=MODEL)
    generator = ImageGenerator(config, ["a", "b"], model, data_mesh(jax.devices()[:1]))
    params = random_params(model)
    extra = jax.tree.map(lambda x: jnp.full(x.shape, x.size**-0.5), model.abstract_extra())
    extra["average"] = random_params(model, seed=1)["generator"]
    found = generator.ready(params, extra).extra
    u_O = extra["generator"]["first"]["u_O"]
    iterate = jax.jit(power_iteration)
    for _ in range(8):  # once with each batch
        u_O, v_X = iterate(extra["average"]["first"]["kernel"], u_O)
    np.testing.assert_allclose(found["generator"]["first"]["u_O"], u_O, atol=1e-5)
    np.testing.assert_allclose(found["generator"]["first"]["v_X"], v_X, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, found["discriminator"], extra["discriminator"])


def images_of(labels_N):
    return np.broadcast_to(labels_N.astype(np.uint8)[:, None, None, None], (len(labels_N), 2, 2, 1))
