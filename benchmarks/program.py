"""The training program of a config, without its data: what train.py compiles and calls."""

import jax

from transformer.batching import Batch
from transformer.experiment import Experiment
from transformer.model import num_params, transformer
from transformer.optimizer import optimizer
from transformer.sharding import data_mesh, replicated
from transformer.training import StepMetrics, init_state, make_train_step


class Program:
    """A model with its state and its train step, on all devices."""

    def __init__(self, config: Experiment, vocab_size: int):
        self.mesh = data_mesh()
        self.model = transformer(config.model, vocab_size, vocab_size)
        self.num_params = num_params(self.model.abstract_params())
        self._optimizer = optimizer(config.model.d_model, config.optimizer)
        self._training = config.training
        self.state = jax.jit(
            lambda: init_state(self.model, self._optimizer, config.training.seed),
            out_shardings=replicated(self.mesh),
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
