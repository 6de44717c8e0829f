"""The train and evaluation steps (Section 5)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from transformer.batching import Batch
from transformer.errors import UserError, check_choice, check_range
from transformer.loss import Loss, cross_entropy
from transformer.model import FunctionalModel, Params
from transformer.sharding import replicated, split_rows


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """See configs/base.py."""

    steps: int
    tokens_per_update: int
    max_tokens_per_device: int
    label_smoothing: float
    seed: int
    log_every: int
    checkpoint_every: int
    bleu_every: int
    keep_last: int
    best_metric: str
    patience: int

    def __post_init__(self):
        positive = "steps tokens_per_update log_every checkpoint_every keep_last"
        check_range(self, "training", positive, 1)
        check_range(self, "training", "max_tokens_per_device bleu_every patience seed", 0)
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


def init_state(
    model: FunctionalModel, optimizer: optax.GradientTransformation, seed: int
) -> TrainState:
    """The state before the first update."""
    init_key, _ = jax.random.split(jax.random.key(seed))
    params = model.init(init_key)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def batch_loss(
    model: FunctionalModel,
    params: Params,
    batch: Batch,
    label_smoothing: float,
    rngs: nnx.Rngs | None = None,
) -> Loss:
    """The loss, summed over the real tokens of a batch."""
    logits_BTV = model.bind(params)(
        batch.src_BS, batch.tgt_in_BT, batch.src_segments_BS, batch.tgt_segments_BT, rngs
    )
    return cross_entropy(logits_BTV, batch.tgt_out_BT, batch.tgt_segments_BT > 0, label_smoothing)


def make_train_step(
    model: FunctionalModel,
    optimizer: optax.GradientTransformation,
    config: TrainingConfig,
    mesh: jax.sharding.Mesh,
):
    """The jitted `train_step(state, batch) -> state, StepMetrics`; it reuses state's memory.

    The batch has axes [A, B, ...]: gradients of the summed loss are added up over A and
    divided once by the number of tokens, so that A steps of B rows equal one of A * B.
    """

    def gradient(params: Params, batch: Batch, key: jax.Array):
        def summed_loss(params):
            rngs = nnx.Rngs(dropout=key)
            loss = batch_loss(model, params, batch, config.label_smoothing, rngs)
            return loss.loss, loss

        grads, loss = jax.grad(summed_loss, has_aux=True)(params)
        return grads, loss

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        _, dropout_key = jax.random.split(jax.random.key(config.seed))
        step_key = jax.random.fold_in(dropout_key, state.step)
        keys_A = jax.random.split(step_key, batch.src_BS.shape[0])

        # 1. The summed gradient, one part of the batch at a time.
        def accumulate(total, part):
            return jax.tree.map(jnp.add, total, gradient(state.params, *part)), None

        parts = (batch, keys_A)
        total = gradient(state.params, *jax.tree.map(lambda x: x[0], parts))
        if len(keys_A) > 1:
            total, _ = jax.lax.scan(accumulate, total, jax.tree.map(lambda x: x[1:], parts))
        grads, loss = total

        # 2. Its mean over the real tokens of the whole update.
        grads = jax.tree.map(lambda g: g / jnp.maximum(loss.tokens, 1), grads)

        # 3. Adam.
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = StepMetrics(loss.loss, loss.nll, loss.tokens, optax.tree.norm(grads))
        return TrainState(state.step + 1, params, opt_state), metrics

    everywhere = replicated(mesh)
    return jax.jit(
        train_step,
        in_shardings=(everywhere, split_rows(mesh, axis=1)),
        out_shardings=everywhere,
        donate_argnums=0,
    )


def make_nll_step(model: FunctionalModel, mesh: jax.sharding.Mesh):
    """The jitted `nll_step(params, batch) -> Loss`, without dropout or label smoothing."""

    def nll_step(params: Params, batch: Batch) -> Loss:
        return batch_loss(model, params, batch, label_smoothing=0.0)

    everywhere = replicated(mesh)
    return jax.jit(
        nll_step, in_shardings=(everywhere, split_rows(mesh, axis=0)), out_shardings=everywhere
    )
