"""Learning rates of updates by their number (Section 5.3)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from transformer.system.errors import UserError
from transformer.training.optimizers import OptimizerConfig

Schedule = Callable[[jax.Array], jax.Array]


def make_schedule(config: OptimizerConfig, width: int | None) -> Schedule:
    """The learning rate of an update, float32; the first update has step 1.

    Every schedule rises in a straight line and reaches its peak at step `warmup_steps`. Then
      noam, inverse_sqrt: fall with the inverse square root of the step;
      linear, cosine: fall to 0 at step `decay_steps`, in a straight line or by half a cosine;
      wsd, wsd_sqrt: stay until the last `cooldown_steps` before step `decay_steps`, where they
        fall to 0 in a straight line or as 1 - sqrt (Haegele et al. 2024, arXiv 2405.18392);
      constant: stays.

    width: d_model, which gives the peak of noam, Equation 3. Raises UserError for noam without it.
    """
    peak, warmup = config.peak_learning_rate, config.warmup_steps
    if config.schedule == "noam":
        if width is None:
            raise UserError(
                "optimizer.schedule is noam, whose peak follows from model.d_model, which this "
                "family does not have; set optimizer.schedule to inverse_sqrt and give "
                "optimizer.peak_learning_rate"
            )
        return _inverse_sqrt(width**-0.5, warmup)
    if config.schedule == "inverse_sqrt":
        return _inverse_sqrt(peak * warmup**0.5, warmup)
    if config.schedule == "linear":
        after = optax.linear_schedule(peak, 0.0, config.decay_steps - warmup)
    elif config.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, config.decay_steps - warmup)
    elif config.schedule == "constant":
        after = optax.constant_schedule(peak)
    else:
        length, power = config.cooldown_steps, 0.5 if config.schedule == "wsd_sqrt" else 1

        def after(step: jax.Array) -> jax.Array:
            done = (step - (config.decay_steps - warmup - length)) / length
            return peak * (1 - jnp.clip(done, 0, 1) ** power)

    def schedule(step: jax.Array) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        return jnp.minimum(step / max(warmup, 1), 1) * after(jnp.maximum(step - warmup, 0))

    return schedule


def _inverse_sqrt(scale: float, warmup: int) -> Schedule:
    """Equation 3, whose scale is d_model^-0.5; in general it is peak * warmup^0.5."""

    def schedule(step: jax.Array) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        return scale * jnp.minimum(step**-0.5, step * warmup**-1.5)

    return schedule
