"""Optimizers by name (Section 5.3)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from transformer.system.errors import UserError, check_choice, check_range

OPTIMIZERS = ("adam", "adamw", "adafactor", "sgd")
SCHEDULES = ("noam", "inverse_sqrt", "linear", "cosine", "constant")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """See configs/base.py."""

    name: str
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    max_grad_norm: float
    schedule: str
    peak_learning_rate: float | None
    warmup_steps: int
    decay_steps: int | None

    def __post_init__(self):
        check_choice(self, "optimizer", "name", OPTIMIZERS)
        check_choice(self, "optimizer", "schedule", SCHEDULES)
        check_range(self, "optimizer", "beta1 beta2 epsilon", 0, 1)
        check_range(self, "optimizer", "weight_decay max_grad_norm", 0)
        rises = self.schedule in ("noam", "inverse_sqrt")
        check_range(self, "optimizer", "warmup_steps", 1 if rises else 0)
        if self.weight_decay and self.name not in ("adamw", "adafactor"):
            raise UserError(
                f"optimizer.weight_decay is {self.weight_decay}, but {self.name} has none; set "
                "optimizer.name to adamw or adafactor, or optimizer.weight_decay to 0"
            )
        if self.schedule == "noam" and self.peak_learning_rate is not None:
            raise UserError(
                f"optimizer.peak_learning_rate is {self.peak_learning_rate}, but the peak of noam "
                "follows from model.d_model and optimizer.warmup_steps; set optimizer.schedule to "
                "inverse_sqrt, which has the same shape"
            )
        if self.schedule != "noam":
            if self.peak_learning_rate is None:
                raise UserError(
                    f"optimizer.schedule is {self.schedule}, which needs a peak; give "
                    "optimizer.peak_learning_rate"
                )
            check_range(self, "optimizer", "peak_learning_rate", 0)
        decays = self.schedule in ("linear", "cosine")
        if decays and (self.decay_steps is None or self.decay_steps <= self.warmup_steps):
            raise UserError(
                f"optimizer.decay_steps is {self.decay_steps}; {self.schedule} needs the update at "
                f"which the rate is 0, after optimizer.warmup_steps = {self.warmup_steps}"
            )
        if not decays and self.decay_steps is not None:
            raise UserError(
                f"optimizer.decay_steps is {self.decay_steps}, but {self.schedule} does not end; "
                "leave it out, or set optimizer.schedule to linear or cosine"
            )


def make_optimizer(
    config: OptimizerConfig, schedule: Callable[[jax.Array], jax.Array]
) -> optax.GradientTransformationExtraArgs:
    """The optimizer of a config, after clipping by global norm where that is asked for.

    schedule: the learning rate by update, the first of which has step 1.

    Its `update` takes `apply`, a boolean: where that is false, the updates are 0 and the state
    stays as it is, so that the update does not count.
    """

    def rate(count: jax.Array) -> jax.Array:  # Optax counts from 0
        return schedule(count + 1)

    if config.name == "adam":
        chosen = _adam(config, schedule)
    elif config.name == "adamw":
        chosen = _skippable(
            optax.adamw(
                rate,
                config.beta1,
                config.beta2,
                config.epsilon,
                weight_decay=config.weight_decay,
                mask=_is_matrix,
            )
        )
    elif config.name == "adafactor":
        decay = config.weight_decay or None
        chosen = _skippable(
            optax.adafactor(rate, weight_decay_rate=decay, weight_decay_mask=_is_matrix)
        )
    else:
        chosen = _skippable(optax.sgd(rate, momentum=config.beta1))
    if config.max_grad_norm == 0:
        return chosen
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), chosen)


def _is_matrix(params: Any) -> Any:
    """Which parameters decay: not biases, nor the scales of normalisation."""
    return jax.tree.map(lambda x: x.ndim > 1, params)


def _skippable(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """`inner` with an update that takes `apply`."""

    def update(grads, state, params=None, *, apply=True):
        updates, new_state = inner.update(grads, state, params)
        updates = jax.tree.map(lambda u: jnp.where(apply, u, 0), updates)
        return updates, jax.tree.map(lambda new, old: jnp.where(apply, new, old), new_state, state)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def _adam(
    config: OptimizerConfig, schedule: Callable[[jax.Array], jax.Array]
) -> optax.GradientTransformationExtraArgs:
    """As `optax.adam`, and faster: each moment is read and written once."""

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
        rate = schedule(t) / (1 - config.beta1**t)
        scale = 1 / (1 - config.beta2**t)
        updates = jax.tree.map(
            lambda m, v: jnp.where(apply, -rate * m / (jnp.sqrt(v * scale) + config.epsilon), 0),
            mu,
            nu,
        )
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)
