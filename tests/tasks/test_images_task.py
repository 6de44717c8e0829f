"""The task images: its two optimizers, and what its scores are of."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import sagan_cifar10
from transformer.tasks.image_generation import ImagesConfig
from transformer.tasks.images import two_optimizers
from transformer.training.optimizers import OptimizerConfig
from transformer.training.schedules import make_schedule

TASK = ImagesConfig(**sagan_cifar10.get_config().task.to_dict())
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
