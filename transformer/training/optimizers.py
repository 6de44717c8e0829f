"""Adam and its learning-rate schedule (Section 5.3)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from transformer.system.errors import check_range


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


def optimizer(d_model: int, config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """Adam with the schedule, and gradient clipping by global norm where it is asked for.

    As `optax.adam`, but that its `update` takes `apply`: where that is false, nothing changes.
    """
    adam = _adam(d_model, config)
    if config.max_grad_norm == 0:
        return adam
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), adam)


def _adam(d_model: int, config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    def init(params: Any) -> optax.ScaleByAdamState:
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), mu, nu)

    def update(grads, state, params=None, *, apply=True):
        del params
        count = state.count + apply  # the first update has number 1
        # The moments are selected before the step is taken from them, not after: XLA then
        # writes each in place, once, and parameters read nothing but the new ones.
        mu = jax.tree.map(
            lambda g, m: jnp.where(apply, config.beta1 * m + (1 - config.beta1) * g, m),
            grads,
            state.mu,
        )
        nu = jax.tree.map(
            lambda g, v: jnp.where(apply, config.beta2 * v + (1 - config.beta2) * g * g, v),
            grads,
            state.nu,
        )
        t = count.astype(jnp.float32)
        rate = learning_rate(t, d_model, config) / (1 - config.beta1**t)
        scale = 1 / (1 - config.beta2**t)
        updates = jax.tree.map(
            lambda m, v: jnp.where(apply, -rate * m / (jnp.sqrt(v * scale) + config.epsilon), 0),
            mu,
            nu,
        )
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)
