"""The Self-Attention Generative Adversarial Network (Zhang et al. 2018, arXiv 1805.08318).

The letters are those of spectral.py. A generator makes images from noise and a class; a
discriminator tells them from real ones. For images of 128 x 128 pixels the networks are as in the
authors' code; for 32 x 32, as in Miyato et al. 2018 (arXiv 1802.05957), with attention added.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

from transformer.models.family import Family, ModelSection, Sizes
from transformer.models.sagan.conditional_norm import ConditionalNorm
from transformer.models.sagan.image_convolution import double, halve
from transformer.models.sagan.self_attention import FORMS, ImageAttention
from transformer.models.sagan.spectral import SpectralConv, SpectralDense, SpectralEmbedding
from transformer.system.errors import UserError, check_choice, check_range

# By image size: the channels at 4 x 4 pixels and after each block, in units of generator_width.
GENERATOR = {32: (1, 1, 1, 1), 128: (16, 16, 8, 4, 2, 1)}
# By image size: the channels after each block, in units of discriminator_width, and whether the
# block halves the image.
DISCRIMINATOR = {
    32: ((1, True), (1, True), (1, False), (1, False)),
    128: ((1, True), (2, True), (4, True), (8, True), (16, True), (16, False)),
}


@dataclasses.dataclass(frozen=True)
class SAGANConfig(ModelSection):
    """The model section; see configs/sagan_cifar10.py."""

    image_size: int
    channels: int
    noise_size: int
    generator_width: int
    discriminator_width: int
    attention: str
    attention_size: int
    dtype: str

    def __post_init__(self):
        check_choice(self, "model", "image_size", GENERATOR)
        check_choice(self, "model", "channels", (1, 3))
        check_choice(self, "model", "attention", ("none", *FORMS))
        check_choice(self, "model", "dtype", ("float32", "bfloat16"))
        check_range(self, "model", "noise_size generator_width discriminator_width", 1)
        sizes = [self.image_size // 2**i for i in range(1, len(self.generator_channels))]
        halvings = sum(halves for _, halves in DISCRIMINATOR[self.image_size])
        allowed = sizes[: min(halvings, len(sizes) - 1)]  # only the first layer has 4 x 4
        check_choice(self, "model", "attention_size", allowed)
        if self.attention != "none":
            widths = {
                "generator_width": self.generator_channels[self.attention_block + 1],
                "discriminator_width": self.discriminator_channels[
                    allowed.index(self.attention_size)
                ],
            }
            for field, channels in widths.items():
                if channels % 8:
                    raise UserError(
                        f"model.{field} is {getattr(self, field)}, which gives the attention "
                        f"{channels} channels; they must be a multiple of 8"
                    )

    @property
    def generator_channels(self) -> list[int]:
        """The channels at 4 x 4 pixels, and after each block."""
        return [self.generator_width * x for x in GENERATOR[self.image_size]]

    @property
    def discriminator_channels(self) -> list[int]:
        """The channels after each block."""
        return [self.discriminator_width * x for x, _ in DISCRIMINATOR[self.image_size]]

    @property
    def attention_block(self) -> int:
        """The block of the generator that the attention follows."""
        return (self.attention_size // 4).bit_length() - 2


class GeneratorBlock(nnx.Module):
    """A residual block that doubles the image."""

    def __init__(self, I: int, O: int, num_classes: int, rngs: nnx.Rngs, dtype: jnp.dtype):  # noqa: E741
        self.norm1, self.norm2 = ConditionalNorm(num_classes, I), ConditionalNorm(num_classes, O)
        self.conv1 = SpectralConv(3, I, O, rngs, dtype=dtype)
        self.conv2 = SpectralConv(3, O, O, rngs, dtype=dtype)
        self.shortcut = SpectralConv(1, I, O, rngs, dtype=dtype)

    def __call__(self, x_BHWI, labels_B, decay, update: bool) -> jax.Array:
        y = jax.nn.relu(self.norm1(x_BHWI, labels_B, decay))
        y = self.conv1.of_doubled(y, update)
        y = jax.nn.relu(self.norm2(y, labels_B, decay))
        # A convolution of single pixels gives the same result before they are doubled.
        return self.conv2(y, update) + double(self.shortcut(x_BHWI, update))


class DiscriminatorBlock(nnx.Module):
    """A residual block that may halve the image."""

    def __init__(self, I: int, O: int, halves: bool, first: bool, rngs: nnx.Rngs, dtype: jnp.dtype):  # noqa: E741
        self.halves, self.first = halves, first
        self.conv1 = SpectralConv(3, I, O, rngs, dtype=dtype)
        self.conv2 = SpectralConv(3, O, O, rngs, dtype=dtype)
        has_shortcut = halves or I != O
        self.shortcut = SpectralConv(1, I, O, rngs, dtype=dtype) if has_shortcut else None

    def __call__(self, x_BHWI: jax.Array, update: bool) -> jax.Array:
        y = x_BHWI if self.first else jax.nn.relu(x_BHWI)  # the first sees the image itself
        y = jax.nn.relu(self.conv1(y, update))
        y = (self.conv2.then_halved if self.halves else self.conv2)(y, update)
        if self.shortcut is None:
            return y + x_BHWI
        # The mean of pixels and a convolution of single pixels commute.
        return y + self.shortcut(halve(x_BHWI) if self.halves else x_BHWI, update)


def attention(config: SAGANConfig, channels: int, rngs: nnx.Rngs) -> ImageAttention | None:
    if config.attention == "none":
        return None
    return ImageAttention(channels, config.attention, rngs, dtype=jnp.dtype(config.dtype))


class Generator(nnx.Module):
    def __init__(self, config: SAGANConfig, num_classes: int, rngs: nnx.Rngs):
        channels, dtype = config.generator_channels, jnp.dtype(config.dtype)
        self.first = SpectralDense(config.noise_size, 16 * channels[0], rngs, dtype=dtype)
        self.blocks = nnx.List(
            GeneratorBlock(I, O, num_classes, rngs, dtype)
            for I, O in itertools.pairwise(channels)  # noqa: E741
        )
        self.attention_block = config.attention_block
        self.attention = attention(config, channels[self.attention_block + 1], rngs)
        self.norm = ConditionalNorm(1, channels[-1])
        self.last = SpectralConv(3, channels[-1], config.channels, rngs, dtype=dtype)

    def __call__(
        self,
        noise_BZ: jax.Array,
        labels_B: jax.Array,
        decay: jax.Array | float | None = None,
        update: bool = False,
    ) -> jax.Array:
        """Images [B, H, W, C] with values from -1 to 1.

        decay: see ConditionalNorm. update: one iteration of spectral normalisation.
        """
        x = self.features(noise_BZ, labels_B, decay, update)
        if self.attention is not None:
            x = self.attention(x, update)
        for block in self.blocks[self.attention_block + 1 :]:
            x = block(x, labels_B, decay, update)
        x = jax.nn.relu(self.norm(x, jnp.zeros_like(labels_B), decay))
        return jnp.tanh(self.last(x, update).astype(jnp.float32))

    def features(self, noise_BZ, labels_B, decay=None, update: bool = False) -> jax.Array:
        """The input of the attention, [B, H, W, C]."""
        x = self.first(noise_BZ, update).reshape(noise_BZ.shape[0], 4, 4, -1)
        x = x.astype(self.first.dtype)
        for block in self.blocks[: self.attention_block + 1]:
            x = block(x, labels_B, decay, update)
        return x


class Discriminator(nnx.Module):
    """A projection discriminator (Miyato and Koyama 2018, arXiv 1802.05637)."""

    def __init__(self, config: SAGANConfig, num_classes: int, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.dtype)
        widths, halved = config.discriminator_channels, []
        self.blocks = nnx.List()
        for i, (_, halves) in enumerate(DISCRIMINATOR[config.image_size]):
            I, O = widths[i - 1] if i else config.channels, widths[i]  # noqa: E741
            self.blocks.append(DiscriminatorBlock(I, O, halves, i == 0, rngs, dtype))
            halved.append(halves)
        sizes = [config.image_size // 2 ** sum(halved[: i + 1]) for i in range(len(halved))]
        self.attention_block = sizes.index(config.attention_size)
        self.attention = attention(config, widths[self.attention_block], rngs)
        self.output = SpectralDense(widths[-1], 1, rngs, dtype=jnp.dtype("float32"))
        self.classes = SpectralEmbedding(num_classes, widths[-1], rngs)

    def __call__(
        self, images_BHWC: jax.Array, labels_B: jax.Array, update: bool = False
    ) -> jax.Array:
        """Logits [B]: above 0 for images judged real. update: see Generator."""
        x = self.features(images_BHWC, update)
        if self.attention is not None:
            x = self.attention(x, update)
        for block in self.blocks[self.attention_block + 1 :]:
            x = block(x, update)
        x_BC = jnp.sum(jax.nn.relu(x).astype(jnp.float32), axis=(1, 2))
        classes_BC = self.classes(labels_B, update)
        return self.output(x_BC, update)[:, 0] + jnp.sum(classes_BC * x_BC, axis=1)

    def features(self, images_BHWC: jax.Array, update: bool = False) -> jax.Array:
        """The input of the attention, [B, H, W, C]."""
        x = images_BHWC.astype(self.blocks[0].conv1.dtype)
        for block in self.blocks[: self.attention_block + 1]:
            x = block(x, update)
        return x


class Average(nnx.Variable):
    """The moving average of a parameter: state that no gradient updates."""


class SAGAN(nnx.Module):
    """Both networks. `average` holds the moving averages of the generator's parameters."""

    def __init__(self, config: SAGANConfig, sizes: Sizes, rngs: nnx.Rngs):
        self.generator = Generator(config, sizes.target_vocab, rngs)
        self.discriminator = Discriminator(config, sizes.target_vocab, rngs)
        params = nnx.to_pure_dict(nnx.state(self.generator, nnx.Param))
        self.average = nnx.data(jax.tree.map(Average, params))

    def position_table(self, length: int) -> None:
        """Nothing: pixels have no encodings."""


def multiplications(config: SAGANConfig) -> tuple[int, int]:
    """Multiplications of a forward pass on one image: the generator's and the discriminator's.

    Only those that are done count: a convolution before the image is halved takes a quarter of
    what the larger image would, one after it is doubled four ninths (image_convolution.py).
    """
    generator = config.noise_size * 16 * config.generator_channels[0]
    for i, (I, O) in enumerate(itertools.pairwise(config.generator_channels)):  # noqa: E741
        generator += (4 * 2**i) ** 2 * ((16 + 1) * I * O + 4 * 9 * O * O)
    generator += config.image_size**2 * 9 * config.generator_channels[-1] * config.channels
    discriminator, size, I = 0, config.image_size, config.channels  # noqa: E741
    for units, halves in DISCRIMINATOR[config.image_size]:
        O = config.discriminator_width * units  # noqa: E741
        discriminator += size**2 * 9 * I * O
        size = size // 2 if halves else size
        discriminator += size**2 * (9 * O * O + (I * O if halves or I != O else 0))
        I = O  # noqa: E741
    if config.attention != "none":
        narrow, wide, pooled = FORMS[config.attention]
        positions = config.attention_size**2
        keys = positions // 4 if pooled else positions
        at = config.attention_size
        widths = (
            config.generator_channels[config.attention_block + 1],
            config.discriminator_channels[(config.image_size // at).bit_length() - 2],
        )
        generator, discriminator = (
            total
            + positions * C * (2 * C // narrow + 2 * C // wide)
            + positions * keys * (C // narrow + C // wide)
            for total, C in zip((generator, discriminator), widths)
        )
    return generator, discriminator


def training_flops(
    config: SAGANConfig, sizes: Sizes, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """FLOPs for each image, in an update with one step of each network.

    The discriminator's step: the generator forward, then itself on two images, forward and
    backward. The generator's step: itself forward and backward, then the discriminator forward,
    and backward only to the image.
    """
    del sizes, target_lengths
    generator, discriminator = multiplications(config)
    once = (generator + 6 * discriminator) + (3 * generator + 2 * discriminator)
    return np.full(len(source_lengths), 2.0 * once)


FAMILY = Family(
    config=SAGANConfig,
    build=SAGAN,
    sharding=(
        (
            r".*conv\d/kernel|.*(shortcut|key|query|value|output|last)/kernel",
            P(None, None, None, "fsdp"),
        ),
        (r".*(first|classes)/kernel", P(None, "fsdp")),
        (r".*(bias_O|scale_NC|shift_NC|gamma)", P()),
    ),
    flops=training_flops,
    packs=False,
    # Spectral normalisation computes v_X from the kernel at each update, so its entries soon fit.
    class_axes=(
        (r".*/norm\d/(scale|shift)_NC", 0),
        (r"discriminator/classes/(kernel|v_X)", 0),
    ),
)
