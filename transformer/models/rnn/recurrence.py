"""Recurrences: the cells of RNNs, and the loop that runs them over a sequence.

Letters of this file: I input, H hidden units, G the gates' inputs (a few times H).

A cell does two things. `inputs` multiplies the inputs of all steps with their weights, in one
product before the loop. `__call__` is one step; it asks `product` for each product with a weight,
so that `recur` can take those products' gradients out of the loop.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from transformer.models.numerics import multiply

# By name: an einsum specification and the weight, its second operand.
Weights = dict[str, tuple[str, jax.Array]]
Product = Callable[[str, jax.Array], jax.Array]  # (name of a weight, first operand) -> product
State = tuple[jax.Array, ...]  # of a cell, each [B, H]; what other layers see comes first


def products(weights: Weights, dtype: jnp.dtype) -> Product:
    """Products with these weights, for a single step."""
    return lambda name, x: multiply(weights[name][0], x, weights[name][1], dtype)


def recur(
    step: Callable[[Product, Any, Any, Any], tuple[Any, Any]],
    weights: Weights,
    fixed: Any,
    carry: Any,
    xs: Any,
    *,
    dtype: jnp.dtype,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`jax.lax.scan` of `step(product, fixed, carry, x) -> carry, y`.

    The gradient of a weight is a sum over steps. A scan would add to it at every step, which
    reads and writes the whole matrix; here it is one product over all steps, after the loop.

    fixed: all other arrays that the step uses and that have a gradient.
    """
    specs = {name: spec for name, (spec, _) in weights.items()}

    def scan(weights, fixed, carry, xs, probes):
        def body(carry, inputs):
            x, probe = inputs
            operands = {}

            def product(name, operand):
                operands[name] = operand
                found = multiply(specs[name], operand, weights[name], dtype)
                return checkpoint_name(found + probe[name] if probe else found, "product")

            carry, y = step(product, fixed, carry, x)
            return carry, (y, operands if probe else None)

        # The backward pass computes all but the products again, from these: keeping the rest
        # takes longer.
        keep = jax.checkpoint_policies.save_only_these_names("product")
        body = jax.checkpoint(body, prevent_cse=False, policy=keep)
        carry, (ys, operands) = jax.lax.scan(body, carry, (xs, probes), reverse=reverse)
        return (carry, ys), operands

    @jax.custom_vjp
    def run(weights, fixed, carry, xs):
        return scan(weights, fixed, carry, xs, {})[0]

    def forward(weights, fixed, carry, xs):
        # Zeros added to the products. Their gradients are those of the products.
        probes = _zeros_of_products(step, specs, weights, fixed, carry, xs, dtype)
        differentiable = functools.partial(scan, jax.lax.stop_gradient(weights))
        outputs, backward, operands = jax.vjp(
            differentiable, fixed, carry, xs, probes, has_aux=True
        )
        return outputs, (weights, operands, backward)

    def backward(kept, gradients):
        weights, operands, backward = kept
        *others, of_products = backward(gradients)
        of_weights = {}
        for name, spec in specs.items():
            first, rest = spec.split(",")
            second, result = rest.split("->")
            whole = f"Z{first},{second}->Z{result}"  # Z: the steps
            together = functools.partial(multiply, whole, operands[name], dtype=dtype)
            of_weights[name] = jax.vjp(together, weights[name])[1](of_products[name])[0]
        return of_weights, *others

    run.defvjp(forward, backward)
    return run({name: weight for name, (_, weight) in weights.items()}, fixed, carry, xs)


def _zeros_of_products(step, specs, weights, fixed, carry, xs, dtype):
    shapes = {}

    def record(weights, fixed, carry, xs):
        def product(name, operand):
            found = multiply(specs[name], operand, weights[name], dtype)
            shapes[name] = found
            return found

        return step(product, fixed, carry, jax.tree.map(lambda x: x[0], xs))

    jax.eval_shape(record, weights, fixed, carry, xs)
    count = len(jax.tree.leaves(xs)[0])
    return {name: jnp.zeros((count, *x.shape), x.dtype) for name, x in shapes.items()}


class Initialization(NamedTuple):
    """The initial values of an RNN's parameters."""

    embedding: nnx.Initializer
    recurrent: nnx.Initializer  # each gate's matrix by itself
    alignment: nnx.Initializer
    energy: nnx.Initializer  # of additive attention, as a matrix of one column
    other: nnx.Initializer
    bias: nnx.Initializer

    def matrix(self, kind: str, shape: tuple[int, int], rngs: nnx.Rngs, count: int = 1):
        """A parameter: `count` matrices side by side, each initialised by itself."""
        initializer = getattr(self, kind)
        matrices = [initializer(rngs.params(), shape, jnp.float32) for _ in range(count)]
        return nnx.Param(jnp.concatenate(matrices, axis=1))

    def vector(self, size: int, rngs: nnx.Rngs) -> nnx.Param:
        return nnx.Param(self.bias(rngs.params(), (size,), jnp.float32))


def _uniform(bound: float) -> Initialization:
    """All parameters between -bound and bound, including biases."""

    def uniform(key, shape, dtype):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return Initialization(*[uniform] * 6)


_normal, _glorot = nnx.initializers.normal, nnx.initializers.xavier_uniform()
_orthogonal, _zeros = nnx.initializers.orthogonal(), nnx.initializers.zeros
INITIALIZATIONS = {
    # Appendix B.1 of Bahdanau et al. The values are so small that a short training with Adam
    # hardly changes them.
    "bahdanau": Initialization(
        _normal(0.01), _orthogonal, _normal(0.001), _zeros, _normal(0.01), _zeros
    ),
    "sutskever": _uniform(0.08),
    "luong": _uniform(0.1),
    # The usual one.
    "glorot": Initialization(_glorot, _orthogonal, _glorot, _glorot, _glorot, _zeros),
}


class Cell(nnx.Module):
    """The base of the cells. `biases` is the number of biases per gate.

    The second bias, as in cuDNN and PyTorch, is added to the product with the state.
    """

    gates: int
    parts = 1  # arrays in a state
    recurrent: dict[str, int]  # matrices that act on the state: the gates side by side in each

    def __init__(
        self,
        d_in: int,
        hidden_size: int,
        *,
        biases: int,
        initialization: Initialization,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        size = self.gates * hidden_size
        self.input_IG = initialization.matrix("other", (d_in, hidden_size), rngs, self.gates)
        self.biases, self.hidden_size, self.dtype = biases, hidden_size, dtype
        if biases:
            self.bias_G = initialization.vector(size, rngs)
        if biases == 2:
            self.state_bias_G = initialization.vector(size, rngs)
        for name, count in self.recurrent.items():
            shape = hidden_size, hidden_size
            setattr(self, name, initialization.matrix("recurrent", shape, rngs, count))

    def inputs(self, x_BTI: jax.Array) -> jax.Array:
        """The terms that the inputs add to the gates at all steps, [T, B, G]."""
        x_TBG = multiply("TBI,IG->TBG", x_BTI.swapaxes(0, 1), self.input_IG[...], self.dtype)
        return x_TBG + self.bias()[None, None] if self.biases else x_TBG

    def bias(self) -> jax.Array:
        """The terms that biases add to the gates before a step, [G]."""
        return self.bias_G[...] + self.state_bias_G[...] if self.biases == 2 else self.bias_G[...]

    def weights(self) -> Weights:
        """The weights that a step multiplies the state with."""
        raise NotImplementedError

    def fixed(self) -> jax.Array | None:
        """The other arrays that a step needs."""
        return None

    def __call__(self, product: Product, fixed: Any, state: State, x_BG: jax.Array) -> State:
        """The state after one more input; x: what the inputs add to the gates."""
        raise NotImplementedError


class GatedUnit(Cell):
    """The gated hidden unit of Bahdanau et al. 2015, Appendix A.1.1 (and of Cho et al. 2014).

    The update gate z weighs the *new* state, and r acts before the product with U.
    """

    gates = 3  # z, r, candidate
    recurrent = {"gates_HX": 2, "candidate_HH": 1}  # U_z and U_r; U

    def weights(self) -> Weights:
        return {
            "gates": ("BH,HX->BX", self.gates_HX[...]),
            "candidate": ("BI,IH->BH", self.candidate_HH[...]),
        }

    def __call__(self, product, fixed, state, x_BG):
        (s_BH,), H = state, self.hidden_size
        gates_BX = jax.nn.sigmoid(x_BG[:, : 2 * H] + product("gates", s_BH))
        z_BH, r_BH = jnp.split(gates_BX, 2, axis=-1)
        candidate_BH = jnp.tanh(x_BG[:, 2 * H :] + product("candidate", r_BH * s_BH))
        return ((1 - z_BH) * s_BH + z_BH * candidate_BH,)


class GRU(Cell):
    """The gated unit of cuDNN, PyTorch and most later code.

    The update gate z weighs the *old* state, and r acts after the product, on a bias, too.
    """

    gates = 3  # z, r, candidate
    recurrent = {"state_HG": 3}

    def bias(self) -> jax.Array:
        if self.biases < 2:
            return self.bias_G[...]
        H = self.hidden_size
        return self.bias_G[...].at[: 2 * H].add(self.state_bias_G[...][: 2 * H])

    def weights(self) -> Weights:
        return {"state": ("BH,HG->BG", self.state_HG[...])}

    def fixed(self) -> jax.Array | None:
        return self.state_bias_G[...][2 * self.hidden_size :] if self.biases == 2 else None

    def __call__(self, product, fixed, state, x_BG):
        (s_BH,), H = state, self.hidden_size
        from_state_BG = product("state", s_BH)
        gates_BX = jax.nn.sigmoid(x_BG[:, : 2 * H] + from_state_BG[:, : 2 * H])
        z_BH, r_BH = jnp.split(gates_BX, 2, axis=-1)
        old_BH = from_state_BG[:, 2 * H :]
        if fixed is not None:
            old_BH += fixed[None]
        candidate_BH = jnp.tanh(x_BG[:, 2 * H :] + r_BH * old_BH)
        return ((1 - z_BH) * candidate_BH + z_BH * s_BH,)


class LSTM(Cell):
    """Long short-term memory with a forget gate and without peepholes (Zaremba et al. 2014)."""

    gates = 4  # input, forget, output, candidate
    parts = 2  # h, c
    recurrent = {"state_HG": 4}

    def weights(self) -> Weights:
        return {"state": ("BH,HG->BG", self.state_HG[...])}

    def __call__(self, product, fixed, state, x_BG):
        (h_BH, c_BH), H = state, self.hidden_size
        x_BG = x_BG + product("state", h_BH)
        i_BH, f_BH, o_BH = jnp.split(jax.nn.sigmoid(x_BG[:, : 3 * H]), 3, axis=-1)
        c_BH = f_BH * c_BH + i_BH * jnp.tanh(x_BG[:, 3 * H :])
        return o_BH * jnp.tanh(c_BH), c_BH


CELLS = {"gated_unit": GatedUnit, "gru": GRU, "lstm": LSTM}


def run_cell(
    cell: Cell,
    x_BTI: jax.Array,
    starts_BT: jax.Array,
    initial: State | None = None,
    *,
    more_BTG: jax.Array | None = None,
    reverse: bool = False,
) -> State:
    """The states of a whole row, each [B, T, H].

    initial: each [B, T, H], the state before a token where `starts_BT` is true; None for zeros.
    more_BTG: further terms to add to the gates.
    """

    def step(product, fixed, state, inputs):
        x_BG, starts_B1, first = inputs
        state = begin(state, first, starts_B1)
        state = cell(product, fixed, state, x_BG)
        return state, state

    x_TBG = cell.inputs(x_BTI)
    if more_BTG is not None:
        x_TBG += steps_first(more_BTG)
    zeros = (jnp.zeros((x_TBG.shape[1], cell.hidden_size), x_TBG.dtype),) * cell.parts
    xs = x_TBG, starts_BT.T[..., None], initial and steps_first(initial)
    _, states = recur(
        step, cell.weights(), cell.fixed(), zeros, xs, dtype=cell.dtype, reverse=reverse
    )
    return steps_first(states)


def begin(state: State, first: State | None, starts_B1: jax.Array) -> State:
    """The state before a token: `first`, or zeros, where a sentence starts."""
    first = first or (0,) * len(state)
    return tuple(jnp.where(starts_B1, a, b) for a, b in zip(first, state, strict=True))


def steps_first(tree: Any) -> Any:
    """[B, T, ...] as [T, B, ...], and back."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1), tree)
