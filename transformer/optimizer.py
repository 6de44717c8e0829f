"""Adam and its learning-rate schedule (Section 5.3)."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from transformer.errors import check_range


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """See configs/base.py."""

    beta1: float
    beta2: float
    epsilon: float
    learning_rate_scale: float
    warmup_steps: int
    max_grad_norm: float

    def __post_init__(self):
        check_range(self, "optimizer", "beta1 beta2 epsilon", 0, 1)
        check_range(self, "optimizer", "learning_rate_scale max_grad_norm", 0)
        check_range(self, "optimizer", "warmup_steps", 1)


def learning_rate(step: jax.Array, d_model: int, config: OptimizerConfig) -> jax.Array:
    """Equation 3, times `learning_rate_scale`; the first update has step 1.

    d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)
    """
    step = jnp.asarray(step, jnp.float32)
    shape = jnp.minimum(step**-0.5, step * config.warmup_steps**-1.5)
    return config.learning_rate_scale * d_model**-0.5 * shape


def optimizer(d_model: int, config: OptimizerConfig) -> optax.GradientTransformation:
    """Adam with the schedule, and gradient clipping by global norm where it is asked for."""
    adam = optax.adam(
        # optax counts updates from 0.
        lambda count: learning_rate(count + 1, d_model, config),
        b1=config.beta1,
        b2=config.beta2,
        eps=config.epsilon,
    )
    if config.max_grad_norm == 0:
        return adam
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), adam)
