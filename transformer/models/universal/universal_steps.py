"""The recurrence in depth of the Universal Transformer, and its config (arXiv 1807.03819)."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.models.blocks import DecoderLayer, EncoderLayer, maybe_remat, scale_by_beta
from transformer.models.encoder_decoder import SHARE_EMBEDDINGS
from transformer.models.layers import MOST_LAYERS, LayerConfig, last_norm
from transformer.models.numerics import (
    DropoutRngs,
    StepRngs,
    at_least_float32,
    multiply,
    row_keys,
)
from transformer.models.positions import of_stack, sinusoidal_encoding
from transformer.models.universal.halting import OUTPUTS, Halting, begin, halt
from transformer.models.universal.separable import SeparableTransition
from transformer.system.errors import UserError, check_choice, check_range, setting

# The fields that only halting reads, and their values in configs/universal_base.py.
OF_HALTING = {"halting_output": "interpolated", "halting_threshold": 0.99, "ponder_weight": 0.01}


@dataclasses.dataclass(frozen=True)
class UniversalConfig(LayerConfig):
    """See configs/universal_base.py."""

    encoder_steps: int
    decoder_steps: int
    transition: str
    step_signal: str
    first_position: int = setting(architecture=False)
    count_from: str = setting(default="start")  # earlier commits lack it
    separator: int = setting(default=0)  # same
    random_start: int = setting(architecture=False)
    random_stride: int = setting(architecture=False, default=1)  # same
    halting: str
    halting_output: str = setting(architecture=False)
    halting_threshold: float = setting(architecture=False)
    ponder_weight: float = setting(architecture=False)
    share_embeddings: str
    scale_embeddings: bool
    words_per_position: int = 1  # same
    scale_outputs: bool = False  # same

    position_kinds = tuple(kind for kind in LayerConfig.position_kinds if kind != "learned")

    def __post_init__(self):
        super().__post_init__()
        check_range(self, "model", "encoder_steps decoder_steps", 1, MOST_LAYERS + 1)
        check_range(self, "model", "random_stride words_per_position", 1)
        check_choice(self, "model", "transition", ("feed_forward", "separable_convolution"))
        check_choice(self, "model", "step_signal", ("sinusoidal", "learned", "none"))
        check_choice(self, "model", "count_from", ("start", "both_ends", "separator"))
        if self.count_from != "start" and self.d_model % 2:
            raise UserError(
                f"model.d_model is {self.d_model}, and model.count_from is {self.count_from!r}, "
                "which needs an even number; change one of them"
            )
        if self.count_from != "separator" and self.separator:
            raise UserError(
                f"model.separator is {self.separator}, but model.count_from is "
                f"{self.count_from!r}; set one to 0, or the other to separator"
            )
        if self.count_from == "separator" and self.words_per_position > 1:
            raise UserError(
                "model.count_from is 'separator', which needs model.words_per_position=1; it is "
                f"{self.words_per_position}"
            )
        check_range(self, "model", "separator first_position random_start ponder_weight", 0)
        check_choice(self, "model", "halting", ("none", "paper", "tensor2tensor"))
        check_choice(self, "model", "halting_output", OUTPUTS)
        check_range(self, "model", "halting_threshold", 0, 1)
        check_choice(self, "model", "share_embeddings", SHARE_EMBEDDINGS)
        for field, value in OF_HALTING.items():
            if self.halting == "none" and getattr(self, field) != value:
                raise UserError(
                    f"model.{field} is {getattr(self, field)!r}, but model.halting is 'none' and "
                    f"does not use it; leave it at {value!r}, or set model.halting to paper"
                )

        if self.positions != "sinusoidal":
            counts = {"count_from": ("start",), "random_start": (0,), "random_stride": (1,)}
            self.check_without(counts, f"model.positions={self.positions}")
        if self.transition != "feed_forward":
            plain = {"feed_forward": ("plain",), "feed_forward_bias": (True,)}
            self.check_without(plain, f"model.transition={self.transition}")

    @property
    def depths(self) -> tuple[int, int]:
        return self.encoder_steps, self.decoder_steps

    @property
    def channels_of_a_count(self) -> int:
        """The number of channels for each count in a position's coordinates."""
        return self.d_model if self.count_from == "start" else self.d_model // 2


class Carry(NamedTuple):
    """The values that pass from step to step."""

    state_BTD: jax.Array
    output_BTD: jax.Array | None  # without halting the output is the last state
    halting: Halting | None


# (state with its coordinates, random keys of the step, cache) -> the new state, and anything else
Transform = Callable[[jax.Array, DropoutRngs | None, Any], tuple[jax.Array, Any]]


class Recurrence(nnx.Module):
    """Steps of one layer over all positions (Section 2.1, and 2.2 on halting)."""

    def __init__(self, config: UniversalConfig, num_steps: int, causal: bool, rngs: nnx.Rngs):
        c = self.config = config
        transition = None
        if c.transition == "separable_convolution":
            transition = SeparableTransition(config, causal, rngs)
        layer = DecoderLayer if causal else EncoderLayer
        (positions,) = of_stack(config, causal, 1, rngs)
        self.layer = layer(config, rngs, positions, transition)
        scale_by_beta(config, [self.layer], causal)
        if c.step_signal == "learned":
            normal = nnx.initializers.normal(stddev=1.0)
            self.signal_ND = nnx.Param(normal(rngs.params(), (num_steps, c.d_model), jnp.float32))
        if c.halting != "none":
            normal = nnx.initializers.normal(stddev=c.d_model**-0.5)
            self.halting_D1 = nnx.Param(normal(rngs.params(), (c.d_model, 1), jnp.float32))
            # p = 0.73 at first: most positions halt at the second step. Tensor2Tensor's value.
            self.halting_bias = nnx.Param(jnp.ones((), jnp.float32))
        self.norm = last_norm(config)
        self.num_steps = num_steps
        self.dtype = jnp.dtype(c.dtype)

    def begin(self, x_BTD: jax.Array) -> Carry:
        if self.config.halting == "none":
            return Carry(x_BTD, None, None)
        dtype = at_least_float32(self.dtype)
        return Carry(x_BTD, jnp.zeros(x_BTD.shape, dtype), begin(x_BTD.shape[:2], dtype))

    def step(
        self,
        number: jax.Array,
        carry: Carry,
        positions_BTD: jax.Array,
        transform: Transform,
        rngs: DropoutRngs | None,
        cache: Any = None,
    ) -> tuple[Carry, Any]:
        """Step 0, 1, ... Returns the carry and the second result of `transform`."""
        # 1. The coordinates of position and step (Equation 5).
        x_BTD = carry.state_BTD + positions_BTD
        if self.config.step_signal == "learned":
            x_BTD += self.signal_ND[...][number].astype(self.dtype)[None, None]
        elif self.config.step_signal == "sinusoidal":
            signal_1D = sinusoidal_encoding(number[None] + 1, self.config.d_model)
            x_BTD += signal_1D.astype(self.dtype)[None]
        # 2. Attention and transition, of all positions.
        y_BTD, result = transform(x_BTD, rngs, cache)
        if carry.halting is None:
            return Carry(y_BTD, None, None), result
        # 3. Halting. The probability is that of the state before the step.
        dtype = carry.halting.probability_BT.dtype
        p_BT1 = multiply("BTD,DZ->BTZ", x_BTD, self.halting_D1[...], dtype)
        p_BT = jax.nn.sigmoid(p_BT1[..., 0] + self.halting_bias[...])
        running_BT1 = (carry.halting.remainder_BT == 0)[..., None]
        halting, weight_BT = halt(carry.halting, p_BT, self.config.halting_threshold)
        if self.config.halting == "paper":  # Tensor2Tensor's goes on; others see it
            y_BTD = jnp.where(running_BT1, y_BTD, carry.state_BTD)
        mix = OUTPUTS[self.config.halting_output]
        return Carry(y_BTD, mix(carry.output_BTD, y_BTD, weight_BT), halting), result

    def finish(self, carry: Carry) -> jax.Array:
        """The output, [B, T, D]."""
        y_BTD = carry.state_BTD if carry.output_BTD is None else carry.output_BTD
        return self.norm(y_BTD).astype(self.dtype)

    def __call__(
        self,
        x_BTD: jax.Array,
        positions_BTD: jax.Array,
        transform: Transform,
        rngs: DropoutRngs | None,
    ) -> tuple[jax.Array, Halting | None, Any]:
        """All steps. The third result is that of `transform`, with a first axis of steps.

        Positions that have halted are computed and not used, because only a loop of fixed length
        has a gradient.
        """
        keys_B = None if rngs is None else row_keys(rngs, len(x_BTD))

        def body(carry, number):
            step_rngs = None if rngs is None else StepRngs(keys_B, number)
            return self.step(number, carry, positions_BTD, transform, step_rngs)

        # Without halting, unrolled steps took 8 % less time on a CPU; with it, no less.
        unroll = self.config.halting == "none"
        numbers = jnp.arange(self.num_steps)
        body = maybe_remat(self.config, body)
        carry, results = jax.lax.scan(body, self.begin(x_BTD), numbers, unroll=unroll)
        return self.finish(carry), carry.halting, results
