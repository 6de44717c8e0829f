"""The training program of a config, without its data: what train.py compiles and calls."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.data.batches import Batch, Layout, PackedPairs, TrainingBatches, layout
from transformer.data.packing import row_widths
from transformer.data.token_files import TokenizedPairs
from transformer.models.family import Sizes, build_model
from transformer.models.functional import num_params
from transformer.models.kernels import chosen, proven
from transformer.runs.run_config import Config
from transformer.system.sharding import make_mesh, split_rows, state_sharding
from transformer.training.adversarial import make_adversarial_step
from transformer.training.schedules import make_schedule
from transformer.training.step import StepMetrics, abstract_state, init_state, make_train_step


def sizes_of(config: Config, vocab_size: int) -> Sizes:
    limits = config.data.max_source_length, config.data.max_target_length
    return Sizes(vocab_size, vocab_size, config.tokenizer.joint, *limits)


def training_flops(config: Config, vocab_size: int, *lengths: np.ndarray) -> np.ndarray:
    """The model FLOPs of training on each pair once; lengths: of sources, and of targets."""
    sizes = sizes_of(config, vocab_size)
    return config.family.flops(config.model, sizes, *lengths)


class PackedRows(NamedTuple):
    """Pairs in the rows of batches, as train.py packs them."""

    packed: PackedPairs
    batches: TrainingBatches
    layout: Layout
    widths: tuple[int, int]  # of rows, source and target


def packed_rows(
    pairs: TokenizedPairs, config: Config, at_once: int = 0, shards: int = 1
) -> PackedRows:
    """at_once: tokens that a device takes at a time; 0: all."""
    limits = config.data.max_source_length, config.data.max_target_length
    packing, seed = config.data.packing, config.training.seed
    widths = row_widths(pairs.source_lengths, pairs.target_lengths, *limits, packing=packing)
    rows = layout(config.training.tokens_per_update, at_once, *widths, shards)
    packed = PackedPairs(pairs, *widths, seed, packing=packing)
    return PackedRows(packed, TrainingBatches(packed, rows, seed), rows, widths)


class Program:
    """The train step of a model, on the config's mesh, and the state that it updates."""

    def __init__(self, config: Config, sizes: Sizes, devices=None):
        """devices: all of them if None; others are compiled for, and nothing is tried on them."""
        self.mesh = make_mesh(config.mesh, devices)
        if devices is None:
            model = proven(config.model, self.mesh)
        else:
            model = chosen(config.model, self.mesh.devices.flat[0])
        self.model_config, self.model = model, build_model(model, sizes)
        self._classes = sizes.target_vocab  # of images
        schedule = make_schedule(config.optimizer, config.model.width)
        self._optimizer = config.kind.make_optimizer(config, schedule)
        self._config = config
        ema = config.training.ema
        self._shapes = abstract_state(self.model, self._optimizer, ema)
        self.variables = self._shapes.params, self._shapes.extra  # their shapes
        self.num_params = num_params(self._shapes.params)

    def lower(self, batch: Batch) -> jax.stages.Lowered:
        """The train step for batches of this shape, not yet compiled."""
        parts, training = (self.model, self._optimizer), self._config.training
        if self._config.task.name == "images":
            noise = self.model_config.noise_size, self._classes
            train_step = make_adversarial_step(
                *parts, training, self._config.task, noise, False, self.mesh
            )
        else:
            train_step = make_train_step(*parts, training, self.mesh)
        return train_step.lower(self._shapes, batch)

    def compile(self, batch: Batch) -> jax.stages.Compiled:
        """Makes `step` ready for batches of this shape; returns what it calls."""
        self._compiled = self.lower(batch).compile()
        return self._compiled

    def start(self) -> None:
        """Makes the state before the first step."""
        shardings = state_sharding(self.mesh, self._shapes, self.model.sharding)
        training = self._config.training
        init = jax.jit(
            lambda: init_state(self.model, self._optimizer, training.seed, training.ema),
            out_shardings=shardings,
        )
        self.state = init()

    def step(self, batch: Batch) -> StepMetrics:
        """One update."""
        self.state, metrics = self._compiled(self.state, batch)
        return metrics

    def begin(self, batch: Any) -> tuple[Callable[[], None], Callable[[], None]]:
        """Compiles; returns what makes an update, and what waits for it."""
        batch = jax.device_put(batch, split_rows(self.mesh, axis=1))
        self.compile(batch)
        self.start()

        def step() -> None:
            self.step(batch)

        def finish() -> None:
            jax.block_until_ready(self.state)

        return step, finish
