"""Convolutions of images, with stride 1 and zeros around the image: height and width stay.

The letters are those of spectral.py. `convolve_doubled` and `convolve_and_halve` have custom
gradients: the image gradient of one is the other, with a turned kernel.
"""

import functools

import jax
import jax.numpy as jnp

from transformer.models.numerics import multiply

FEW = 8  # channels


def double(x_BHWC: jax.Array) -> jax.Array:
    """An image of twice the size, each pixel as four: nearest-neighbour upsampling."""
    return jnp.repeat(jnp.repeat(x_BHWC, 2, axis=1), 2, axis=2)


def halve(x_BHWC: jax.Array) -> jax.Array:
    """The means of two by two pixels."""
    B, H, W, C = x_BHWC.shape
    return jnp.mean(x_BHWC.reshape(B, H // 2, 2, W // 2, 2, C), axis=(2, 4))


def convolve(x_BHWI: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The convolution by a kernel [size, size, I, O] of odd size."""
    if kernel.shape[0] == 1:
        return multiply("BHWI,IO->BHWO", x_BHWI, kernel[0, 0], dtype).astype(dtype)
    return _convolve(jnp.dtype(dtype), x_BHWI.astype(dtype), kernel)


def _either(dtype: jnp.dtype, x_BHWI: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution by the compiler; or, for few outputs, as one product with all taps.

    The product's outputs are shifted and added. On a CPU this takes less than half the time for
    the three colours of an image.
    """
    size, _, I, O = kernel.shape  # noqa: E741
    if O > FEW:
        return _by_compiler(x_BHWI, kernel.astype(dtype))
    _, H, W, _ = x_BHWI.shape
    taps_IX = kernel.transpose(2, 0, 1, 3).reshape(I, -1)
    y = multiply("BHWX,XO->BHWO", x_BHWI, taps_IX, dtype)
    y = jnp.pad(y, ((0, 0), (size // 2, size // 2), (size // 2, size // 2), (0, 0)))
    moved = [
        y[:, i : i + H, j : j + W, (i * size + j) * O : (i * size + j + 1) * O]
        for i in range(size)
        for j in range(size)
    ]
    return sum(moved).astype(dtype)


def _by_compiler(x, kernel, dimensions=("NHWC", "HWIO", "NHWC"), padding="SAME", sums=None):
    """sums: the type of sums; None for that of x."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (1, 1),
        padding,
        dimension_numbers=dimensions,
        precision="highest" if x.dtype == jnp.float32 else None,
        preferred_element_type=sums,
    )


_convolve = jax.custom_vjp(_either, nondiff_argnums=(0,))


def _convolve_forward(dtype, x_BHWI, kernel):
    return _either(dtype, x_BHWI, kernel), (x_BHWI, kernel)


def _convolve_backward(dtype, kept, gradient_BHWO):
    x_BHWI, kernel = kept
    x_gradient = _convolve(dtype, gradient_BHWO, _turned(kernel))
    # The kernel's gradient is a convolution with batch and channels exchanged. Its first operand
    # is copied in another order, which is slow, so the one with fewer channels goes first.
    padding = 2 * [2 * [kernel.shape[0] // 2]]
    if x_BHWI.shape[-1] <= gradient_BHWO.shape[-1]:
        dimensions = ("CHWN", "IHWO", "HWNC")
        found = _by_compiler(x_BHWI, gradient_BHWO, dimensions, padding, kernel.dtype)
    else:
        dimensions = ("CHWN", "IHWO", "HWCN")
        turned = _by_compiler(gradient_BHWO, x_BHWI, dimensions, padding, kernel.dtype)
        found = turned[::-1, ::-1]
    return x_gradient, found


_convolve.defvjp(_convolve_forward, _convolve_backward)


def _turned(kernel: jax.Array) -> jax.Array:
    """The kernel for the gradient of the image: flipped both ways, inputs and outputs swapped."""
    return kernel[::-1, ::-1].swapaxes(2, 3)


def _kernel_gradient(dtype, kernel, matrix_of, seen_BHWX, gradient_BHWO) -> jax.Array:
    """The kernel's gradient, if outputs are what each of them sees times `matrix_of(kernel)`."""

    def product(kernel: jax.Array) -> jax.Array:
        y_BHWO = multiply("BHWX,XO->BHWO", seen_BHWX, matrix_of(kernel), dtype)
        return y_BHWO.astype(dtype)

    return jax.vjp(product, kernel)[1](gradient_BHWO)[0]


def convolve_doubled(x_BHWI: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`convolve(double(x), kernel)` of a 3 x 3 kernel, with about half of the products.

    Of three pixels in a row two are copies of one, so the sum of their weights serves both. Each
    of the four pixels that one becomes thus sees two by two pixels of x.
    """
    return _convolve_doubled(jnp.dtype(dtype), x_BHWI.astype(dtype), kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve_doubled(dtype: jnp.dtype, x_BHWI: jax.Array, kernel: jax.Array) -> jax.Array:
    return _convolve_doubled_forward(dtype, x_BHWI, kernel)[0]


def _convolve_doubled_forward(dtype, x_BHWI, kernel):
    B, H, W, _ = x_BHWI.shape
    x = jnp.pad(x_BHWI, ((0, 0), (1, 1), (1, 1), (0, 0)))
    seen = [x[:, h : h + H + 1, w : w + W + 1] for h in (0, 1) for w in (0, 1)]
    seen_BHWX = jnp.concatenate(seen, axis=-1)
    y_BHWX = multiply("BHWX,XO->BHWO", seen_BHWX, _of_phases(kernel), dtype)
    y = y_BHWX.astype(dtype).reshape(B, H + 1, W + 1, 2, 2, -1)
    rows = [jnp.stack([y[:, a : a + H, b : b + W, a, b] for b in (0, 1)], axis=3) for a in (0, 1)]
    y_BHWO = jnp.stack(rows, axis=2).reshape(B, 2 * H, 2 * W, -1)
    return y_BHWO, (seen_BHWX, kernel)


def _convolve_doubled_backward(dtype, kept, gradient):
    seen_BHWX, kernel = kept
    x_gradient = 4 * convolve_and_halve(gradient, _turned(kernel), dtype)
    phases = [
        jnp.pad(gradient[:, a::2, b::2], ((0, 0), (a, 1 - a), (b, 1 - b), (0, 0)))
        for a in (0, 1)
        for b in (0, 1)
    ]
    gradient_BHWO = jnp.concatenate(phases, axis=-1)
    return x_gradient, _kernel_gradient(dtype, kernel, _of_phases, seen_BHWX, gradient_BHWO)


_convolve_doubled.defvjp(_convolve_doubled_forward, _convolve_doubled_backward)


def _of_phases(kernel: jax.Array) -> jax.Array:
    """The matrix from two by two pixels to the four that one becomes, [4 I, 4 O]."""
    _, _, I, O = kernel.shape  # noqa: E741
    kernels = _paired(_paired(kernel, axis=0), axis=2)  # [W phase, H phase, 2, 2, I, O]
    return jnp.einsum("bahwIO->hwIabO", kernels).reshape(4 * I, 4 * O)


def _paired(kernel: jax.Array, axis: int) -> jax.Array:
    """The weights of two pixels, from three weights along `axis`: [phase, ..., 2, ...]."""
    first, middle, last = (jnp.take(kernel, i, axis) for i in range(3))
    even = jnp.stack([first, middle + last], axis)
    return jnp.stack([even, jnp.stack([first + middle, last], axis)])


def convolve_and_halve(x_BHWI: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`halve(convolve(x, kernel))` of a 3 x 3 kernel, with a quarter of the products.

    The mean of products is the product of the mean, so the mean comes first: of x shifted by each
    tap.
    """
    return _convolve_and_halve(jnp.dtype(dtype), x_BHWI.astype(dtype), kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve_and_halve(dtype: jnp.dtype, x_BHWI: jax.Array, kernel: jax.Array) -> jax.Array:
    return _convolve_and_halve_forward(dtype, x_BHWI, kernel)[0]


def _convolve_and_halve_forward(dtype, x_BHWI, kernel):
    _, H, W, _ = x_BHWI.shape
    x = jnp.pad(x_BHWI, ((0, 0), (1, 1), (1, 1), (0, 0)))
    x = x[:, :-1] + x[:, 1:]
    x = (x[:, :, :-1] + x[:, :, 1:]) / 4
    taps = [x[:, i : i + H : 2, j : j + W : 2] for i in range(3) for j in range(3)]
    means_BHWX = jnp.concatenate(taps, axis=-1)
    y_BHWO = multiply("BHWX,XO->BHWO", means_BHWX, _of_taps(kernel), dtype)
    return y_BHWO.astype(dtype), (means_BHWX, kernel)


def _convolve_and_halve_backward(dtype, kept, gradient):
    means_BHWX, kernel = kept
    x_gradient = convolve_doubled(gradient / 4, _turned(kernel), dtype)
    return x_gradient, _kernel_gradient(dtype, kernel, _of_taps, means_BHWX, gradient)


_convolve_and_halve.defvjp(_convolve_and_halve_forward, _convolve_and_halve_backward)


def _of_taps(kernel: jax.Array) -> jax.Array:
    """The matrix from all taps, one after the other, [9 I, O]."""
    return kernel.reshape(-1, kernel.shape[-1])
