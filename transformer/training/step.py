"""The train and evaluation steps (Section 5)."""

import dataclasses
import math
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from transformer.data.batches import Batch, Layout, layout
from transformer.models.functional import FunctionalModel, Params
from transformer.models.layers import DropoutRngs
from transformer.models.loss import Loss
from transformer.system.errors import UserError, check_choice, check_range
from transformer.system.sharding import (
    gather_fsdp,
    replicated,
    row_shards,
    split_rows,
    state_sharding,
)

# What a CPU takes at once unless the config says: where it was measured (docs/performance.md),
# more was slower, and it needs more memory.
CPU_TOKENS = 2048


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """See configs/base.py."""

    steps: int
    tokens_per_update: int
    max_tokens_per_device: int
    label_smoothing: float
    r_drop: float
    init_from: str | None
    seed: int
    log_every: int
    checkpoint_every: int
    bleu_every: int
    keep_last: int
    best_metric: str
    patience: int
    max_loss_rise: float
    rollback_after: int
    max_rollbacks: int

    def __post_init__(self):
        positive = "steps tokens_per_update log_every checkpoint_every keep_last rollback_after"
        check_range(self, "training", positive, 1)
        check_range(self, "training", "max_tokens_per_device bleu_every patience seed", 0)
        check_range(self, "training", "max_loss_rise max_rollbacks r_drop", 0)
        check_range(self, "training", "label_smoothing", 0, 1)
        check_choice(self, "training", "best_metric", ("bleu", "nll"))
        if self.bleu_every == 0 and self.best_metric == "bleu":
            raise UserError(
                "training.best_metric is 'bleu' but training.bleu_every is 0 (never); "
                "set training.best_metric to 'nll'"
            )
        if self.bleu_every % self.checkpoint_every:
            raise UserError(
                f"training.bleu_every = {self.bleu_every} is not a multiple of "
                f"training.checkpoint_every = {self.checkpoint_every}"
            )

    @property
    def passes(self) -> int:
        """How often an update passes each pair through the model: see `batch_loss`."""
        return 2 if self.r_drop else 1


def update_layout(
    config: TrainingConfig, source_width: int, target_width: int, mesh: jax.sharding.Mesh
) -> Layout:
    """How the rows of an update are split over the devices of a mesh."""
    at_once = config.max_tokens_per_device
    if at_once == 0 and mesh.devices.flat[0].platform == "cpu":
        at_once = CPU_TOKENS // config.passes
    return layout(config.tokens_per_update, at_once, source_width, target_width, row_shards(mesh))


class TrainState(NamedTuple):
    """All that an update changes; with the seed, all that the next one depends on."""

    step: jax.Array  # updates done, int32
    params: Params
    opt_state: optax.OptState


class StepMetrics(NamedTuple):
    """Sums over the tokens of one update, and the norm of its gradient before clipping."""

    loss: jax.Array
    nll: jax.Array
    tokens: jax.Array  # target tokens
    grad_norm: jax.Array
    skipped: jax.Array  # bool: loss or gradient was not finite, so nothing was updated


class Window:
    """The updates since the last line of the log; its notes go into checkpoints."""

    def __init__(self, notes: dict[str, float] | None = None):
        self._sums = notes or {"loss": 0.0, "nll": 0.0, "tokens": 0, "grad_norm": 0.0, "updates": 0}
        # Of this process alone, so not in the notes:
        self._start = time.monotonic()
        self._updates_here = 0
        self._tokens_here = 0  # source and target, padding excluded
        self.wait = 0.0  # seconds spent waiting for input

    def notes(self) -> dict[str, float]:
        return dict(self._sums)

    @property
    def target_tokens(self) -> int:
        """Those of updates that were not skipped."""
        return self._sums["tokens"]

    def add(self, metrics: StepMetrics, num_tokens: int) -> None:
        """Adds a finished update of so many source and target tokens."""
        self._updates_here += 1
        self._tokens_here += num_tokens
        if metrics.skipped:
            return
        self._sums["loss"] += float(metrics.loss)
        self._sums["nll"] += float(metrics.nll)
        self._sums["tokens"] += int(metrics.tokens)
        self._sums["grad_norm"] += float(metrics.grad_norm)
        self._sums["updates"] += 1

    def summary(self) -> dict[str, float]:
        """The values to log; without any update that was not skipped, they are not numbers."""
        tokens, updates = (self._sums[name] or math.nan for name in ("tokens", "updates"))
        return {
            "train/loss": self._sums["loss"] / tokens,
            "train/nll": self._sums["nll"] / tokens,
            "train/grad_norm": self._sums["grad_norm"] / updates,
            "train/tokens_per_second": self._tokens_here / (time.monotonic() - self._start),
            "input/wait_ms": 1000 * self.wait / max(self._updates_here, 1),
        }


def init_state(
    model: FunctionalModel, optimizer: optax.GradientTransformation, seed: int
) -> TrainState:
    """The state before the first update."""
    init_key, _ = jax.random.split(jax.random.key(seed))
    params = model.init(init_key)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def abstract_state(model: FunctionalModel, optimizer: optax.GradientTransformation) -> TrainState:
    """Shapes and types of a state; allocates nothing."""
    params = model.abstract_params()
    step = jax.ShapeDtypeStruct((), jnp.int32)
    return TrainState(step, params, jax.eval_shape(optimizer.init, params))


def batch_loss(
    model: FunctionalModel,
    params: Params,
    batch: Batch,
    label_smoothing: float,
    rngs: DropoutRngs | None = None,
) -> Loss:
    """The loss, summed over the real tokens of a batch."""
    return model.bind(params).loss(batch, rngs, label_smoothing)


def make_train_step(
    model: FunctionalModel,
    optimizer: optax.GradientTransformationExtraArgs,
    config: TrainingConfig,
    mesh: jax.sharding.Mesh,
):
    """The jitted `train_step(state, batch) -> state, StepMetrics`; it reuses state's memory.

    The batch has axes [A, B, ...]: gradients of the summed loss are added up over A and
    divided once by the number of tokens, so that A steps of B rows equal one of A * B, dropout
    included. An update whose loss or gradient is not finite leaves parameters and optimizer
    as they are (`optimizer.update` takes `apply` for that); the step still counts.
    """

    def gradient(params: Params, batch: Batch, rows_B: jax.Array, key: jax.Array):
        def summed_loss(params):
            rngs = DropoutRngs(key, rows_B)
            params = gather_fsdp(mesh, params, model.sharding)
            loss = batch_loss(model, params, batch, config.label_smoothing, rngs)
            return loss.loss, loss

        grads, loss = jax.grad(summed_loss, has_aux=True)(params)
        return jax.lax.with_sharding_constraint(
            grads, state_sharding(mesh, grads, model.sharding)
        ), loss

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        _, dropout_key = jax.random.split(jax.random.key(config.seed))
        step_key = jax.random.fold_in(dropout_key, state.step)
        A, B = batch.src_BS.shape[:2]
        rows_AB = jnp.arange(A * B).reshape(A, B)

        # 1. The summed gradient, one part of the batch at a time.
        def accumulate(total, part):
            return jax.tree.map(jnp.add, total, gradient(state.params, *part, step_key)), None

        parts = (batch, rows_AB)
        total = gradient(state.params, *jax.tree.map(lambda x: x[0], parts), step_key)
        if A > 1:
            total, _ = jax.lax.scan(accumulate, total, jax.tree.map(lambda x: x[1:], parts))
        grads, loss = total

        # 2. Its mean over the real tokens of the whole update.
        tokens = jnp.maximum(loss.tokens, 1)
        grad_norm = _norm(grads) / tokens
        grads = jax.tree.map(lambda g: g / tokens, grads)

        # 3. Adam, unless it would spoil the parameters for good.
        finite = jnp.isfinite(loss.loss) & jnp.isfinite(grad_norm)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params, apply=finite)
        params = jax.tree.map(lambda p, u: jnp.where(finite, p + u, p), state.params, updates)
        metrics = StepMetrics(loss.loss, loss.nll, loss.tokens, grad_norm, ~finite)
        return TrainState(state.step + 1, params, opt_state), metrics

    state = state_sharding(mesh, abstract_state(model, optimizer), model.sharding)
    return jax.jit(
        train_step,
        in_shardings=(state, split_rows(mesh, axis=1)),
        out_shardings=(state, replicated(mesh)),
        donate_argnums=0,
    )


def _norm(grads: Params) -> jax.Array:
    """The global norm; as products, since XLA on the CPU would write all squares to memory."""
    squares = [jnp.vdot(g, g, precision="highest") for g in jax.tree.leaves(grads)]
    return jnp.sqrt(sum(squares))


def make_nll_step(model: FunctionalModel, mesh: jax.sharding.Mesh):
    """The jitted `nll_step(params, batch) -> Loss`, without dropout or label smoothing."""

    def nll_step(params: Params, batch: Batch) -> Loss:
        return batch_loss(
            model, gather_fsdp(mesh, params, model.sharding), batch, label_smoothing=0.0
        )

    params = state_sharding(mesh, model.abstract_params(), model.sharding)
    return jax.jit(
        nll_step,
        in_shardings=(params, split_rows(mesh, axis=0)),
        out_shardings=replicated(mesh),
    )
