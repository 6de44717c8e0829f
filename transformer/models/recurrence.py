"""Recurrences: a scan over time steps that multiply by the same matrices."""

from collections.abc import Callable
from typing import Any

import jax

from transformer.models.numerics import multiply

# Matrices by name, each with the einsum that a vector x enters as the first operand.
Products = dict[str, tuple[str, jax.Array]]
# times(name, x): the product of x with the matrix of that name.
Times = Callable[[str, jax.Array], jax.Array]


def times_matrices(products: Products, dtype: jax.typing.DTypeLike) -> Times:
    """The products of a single step."""
    return lambda name, x: multiply(products[name][0], x, products[name][1], dtype)


def scan(
    step: Callable[[jax.Array, Any, Any, Times], tuple[jax.Array, Any]],
    products: Products,
    shared: Any,
    first: jax.Array,
    inputs: Any,
    *,
    dtype: jax.typing.DTypeLike,
    reverse: bool = False,
) -> Any:
    """The outputs of all steps, stacked, as `jax.lax.scan` has them: T is their first axis.

    step(state, inputs, shared, times) -> state, outputs. It must multiply by each of the
    matrices once, through `times`. `shared` is any tree that all steps read. `step` must not
    close over arrays that want a gradient.

    The gradient of `jax.lax.scan` would add to that of every matrix at every step, which takes
    as long as a step's own work. Here it is one product over all steps for each matrix.
    """
    specs = {name: spec for name, (spec, _) in products.items()}
    result_shapes = {}

    def run(matrices, shared, first, inputs, added):
        """Outputs and the products' operands. Zeros are added to results, for their gradient."""

        def body(state, at_step):
            inputs, added = at_step
            operands = {}

            def times(name, x):
                operands[name] = x
                y = multiply(specs[name], x, matrices[name], dtype)
                result_shapes[name] = y
                return y if added is None else y + added[name]

            state, outputs = step(state, inputs, shared, times)
            return state, (outputs, operands)

        return jax.lax.scan(body, first, (inputs, added), reverse=reverse)[1]
