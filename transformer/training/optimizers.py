"""Optimizers by name (Section 5.3)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from transformer.system.errors import COUNT, UserError, check_choice, check_range, setting
from transformer.training import optax_names
from transformer.training.optax_names import is_weight, name_of_leaf

# For each optimizer, the fields that it does not use, with the values that they must keep.
OPTIMIZERS = {
    "adam": {"weight_decay": 0},
    "adamw": {},
    "adafactor": {"beta1": 0.9, "beta2": 0.98, "epsilon": 1e-9},
    "sgd": {"beta2": 0.98, "epsilon": 1e-9, "weight_decay": 0},
    "bert_adam": {},
    "lamb": {},
}
OF_OPTAX = {"beta1": 0.9, "beta2": 0.98, "epsilon": 1e-9, "weight_decay": 0}
# The same for each schedule; it needs a value for the others of these fields.
SCHEDULES = {
    "noam": {"peak_learning_rate": None, "decay_steps": None, "cooldown_steps": None},
    "inverse_sqrt": {"decay_steps": None, "cooldown_steps": None},
    "linear": {"cooldown_steps": None},
    "cosine": {"cooldown_steps": None},
    "constant": {"decay_steps": None, "cooldown_steps": None},
    "wsd": {},
    "wsd_sqrt": {},
}


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
    arguments: dict | None = setting(default=None)  # noqa: RUF009
    cooldown_steps: int | None = setting(default=None)
    plateau_patience: int = setting(default=0)
    plateau_factor: float = setting(default=0.5)

    def __post_init__(self):
        names = OPTIMIZERS
        if self.is_of_optax:
            names = OPTIMIZERS | {self.name: OF_OPTAX}
            optax_names.check(self.name, self.arguments or {})
        elif self.name not in OPTIMIZERS:
            raise UserError(
                f"optimizer.name is {self.name!r:.60}; it must be one of: {', '.join(OPTIMIZERS)}, "
                f"or an optimizer of Optax, such as {optax_names.nearest(self.name)}"
            )
        elif self.arguments:
            raise UserError(
                f"optimizer.arguments is {self.arguments}, and {self.name} has fields of its own; "
                f"leave it out, or set optimizer.name to {optax_names.nearest(self.name)}"
            )
        check_choice(self, "optimizer", "schedule", SCHEDULES)
        check_range(self, "optimizer", "beta1 beta2 epsilon", 0, 1)
        check_range(self, "optimizer", "weight_decay max_grad_norm", 0)
        check_range(self, "optimizer", "plateau_patience", 0, COUNT)
        check_range(self, "optimizer", "plateau_factor", 0, 1)
        rises = self.schedule in ("noam", "inverse_sqrt")
        check_range(self, "optimizer", "warmup_steps", 1 if rises else 0, COUNT)
        for choice, table in {"name": names, "schedule": SCHEDULES}.items():
            chosen = getattr(self, choice)
            for field, value in table[chosen].items():
                if getattr(self, field) != value:
                    others = [name for name, unused in table.items() if field not in unused]
                    raise UserError(
                        f"optimizer.{field} is {getattr(self, field)}, but "
                        f"{chosen if choice == 'name' else f'the schedule {chosen}'} does not use "
                        f"it; leave it {'out' if value is None else f'at {value}'}, or set "
                        f"optimizer.{choice} to {' or '.join(others)}"
                    )
        if self.name == "adamw" and self.weight_decay == 0:
            raise UserError(
                "optimizer.weight_decay is 0, and adamw without it is adam; give "
                "optimizer.weight_decay, or set optimizer.name to adam"
            )
        needed = {"peak_learning_rate": None, "decay_steps": COUNT, "cooldown_steps": COUNT}
        for field, below in needed.items():
            if field not in SCHEDULES[self.schedule]:
                if getattr(self, field) is None:
                    raise UserError(
                        f"optimizer.schedule is {self.schedule}, which needs optimizer.{field}; "
                        "give a value"
                    )
                check_range(self, "optimizer", field, int(field == "cooldown_steps"), below)
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise UserError(
                f"optimizer.decay_steps is {self.decay_steps}, the update at which the rate is 0; "
                f"it must be above optimizer.warmup_steps = {self.warmup_steps}"
            )
        if self.cooldown_steps and self.cooldown_steps > self.decay_steps - self.warmup_steps:
            raise UserError(
                f"optimizer.cooldown_steps is {self.cooldown_steps}, more than the "
                f"{self.decay_steps - self.warmup_steps} updates from optimizer.warmup_steps to "
                "optimizer.decay_steps; lower it"
            )
        if self.plateau_patience and optax_names.is_schedule_free(self.name):
            raise UserError(
                f"optimizer.plateau_patience is {self.plateau_patience}, and {self.name} does "
                "without falling rates; leave it at 0"
            )

    @property
    def is_of_optax(self) -> bool:
        return self.name.startswith("optax.")


def make_optimizer(
    config: OptimizerConfig, schedule: Callable[[jax.Array], jax.Array]
) -> optax.GradientTransformationExtraArgs:
    """The optimizer of a config, with gradient clipping by global norm if the config asks for it.

    schedule: the learning rate of each update; the first update has step 1.

    Its `update` takes `apply`, a boolean. If it is false, the updates are 0 and the state stays
    unchanged, so the update does not count.
    """
    if config.name == "adam":
        chosen = _adam(config, schedule)
    else:
        chosen = _skippable(_from_optax(config, schedule))
    if config.max_grad_norm == 0:
        return chosen
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), chosen)


def by_part(
    optimizers: Mapping[str, optax.GradientTransformationExtraArgs],
) -> optax.GradientTransformationExtraArgs:
    """An optimizer for each part of the parameters, such as each of two networks.

    Its state is a tuple of theirs. `update` takes gradients of some or all parts, and returns
    updates of these; the state of the others stays unchanged.
    """

    def init(params: Any) -> tuple[Any, ...]:
        return tuple(optimizer.init(params[name]) for name, optimizer in optimizers.items())

    def update(grads, state, params=None, **how):
        updates, new = {}, []
        for (name, optimizer), old in zip(optimizers.items(), state, strict=True):
            if name in grads:
                updates[name], old = optimizer.update(grads[name], old, params[name], **how)
            new.append(old)
        return updates, tuple(new)

    return optax.GradientTransformationExtraArgs(init, update)


class Scaled(NamedTuple):
    """The state of `scaled`."""

    scale: jax.Array
    inner: Any


def scaled(
    optimizer: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
    """Multiplies all updates by a number of its state, which the loop of a run sets."""

    def update(grads, state, params=None, **how):
        updates, inner = optimizer.update(grads, state.inner, params, **how)
        return jax.tree.map(lambda u: state.scale * u, updates), Scaled(state.scale, inner)

    return optax.GradientTransformationExtraArgs(
        lambda params: Scaled(jnp.ones(()), optimizer.init(params)), update
    )


def _from_optax(
    config: OptimizerConfig, schedule: Callable[[jax.Array], jax.Array]
) -> optax.GradientTransformation:
    def rate(count: jax.Array) -> jax.Array:  # Optax counts from 0
        return schedule(count + 1)

    def decay(count: jax.Array) -> jax.Array:
        return config.weight_decay * rate(count)

    if config.is_of_optax:
        return optax_names.build(config.name, config.arguments or {}, rate)
    if config.name == "sgd":
        return optax.sgd(rate, momentum=config.beta1 or None)
    betas, decayed = (config.beta1, config.beta2), config.weight_decay
    if config.name == "adamw":
        return optax.adamw(rate, *betas, config.epsilon, weight_decay=decayed, mask=is_weight)
    if config.name == "bert_adam":  # as in the code of Devlin et al. 2019
        return optax.chain(
            _scale_by_uncorrected_adam(config),
            optax.add_decayed_weights(decayed, mask=is_weight),
            optax.scale_by_learning_rate(rate),
        )
    if config.name == "lamb":
        return optax.chain(
            optax.scale_by_adam(*betas, config.epsilon),
            optax.add_decayed_weights(decayed, mask=is_weight),
            optax.masked(_scale_by_trust_ratio(), is_weight),
            optax.scale_by_learning_rate(rate),
        )
    # By default Adafactor would decay by the same fraction at any learning rate, even at 0.
    return optax.adafactor(
        rate, weight_decay_rate=decay if config.weight_decay else None, weight_decay_mask=is_weight
    )


def _scale_by_uncorrected_adam(config: OptimizerConfig) -> optax.GradientTransformation:
    """Adam's moments without bias correction: the first steps are 3 times as long as Adam's."""

    def update(grads, state, params=None):
        del params
        state = _after(config, grads, state, True)
        steps = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + config.epsilon), state.mu, state.nu)
        return steps, state

    return optax.GradientTransformation(_no_moments, update)


def _scale_by_trust_ratio() -> optax.GradientTransformation:
    """LAMB, You et al. 2020, arXiv 1904.00962, Algorithm 2: |x| / |update|, 1 if one of them is 0.

    The paper computes it for each layer; its authors' code does so for each matrix. Biases and
    scales of normalisation have none. The matrices of experts lie in one array, but each has its
    own ratio: it belongs to a network of its own, and has no gradient if no token chose it.
    """

    def update(updates, state, params):
        def scaled(path: Any, u: jax.Array, x: jax.Array) -> jax.Array:
            letters = name_of_leaf(path).rpartition("_")[2]  # E: a matrix for each expert
            axes = tuple(range(letters.startswith("E") and u.ndim == len(letters) > 2, u.ndim))
            of_x, of_u = (jnp.sqrt(jnp.sum(y * y, axes, keepdims=True)) for y in (x, u))
            has_both = (of_x > 0) & (of_u > 0)
            return u * jnp.where(has_both, of_x / jnp.where(has_both, of_u, 1), 1)

        return jax.tree_util.tree_map_with_path(scaled, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _skippable(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """`inner` with an update that takes `apply`."""

    def update(grads, state, params=None, *, apply=True):
        updates, new_state = inner.update(grads, state, params)
        updates = jax.tree.map(lambda u: jnp.where(apply, u, 0), updates)
        return updates, jax.tree.map(lambda new, old: jnp.where(apply, new, old), new_state, state)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def _adam(
    config: OptimizerConfig, schedule: Callable[[jax.Array], jax.Array]
) -> optax.GradientTransformationExtraArgs:
    """The same as `optax.adam`, but faster: each moment is read and written once."""

    def update(grads, state, params=None, *, apply=True):
        del params
        state = _after(config, grads, state, apply)
        t = state.count.astype(jnp.float32)
        rate = schedule(t) / (1 - config.beta1**t)
        scale = 1 / (1 - config.beta2**t)
        updates = jax.tree.map(
            lambda m, v: jnp.where(apply, -rate * m / (jnp.sqrt(v * scale) + config.epsilon), 0),
            state.mu,
            state.nu,
        )
        return updates, state

    return optax.GradientTransformationExtraArgs(_no_moments, update)


def _no_moments(params: Any) -> optax.ScaleByAdamState:
    mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), mu, nu)


def _after(
    config: OptimizerConfig, grads: Any, state: optax.ScaleByAdamState, apply: Any
) -> optax.ScaleByAdamState:
    """Adam's moments and the number of updates after another one, unless `apply` is false."""
    beta1, beta2 = config.beta1, config.beta2
    # Select the moments before computing the step from them, not after: XLA then writes
    # each in place, once, and the parameters read only the new ones.
    mu = jax.tree.map(
        lambda g, m: jnp.where(apply, beta1 * m + (1 - beta1) * g, m), grads, state.mu
    )
    nu = jax.tree.map(
        lambda g, v: jnp.where(apply, beta2 * v + (1 - beta2) * g * g, v), grads, state.nu
    )
    return optax.ScaleByAdamState(state.count + apply, mu, nu)
