"""Spectral normalisation: weights divided by their largest singular value (arXiv 1802.05957).

Letters of the files about images, where they differ from the package's: H height, W width,
C channels, I and O input and output channels, P positions of an image (H * W), N classes,
X all axes of a kernel but the last, flattened, Z noise.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.models.numerics import multiply
from transformer.models.sagan.image_convolution import (
    convolve,
    convolve_and_halve,
    convolve_doubled,
)

EPSILON = 1e-12  # added to the norms of vectors


class PowerVector(nnx.Variable):
    """A vector of the power iteration: state that no gradient updates."""


def power_iteration(kernel_XO: jax.Array, u_O: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One iteration, v first: vectors (u, v) closer to those of the largest singular value."""
    v_X = _unit(jnp.einsum("XO,O->X", kernel_XO, u_O, precision="highest"))
    u_O = _unit(jnp.einsum("XO,X->O", kernel_XO, v_X, precision="highest"))
    return u_O, v_X


def spectral_norm(kernel_XO: jax.Array, u_O: jax.Array, v_X: jax.Array) -> jax.Array:
    """v^T W u; its gradient treats u and v as constants."""
    return jnp.einsum("X,XO,O->", v_X, kernel_XO, u_O, precision="highest")


def _unit(x: jax.Array) -> jax.Array:
    return x / (jnp.linalg.norm(x) + EPSILON)


class SpectralKernel(nnx.Module):
    """A kernel, its last axis that of the outputs, with the vectors of its power iteration."""

    def __init__(self, shape: tuple[int, ...], rngs: nnx.Rngs, *, dtype: jnp.dtype, bias: bool):
        self.dtype = dtype
        kernel = nnx.initializers.xavier_uniform()(rngs.params(), shape, jnp.float32)
        u_O = _unit(jax.random.normal(rngs.params(), shape[-1:], jnp.float32))
        u_O, v_X = power_iteration(kernel.reshape(-1, shape[-1]), u_O)
        self.kernel = nnx.Param(kernel)
        self.bias_O = nnx.Param(jnp.zeros(shape[-1:], jnp.float32)) if bias else None
        self.u_O, self.v_X = PowerVector(u_O), PowerVector(v_X)

    def normalised(self, update: bool) -> jax.Array:
        """The kernel divided by its spectral norm. update: iterate first, and keep the vectors."""
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
    """A linear layer. Kernel: [I, O]."""

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
