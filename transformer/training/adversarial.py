"""The update of a generator and a discriminator, each with its own optimizer.

For the axis letters see models/sagan/spectral.py.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from transformer.models.functional import FunctionalModel, Params
from transformer.system.compilation import convolution_options
from transformer.system.errors import COUNT, check_range
from transformer.system.sharding import (
    gather_fsdp,
    name_of,
    replicated,
    split_rows,
    state_sharding,
)
from transformer.training.freezing import is_frozen, stopped
from transformer.training.step import (
    StepMetrics,
    TrainingConfig,
    TrainState,
    abstract_state,
    global_norm,
    moved,
)

STATISTICS_DECAY = 0.999  # of the running mean and variance of batch normalisation
# Only ruined networks have a generator gradient with a smaller norm: all logits are one number, or
# all pixels are black or white, and stay so. Hinge losses have a slope of 1 everywhere, so networks
# that learn have a far larger gradient, whichever one is winning.
NO_GRADIENT = 1e-6


@dataclasses.dataclass(frozen=True)
class AdversarialConfig:
    """The fields of the task section that the update needs; see configs/sagan_cifar10.py."""

    name: str
    discriminator_steps: int
    discriminator_learning_rate: float
    average_decay: float
    average_from: int

    def __post_init__(self):
        check_range(self, "task", "discriminator_steps", 1)
        check_range(self, "task", "discriminator_learning_rate", 0)
        check_range(self, "task", "average_from", 0, COUNT)
        check_range(self, "task", "average_decay", 0, 1)


class ImageBatch(NamedTuple):
    """Real images, as bytes, and their classes; one part A for each discriminator step."""

    images_ABHWC: Any
    labels_AB: Any


class Drawn(NamedTuple):
    """Random inputs of a generator."""

    noise_BZ: jax.Array
    labels_B: jax.Array


def discriminator_loss(real_B: jax.Array, fake_B: jax.Array) -> jax.Array:
    """The hinge loss of the logits of real and of generated images; 2 if all are 0."""
    return jnp.mean(jax.nn.relu(1 - real_B)) + jnp.mean(jax.nn.relu(1 + fake_B))


def generator_loss(fake_B: jax.Array) -> jax.Array:
    return -jnp.mean(fake_B)


def from_bytes(images: jax.Array) -> jax.Array:
    """Converts bytes to numbers from -1 to 1."""
    return images.astype(jnp.float32) / 127.5 - 1


def to_bytes(images: jax.Array) -> jax.Array:
    """The inverse of `from_bytes`."""
    return jnp.round((images + 1) * 127.5).astype(jnp.uint8)


def make_adversarial_step(
    model: FunctionalModel,
    optimizer: optax.GradientTransformationExtraArgs,
    training: TrainingConfig,
    config: AdversarialConfig,
    sizes: tuple[int, int],
    flip: bool,
    mesh: jax.sharding.Mesh,
):
    """The jitted (TrainState, ImageBatch) -> TrainState, StepMetrics; it reuses state's memory.

    optimizer: `by_part` of discriminator and generator. sizes: the size of the noise, and the
    number of classes. flip: mirrors half of the real images.

    The discriminator takes a step on each part of the batch, then the generator takes one. All
    random draws depend only on the seed and the number of the update. If a loss or a gradient is
    not finite, nothing changes, and the step still counts.
    """
    noise_size, num_classes = sizes
    freeze, rows = training.freeze, split_rows(mesh, axis=0)

    shapes = {"generator": model.abstract_params()["generator"]}
    names = [name_of(path) for path, _ in jax.tree.leaves_with_path(shapes)]
    trains_generator = not all(is_frozen(freeze, name) for name in names)

    def draw(key: jax.Array, B: int) -> Drawn:
        noise_key, label_key = jax.random.split(key)
        drawn = Drawn(
            jax.random.normal(noise_key, (B, noise_size)),
            jax.random.randint(label_key, (B,), 0, num_classes),
        )
        return jax.lax.with_sharding_constraint(drawn, rows)

    def bind(params: Params, extra: dict) -> Any:
        return model.bind(gather_fsdp(mesh, params, model.sharding), extra)

    def apply(name: str, grads: Params, state: TrainState) -> tuple[TrainState, jax.Array]:
        """The state after a step of one of the networks, and the norm of its gradient."""
        part = {name: grads}
        shardings = state_sharding(mesh, part, model.sharding)
        part = jax.lax.with_sharding_constraint(part, shardings)
        updates, opt_state = optimizer.update(part, state.opt_state, state.params)
        moved = jax.tree.map(jnp.add, state.params[name], updates[name])
        state = state._replace(params=state.params | {name: moved}, opt_state=opt_state)
        return state, global_norm(grads)

    def discriminator_step(state: TrainState, part) -> tuple[TrainState, dict[str, jax.Array]]:
        images_BHWC, labels_B, key = part
        draw_key, flip_key = jax.random.split(key)
        real_BHWC = from_bytes(images_BHWC)
        if flip:
            mirrored_B = jax.random.bernoulli(flip_key, shape=labels_B.shape)
            real_BHWC = jnp.where(mirrored_B[:, None, None, None], real_BHWC[:, :, ::-1], real_BHWC)
        drawn = draw(draw_key, labels_B.shape[0])
        # decay 1: uses the statistics of this batch, and keeps the stored ones.
        fake_BHWC = bind(state.params, state.extra).generator(*drawn, decay=1.0)

        def loss(params: Params):
            bound = bind(state.params | stopped(freeze, {"discriminator": params}), state.extra)
            real_B = bound.discriminator(real_BHWC, labels_B, update=True)
            fake_B = bound.discriminator(fake_BHWC, drawn.labels_B)
            means = {"real_logit": jnp.mean(real_B), "fake_logit": jnp.mean(fake_B)}
            return discriminator_loss(real_B, fake_B), (means, model.extra_of(bound))

        found, grads = jax.value_and_grad(loss, has_aux=True)(state.params["discriminator"])
        value, (means, extra) = found
        state, norm = apply("discriminator", grads, state._replace(extra=extra))
        return state, {
            "discriminator_loss": value,
            "discriminator_grad_norm": norm,
            **means,
        }

    def generator_step(state: TrainState, key: jax.Array, B: int):
        drawn = draw(key, B)

        def loss(params: Params):
            bound = bind(state.params | stopped(freeze, {"generator": params}), state.extra)
            fake_BHWC = bound.generator(*drawn, decay=STATISTICS_DECAY, update=True)
            fake_B = bound.discriminator(fake_BHWC, drawn.labels_B)
            return generator_loss(fake_B), model.extra_of(bound)

        found, grads = jax.value_and_grad(loss, has_aux=True)(state.params["generator"])
        value, extra = found
        state, norm = apply("generator", grads, state._replace(extra=extra))
        return state, {"generator_loss": value, "generator_grad_norm": norm}

    def train_step(state: TrainState, batch: ImageBatch) -> tuple[TrainState, StepMetrics]:
        A, B = batch.labels_AB.shape
        _, key = jax.random.split(jax.random.key(training.seed))  # the first is for initial values
        keys = jax.random.split(jax.random.fold_in(key, state.step), A + 1)

        # 1. A discriminator step for each part of the batch, then one generator step.
        # Not a scan: on CPUs a convolution in a loop is many times slower.
        new, parts = state, []
        for i in range(A):
            new, part = discriminator_step(
                new, (batch.images_ABHWC[i], batch.labels_AB[i], keys[i])
            )
            parts.append(part)
        found = jax.tree.map(lambda *values: sum(values) / A, *parts)
        new, of_generator = generator_step(new, keys[A], B)
        found |= of_generator

        # 2. The moving average of the generator; until average_from, its parameters themselves.
        decay = jnp.where(state.step < config.average_from, 0.0, config.average_decay)
        average = moved(decay, new.extra["average"], new.params["generator"])
        new = new._replace(step=state.step + 1, extra=new.extra | {"average": average})

        # 3. All of it, or nothing.
        finite = jnp.all(jnp.isfinite(jnp.stack(list(found.values()))))
        kept = jax.tree.map(lambda now, old: jnp.where(finite, now, old), new, state)
        for name in ("generator", "discriminator"):
            if "attention" in kept.params[name]:
                found[f"{name}_gamma"] = kept.params[name]["attention"]["gamma"]
        norms = found["generator_grad_norm"], found["discriminator_grad_norm"]
        terms = {name: value * (A * B) for name, value in found.items()}
        metrics = StepMetrics(
            loss=terms["discriminator_loss"],
            # Before the update, as in other runs: after its first step the loss may be any number.
            watched=parts[0]["discriminator_loss"] * (A * B),
            tokens=jnp.int32(A * B),
            terms=terms,
            grad_norm=jnp.hypot(*norms),
            skipped=~finite,
            stuck=(found["generator_grad_norm"] < NO_GRADIENT) & trains_generator,
        )
        return kept._replace(step=new.step), metrics

    state = state_sharding(mesh, abstract_state(model, optimizer), model.sharding)
    return jax.jit(
        train_step,
        in_shardings=(state, split_rows(mesh, axis=1)),
        out_shardings=(state, replicated(mesh)),
        donate_argnums=0,
        compiler_options=convolution_options(mesh.devices.flat[0].platform),
    )
