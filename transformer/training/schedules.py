"""Learning rates by the number of the update (Section 5.3)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from transformer.system.errors import UserError
from transformer.training.optimizers import OptimizerConfig

Schedule = Callable[[jax.Array], jax.Array]


def make_schedule(config: OptimizerConfig, width: int | None) -> Schedule:
    """The learning rate of an update, float32; the first update has step 1.

    All but `constant` without a warm-up rise in a straight line from 0 to their peak, which they
    reach at step `warmup_steps`. Then
      noam, inverse_sqrt: fall with the inverse square root of the step;
      linear, cosine: fall to 0 at step `decay_steps`, in a straight line or by half a cosine;
      constant: stays.

    width: d_model, which gives the peak of noam, Equation 3. Raises UserError if noam has none.
    """
    peak, warmup = config.peak_learning_rate, config.warmup_steps
    if config.schedule == "noam":
        if width is None:
            raise UserError(
                "optimizer.schedule is 'noam', and its peak follows from model.d_model, which this "
                "family does not have; set optimizer.schedule to 'inverse_sqrt' and give "
                "optimizer.peak_learning_rate"
            )

        def noam(step: jax.Array) -> jax.Array:
            step = jnp.asarray(step, jnp.float32)
            return width**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)

        return noam
    if config.schedule == "inverse_sqrt":

        def inverse_sqrt(step: jax.Array) -> jax.Array:
            step = jnp.asarray(step, jnp.float32)
            return peak * jnp.minimum((warmup / step) ** 0.5, step / warmup)

        return inverse_sqrt
    rest = (config.decay_steps or 0) - warmup
    after = {
        "linear": lambda: optax.linear_schedule(peak, 0.0, rest),
        "cosine": lambda: optax.cosine_decay_schedule(peak, rest),
        "constant": lambda: optax.constant_schedule(peak),
    }[config.schedule]()
    joined = optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), after], [warmup])
    return lambda step: jnp.asarray(joined(step), jnp.float32)
