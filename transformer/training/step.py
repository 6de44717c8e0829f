"""The train and validation steps of a model that has a loss (Section 5)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from transformer.models.functional import FunctionalModel, Params
from transformer.models.numerics import DropoutRngs
from transformer.system.errors import COUNT, UserError, check_range, setting
from transformer.system.sharding import (
    gather_fsdp,
    replicated,
    row_shards,
    split_rows,
    state_sharding,
    summed_over_rows,
)
from transformer.training.freezing import stopped
from transformer.training.optax_names import gradient_point

MOST_TOKENS = 100_000_000  # per update: a batch is five arrays of 32 bits


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """See configs/base.py."""

    steps: int = setting(may_change=True)
    tokens_per_update: int
    max_tokens_per_device: int = setting(may_change=True, recorded=False)
    label_smoothing: float
    init_from: str | None = setting(recorded=False, place=True)
    seed: int
    log_every: int = setting(may_change=True, recorded=False)
    checkpoint_every: int
    full_validation_every: int
    keep_last: int = setting(may_change=True)
    best_metric: str
    patience: int = setting(may_change=True)
    max_loss_rise: float = setting(may_change=True)
    rollback_after: int = setting(may_change=True)
    max_rollbacks: int = setting(may_change=True)
    wandb: str | None = setting(may_change=True, recorded=False, default=None)
    freeze: str | None = setting(default=None)
    ema: float = setting(default=0.0)

    def __post_init__(self):
        positive = "steps log_every checkpoint_every keep_last rollback_after"
        check_range(self, "training", positive, 1, COUNT)
        counted = "full_validation_every patience max_rollbacks"
        check_range(self, "training", counted, 0, COUNT)
        check_range(self, "training", "tokens_per_update", 1, MOST_TOKENS)
        check_range(self, "training", "max_tokens_per_device", 0, MOST_TOKENS)
        check_range(self, "training", "max_loss_rise", 0)
        check_range(self, "training", "seed", 0, 2**32)  # the range of all random generators
        check_range(self, "training", "label_smoothing ema", 0, 1)
        if self.freeze is not None and not self.freeze.replace(",", " ").strip():
            raise UserError(
                f"training.freeze is {self.freeze!r}; give patterns of names, or leave it out"
            )
        if self.full_validation_every % self.checkpoint_every:
            raise UserError(
                f"training.full_validation_every = {self.full_validation_every} is not a multiple "
                f"of training.checkpoint_every = {self.checkpoint_every}"
            )


class TrainState(NamedTuple):
    """Everything that an update changes. With the seed it determines the next update."""

    step: jax.Array  # updates done, int32
    params: Params
    opt_state: optax.OptState
    extra: dict[str, Any]  # state of the model other than parameters; {} for most models
    ema: Params = {}  # the moving average of the parameters; {} without training.ema


class StepMetrics(NamedTuple):
    """Sums over the tokens of one update, and the norm of its gradient before clipping."""

    loss: jax.Array
    watched: jax.Array  # the loss without its named parts; if it rises, the run diverges
    tokens: jax.Array  # the number of tokens in the loss
    terms: dict[str, jax.Array]  # other values for the log, by name: nll, parts of the loss
    grad_norm: jax.Array
    skipped: jax.Array  # bool: loss or gradient was not finite, so nothing was updated
    stuck: jax.Array | bool = False  # a part of the model has no gradient left to learn from


def begun(
    optimizer: optax.GradientTransformation, params: Params, extra: dict[str, Any], ema: float = 0.0
) -> TrainState:
    """The state before the first update; for `ema` see TrainingConfig."""
    average = jax.tree.map(jnp.copy, params) if ema else {}
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), extra, average)


def init_state(
    model: FunctionalModel, optimizer: optax.GradientTransformation, seed: int, ema: float = 0.0
) -> TrainState:
    """`begun` with fresh parameters."""
    return begun(optimizer, *initial_variables(model, seed), ema)


def initial_variables(model: FunctionalModel, seed: int) -> tuple[Params, dict[str, Any]]:
    """The parameters and the extra state before the first update."""
    key, _ = jax.random.split(jax.random.key(seed))  # the other is for dropout
    return model.init(key), model.init_extra(key)


def abstract_state(
    model: FunctionalModel, optimizer: optax.GradientTransformation, ema: float = 0.0
) -> TrainState:
    """Shapes and types of a state; allocates nothing."""
    state = functools.partial(begun, optimizer, ema=ema)
    return jax.eval_shape(state, model.abstract_params(), model.abstract_extra())


def moved(decay: Any, average: Params, params: Params) -> Params:
    """A moving average of parameters, one update later."""
    return jax.tree.map(lambda old, now: decay * old + (1 - decay) * now, average, params)


def make_train_step(
    model: FunctionalModel,
    optimizer: optax.GradientTransformationExtraArgs,
    config: TrainingConfig,
    mesh: jax.sharding.Mesh,
):
    """The jitted `train_step(state, batch) -> state, StepMetrics`; it reuses state's memory.

    The batch is a pytree of arrays with axes [A, B, ...]. Gradients of the summed loss are added
    up over A and divided once by the number of tokens. So A steps of B rows equal one of A * B,
    dropout included. An update whose loss or gradient is not finite leaves the rest of the state
    unchanged (`optimizer.update` takes `apply` for that); the step still counts.
    Raises ValueError for a model with extra state if several devices share the rows.
    """

    def gradient(params: Params, extra: dict, batch: Any, rows_B: jax.Array, key: jax.Array):
        def summed_loss(params):
            bound = model.bind(stopped(config.freeze, params), extra)
            loss = bound.loss(batch, DropoutRngs(key, rows_B), config.label_smoothing)
            return loss.loss, (loss, model.extra_of(bound))

        grads, (loss, extra) = jax.grad(summed_loss, has_aux=True)(params)
        return (grads, loss), extra

    def summed_gradient(params: Params, parts: Any, extra: dict, key: jax.Array):
        """The sum over all parts of the batch, one part at a time."""

        def accumulate(carry, part):
            total, extra = carry
            found, extra = gradient(params, extra, *part, key)
            return (jax.tree.map(jnp.add, total, found), extra), None

        first = jax.tree.map(lambda x: x[0], parts)
        total, extra = gradient(params, extra, *first, key)
        if len(parts[1]) > 1:
            rest = jax.tree.map(lambda x: x[1:], parts)
            (total, extra), _ = jax.lax.scan(accumulate, (total, extra), rest)
        grads, loss = total
        return grads, (loss, extra)

    def train_step(state: TrainState, batch: Any) -> tuple[TrainState, StepMetrics]:
        _, dropout_key = jax.random.split(jax.random.key(config.seed))
        step_key = jax.random.fold_in(dropout_key, state.step)
        A, B = jax.tree.leaves(batch)[0].shape[:2]
        rows_AB = jnp.arange(A * B).reshape(A, B)

        # 1. The summed gradient.
        summed = summed_over_rows(mesh, model.sharding, summed_gradient)
        at = gradient_point(state.opt_state, state.params)
        grads, (loss, extra) = summed(at, (batch, rows_AB), state.extra, step_key)
        shardings = state_sharding(mesh, grads, model.sharding)
        grads = jax.lax.with_sharding_constraint(grads, shardings)

        # 2. Its mean over the real tokens of the whole update.
        tokens = jnp.maximum(loss.tokens, 1)
        grad_norm = global_norm(grads) / tokens
        grads = jax.tree.map(lambda g: g / tokens, grads)

        # 3. The optimizer, unless it would ruin the parameters for good.
        finite = jnp.isfinite(loss.loss) & jnp.isfinite(grad_norm)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params, apply=finite)
        params = jax.tree.map(lambda p, u: jnp.where(finite, p + u, p), state.params, updates)
        extra = jax.tree.map(lambda new, old: jnp.where(finite, new, old), extra, state.extra)
        ema = state.ema
        if config.ema:  # the first parameters soon count for little
            decay = jnp.minimum(config.ema, (1 + state.step) / (10 + state.step))
            ema = moved(jnp.where(finite, decay, 1), ema, params)
        terms = {"nll": loss.nll, **loss.terms}
        # Named parts, such as the loss of a source, need not grow with the number of tokens.
        watched = loss.loss - sum(loss.terms.values())
        metrics = StepMetrics(loss.loss, watched, loss.tokens, terms, grad_norm, ~finite)
        return TrainState(state.step + 1, params, opt_state, extra, ema), metrics

    if model.abstract_extra() and row_shards(mesh) > 1:
        raise ValueError("extra state cannot be that of all rows: devices see their own alone")
    state = state_sharding(mesh, abstract_state(model, optimizer, config.ema), model.sharding)
    return jax.jit(
        train_step,
        in_shardings=(state, split_rows(mesh, axis=1)),
        out_shardings=(state, replicated(mesh)),
        donate_argnums=0,
    )


def global_norm(grads: Params) -> jax.Array:
    """The norm of all gradients as one vector."""
    leaves = jax.tree.leaves(grads)
    return jax.lax.platform_dependent(*leaves, cpu=_norm_by_products, default=norm_by_squares)


def _norm_by_products(*arrays: jax.Array) -> jax.Array:
    """The norm on a CPU, where XLA would otherwise write all squares to memory."""
    return jnp.sqrt(sum(jnp.vdot(g, g, precision="highest") for g in arrays))


def norm_by_squares(*arrays: jax.Array) -> jax.Array:
    """The norm elsewhere. Devices send only sums and vectors; products would gather matrices."""
    others = [g for g in arrays if g.ndim != 1]
    # All vectors as one: a kernel for each would take longer to start than to run.
    vectors = jnp.concatenate([*(g for g in arrays if g.ndim == 1), jnp.zeros(1, arrays[0].dtype)])
    return optax.tree.norm([*others, vectors])


def make_nll_step(model: FunctionalModel, mesh: jax.sharding.Mesh):
    """The jitted (params, extra, batch) -> Loss, without dropout or label smoothing."""
    return evaluation_step(lambda bound, batch: bound.loss(batch, None, 0.0), model, mesh)


def evaluation_step(
    function: Callable[[Any, Any], Any], model: FunctionalModel, mesh: jax.sharding.Mesh
):
    """The jitted (params, extra, batch) -> function(module, batch), on all devices."""

    def step(params: Params, extra: dict, batch: Any) -> Any:
        return function(model.bind(gather_fsdp(mesh, params, model.sharding), extra), batch)

    shapes = TrainState((), model.abstract_params(), (), model.abstract_extra())
    state = state_sharding(mesh, shapes, model.sharding)
    return jax.jit(
        step,
        in_shardings=(state.params, state.extra, split_rows(mesh, axis=0)),
        out_shardings=replicated(mesh),
    )
