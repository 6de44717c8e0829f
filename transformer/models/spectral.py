"""Spectral normalisation: weights divided by their largest singular value (arXiv 1802.05957).

Letters of the files about images, where they differ from the package's: H height, W width,
C channels, I and O channels that go in and out, P positions of an image (H * W), N classes,
X all axes of a kernel but the last, as one, Z noise.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.models.numerics import multiply

EPSILON = 1e-12  # below the norms of vectors


class PowerVector(nnx.Variable):
    """A vector of the power iteration: state that no gradient updates."""


def power_iteration(kernel_XO: jax.Array, u_O: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One iteration, v first: vectors (u, v) closer to those of the largest singular value."""
    v_X = _unit(jnp.einsum("XO,O->X", kernel_XO, u_O, precision="highest"))
    u_O = _unit(jnp.einsum("XO,X->O", kernel_XO, v_X, precision="highest"))
    return u_O, v_X


def spectral_norm(kernel_XO: jax.Array, u_O: jax.Array, v_X: jax.Array) -> jax.Array:
    """v^T W u; its gradient takes u and v for constants."""
    return jnp.einsum("X,XO,O->", v_X, kernel_XO, u_O, precision="highest")


def _unit(x: jax.Array) -> jax.Array:
    return x / (jnp.linalg.norm(x) + EPSILON)


class SpectralKernel(nnx.Module):
    """A kernel, its last axis the one of the outputs, with the vectors of its power iteration."""

    def __init__(self, shape: tuple[int, ...], rngs: nnx.Rngs, *, dtype: jnp.dtype, bias: bool):
        self.dtype = dtype
        kernel = nnx.initializers.xavier_uniform()(rngs.params(), shape)
        u_O = _unit(jax.random.normal(rngs.params(), shape[-1:]))
        u_O, v_X = power_iteration(kernel.reshape(-1, shape[-1]), u_O)
        self.kernel = nnx.Param(kernel)
        self.bias_O = nnx.Param(jnp.zeros(shape[-1:])) if bias else None
        self.u_O, self.v_X = PowerVector(u_O), PowerVector(v_X)

    def normalised(self, update: bool) -> jax.Array:
        """The kernel over its spectral norm. update: first an iteration, whose vectors stay."""
        kernel = self.kernel[...]
        kernel_XO = kernel.reshape(-1, kernel.shape[-1])
        if update:
            u_O, v_X = power_iteration(jax.lax.stop_gradient(kernel_XO), self.u_O[...])
            self.u_O[...], self.v_X[...] = u_O, v_X
        return kernel / spectral_norm(kernel_XO, self.u_O[...], self.v_X[...])

    def with_bias(self, x: jax.Array) -> jax.Array:
        if self.bias_O is None:
            return x
        return x + self.bias_O[...].astype(x.dtype).reshape(*[1] * (x.ndim - 1), -1)


class SpectralConv(SpectralKernel):
    """A convolution of stride 1 that keeps height and width. Kernel: [size, size, I, O]."""

    def __init__(self, size: int, I: int, O: int, rngs: nnx.Rngs, *, dtype, bias: bool = True):  # noqa: E741
        super().__init__((size, size, I, O), rngs, dtype=dtype, bias=bias)

    def __call__(self, x_BHWI: jax.Array, update: bool) -> jax.Array:
        return self.with_bias(convolve(x_BHWI, self.normalised(update), self.dtype))

    def of_doubled(self, x_BHWI: jax.Array, update: bool) -> jax.Array:
        """The convolution of `double(x)`."""
        return self.with_bias(convolve_doubled(x_BHWI, self.normalised(update), self.dtype))

    def then_halved(self, x_BHWI: jax.Array, update: bool) -> jax.Array:
        """`halve` of the convolution of x."""
        return self.with_bias(convolve_and_halve(x_BHWI, self.normalised(update), self.dtype))


class SpectralDense(SpectralKernel):
    """Kernel: [I, O]."""

    def __init__(self, I: int, O: int, rngs: nnx.Rngs, *, dtype):  # noqa: E741
        super().__init__((I, O), rngs, dtype=dtype, bias=True)

    def __call__(self, x_BI: jax.Array, update: bool) -> jax.Array:
        return self.with_bias(multiply("BI,IO->BO", x_BI, self.normalised(update), self.dtype))


class SpectralEmbedding(SpectralKernel):
    """A row for each class. Kernel: [N, O]."""

    def __init__(self, N: int, O: int, rngs: nnx.Rngs):  # noqa: E741
        super().__init__((N, O), rngs, dtype=jnp.float32, bias=False)

    def __call__(self, labels_B: jax.Array, update: bool) -> jax.Array:
        return self.normalised(update)[labels_B]


# --- Convolutions -------------------------------------------------------------------------


def double(x_BHWC: jax.Array) -> jax.Array:
    """Each pixel as four: the nearest neighbour in an image of twice the size."""
    return jnp.repeat(jnp.repeat(x_BHWC, 2, axis=1), 2, axis=2)


def halve(x_BHWC: jax.Array) -> jax.Array:
    """The mean of each two by two pixels."""
    B, H, W, C = x_BHWC.shape
    return jnp.mean(x_BHWC.reshape(B, H // 2, 2, W // 2, 2, C), axis=(2, 4))


def convolve(x_BHWI: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Stride 1, zeros around the image, so that height and width stay."""
    if kernel.shape[0] == 1:
        return multiply("BHWI,IO->BHWO", x_BHWI, kernel[0, 0], dtype).astype(dtype)
    return jax.lax.conv_general_dilated(
        x_BHWI.astype(dtype),
        kernel.astype(dtype),
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision="highest" if dtype == jnp.float32 else None,
    )


def convolve_doubled(x_BHWI: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`convolve(double(x), kernel)` of a 3 x 3 kernel, with about half of the products.

    Of three pixels in a row two are copies of one: the sum of their weights does for both. So each
    of the four pixels that one becomes sees two by two pixels of x.
    """
    B, H, W, I = x_BHWI.shape  # noqa: E741
    O = kernel.shape[-1]  # noqa: E741
    kernels = _paired(_paired(kernel, axis=0), axis=2)  # [W phase, H phase, 2, 2, I, O]
    kernel_XO = jnp.einsum("bahwIO->hwIabO", kernels).reshape(4 * I, 4 * O)
    x = jnp.pad(x_BHWI.astype(dtype), ((0, 0), (1, 1), (1, 1), (0, 0)))
    seen = [x[:, h : h + H + 1, w : w + W + 1] for h in (0, 1) for w in (0, 1)]
    y_BHWX = multiply("BHWX,XO->BHWO", jnp.concatenate(seen, axis=-1), kernel_XO, dtype)
    y = y_BHWX.reshape(B, H + 1, W + 1, 2, 2, O)
    rows = [jnp.stack([y[:, a : a + H, b : b + W, a, b] for b in (0, 1)], axis=3) for a in (0, 1)]
    return jnp.stack(rows, axis=2).reshape(B, 2 * H, 2 * W, O).astype(dtype)


def _paired(kernel: jax.Array, axis: int) -> jax.Array:
    """Of three weights along `axis`, those of two pixels: [phase, ..., 2, ...]."""
    first, middle, last = (jnp.take(kernel, i, axis) for i in range(3))
    even = jnp.stack([first, middle + last], axis)
    return jnp.stack([even, jnp.stack([first + middle, last], axis)])


def convolve_and_halve(x_BHWI: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`halve(convolve(x, kernel))` of a 3 x 3 kernel, with a quarter of the products.

    The mean of products is the product of the mean: it is taken first, of x moved by each tap.
    """
    _, H, W, I = x_BHWI.shape  # noqa: E741
    x = jnp.pad(x_BHWI.astype(dtype), ((0, 0), (1, 1), (1, 1), (0, 0)))
    x = x[:, :-1] + x[:, 1:]
    x = (x[:, :, :-1] + x[:, :, 1:]) / 4
    taps = [x[:, i : i + H : 2, j : j + W : 2] for i in range(3) for j in range(3)]
    means_BHWX = jnp.concatenate(taps, axis=-1)
    kernel_XO = kernel.reshape(9 * I, -1)
    return multiply("BHWX,XO->BHWO", means_BHWX, kernel_XO, dtype).astype(dtype)
