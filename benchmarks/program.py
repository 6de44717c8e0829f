"""The training program of a config, without its data: what train.py compiles and calls."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from transformer.data.batches import Batch
from transformer.models.family import Sizes, build_model
from transformer.models.functional import num_params
from transformer.models.kernels import chosen, proven
from transformer.runs.run_config import Config
from transformer.system.sharding import make_mesh, split_rows, state_sharding
from transformer.training.optimizers import make_optimizer
from transformer.training.schedules import make_schedule
from transformer.training.step import StepMetrics, abstract_state, init_state, make_train_step


def sizes_of(config: Config, vocab_size: int) -> Sizes:
    limits = config.data.max_source_length, config.data.max_target_length
    return Sizes(vocab_size, vocab_size, config.tokenizer.joint, *limits)


def training_flops(config: Config, vocab_size: int, *lengths: np.ndarray) -> np.ndarray:
    """The model FLOPs of training on each pair once; lengths: of sources, and of targets."""
    sizes = sizes_of(config, vocab_size)
    return config.family.flops(config.model, sizes, *lengths)


class Program:
    """The train step of a model, on the config's mesh, and the state that it updates."""

    def __init__(self, config: Config, sizes: Sizes, devices=None):
        """devices: all of them if None; others are compiled for, and nothing is tried on them."""
        self.mesh = make_mesh(config.mesh, devices)
        if devices is None:
            model = proven(config.model, self.mesh)
        else:
            model = chosen(config.model, self.mesh.devices.flat[0].platform)
        self.model_config, self.model = model, build_model(model, sizes)
        schedule = make_schedule(config.optimizer, config.model.width)
        self._optimizer = make_optimizer(config.optimizer, schedule)
        self._training = config.training
        self._shapes = abstract_state(self.model, self._optimizer)
        self.variables = self._shapes.params, self._shapes.extra  # their shapes
        self.num_params = num_params(self._shapes.params)

    def lower(self, batch: Batch) -> jax.stages.Lowered:
        """The train step for batches of this shape, not yet compiled."""
        train_step = make_train_step(self.model, self._optimizer, self._training, self.mesh)
        return train_step.lower(self._shapes, batch)

    def compile(self, batch: Batch) -> jax.stages.Compiled:
        """Makes `step` ready for batches of this shape; returns what it calls."""
        self._compiled = self.lower(batch).compile()
        return self._compiled

    def start(self) -> None:
        """Makes the state before the first step."""
        shardings = state_sharding(self.mesh, self._shapes, self.model.sharding)
        seed = self._training.seed
        init = jax.jit(
            lambda: init_state(self.model, self._optimizer, seed), out_shardings=shardings
        )
        self.state = init()

    def step(self, batch: Batch) -> StepMetrics:
        """One update."""
        self.state, metrics = self._compiled(self.state, batch)
        return metrics

    def begin(self, batch: Any) -> tuple[Callable[[], None], Callable[[], None]]:
        """Compiles, and makes a first update; returns what makes another, and what waits for it."""
        batch = jax.device_put(batch, split_rows(self.mesh, axis=1))
        self.compile(batch)
        self.start()

        def step() -> None:
            self.step(batch)

        def finish() -> None:
            jax.block_until_ready(self.state)

        step()
        finish()
        return step, finish
