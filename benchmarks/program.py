"""The training program of a config, without its data: what train.py compiles and calls."""

import jax

from transformer.data.batches import Batch
from transformer.models.transformer import num_params, transformer
from transformer.runs.experiment import Experiment
from transformer.system.sharding import make_mesh, state_sharding
from transformer.training.optimizers import optimizer
from transformer.training.step import StepMetrics, abstract_state, init_state, make_train_step


class Program:
    """A model with its state and its train step, on the config's mesh."""

    def __init__(self, config: Experiment, vocab_size: int, devices=None):
        """devices: all of them if None."""
        self.mesh = make_mesh(config.mesh, devices)
        self.model = transformer(config.model, vocab_size, vocab_size)
        self.num_params = num_params(self.model.abstract_params())
        self._optimizer = optimizer(config.model.d_model, config.optimizer)
        self._training = config.training
        self.state = jax.jit(
            lambda: init_state(self.model, self._optimizer, config.training.seed),
            out_shardings=state_sharding(self.mesh, abstract_state(self.model, self._optimizer)),
        )()

    def compile(self, batch: Batch) -> jax.stages.Compiled:
        """Makes `step` ready for batches of this shape; returns what `step` calls."""
        train_step = make_train_step(self.model, self._optimizer, self._training, self.mesh)
        self._compiled = train_step.lower(self.state, batch).compile()
        return self._compiled

    def step(self, batch: Batch) -> StepMetrics:
        """One update."""
        self.state, metrics = self._compiled(self.state, batch)
        return metrics
