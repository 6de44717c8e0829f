"""The parts of RNNs: cells, the loop over a sequence, attention, initial values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rnn_papers
from flax import nnx

from transformer.models.functional import FunctionalModel
from transformer.models.rnn.recurrence import (
    CELLS,
    INITIALIZATIONS,
    Initialization,
    recur,
    run_cell,
)

GLOROT, FLOAT32 = INITIALIZATIONS["glorot"], jnp.dtype("float32")


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(FLOAT32)


# --- Cells --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "biases"), [("gated_unit", 1), ("gru", 2), ("lstm", 0), ("lstm", 2)]
)
def test_cells_are_their_equations(name, biases, random_params):
    """Rows of two sentences, of which each starts from zeros or from a state of its own."""
    options = {"biases": biases, "initialization": GLOROT, "dtype": FLOAT32}
    model = FunctionalModel(lambda rngs: CELLS[name](5, 7, rngs=rngs, **options))
    params, cell = random_params(model), CELLS[name]
    gates = cell.gates * 7
    assert sum(x.size for x in jax.tree.leaves(params)) == gates * (5 + 7 + biases)

    x, starts = draw(2, 6, 5), np.array([[1, 0, 0, 0, 1, 0], [1, 0, 1, 0, 0, 0]]) > 0
    initial = tuple(draw(2, 6, 7, seed=part) for part in range(cell.parts))

    @jax.jit
    def run(params, initial):
        bound = model.bind(params)
        return run_cell(bound, x, starts), run_cell(bound, x, starts, initial)

    from_zeros, from_initial = jax.tree.map(np.asarray, run(params, initial))
    p = {name: np.asarray(value, np.float64) for name, value in params.items()}
    equations = rnn_papers.CELLS[name]
    for b in range(2):
        zeros = first = (np.zeros(7),) * cell.parts
        for t in range(6):
            if starts[b, t]:
                zeros, first = (np.zeros(7),) * cell.parts, [part[b, t] for part in initial]
            zeros, first = (equations(p, x[b, t], state) for state in (zeros, first))
            for found, expected in ((from_zeros, zeros), (from_initial, first)):
                for part in range(cell.parts):
                    np.testing.assert_allclose(found[part][b, t], expected[part], atol=2e-6)


# --- The loop -----------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
def test_the_loops_gradient_is_that_of_a_scan(reverse):
    """For weights (of all rows and of each), what is fixed, the carry and the inputs."""
    B, H, K, T = 3, 5, 4, 6
    weights, fixed = {"all": draw(H, H), "row": draw(B, H, K)}, {"bias": draw(H), "none": None}
    carry, xs = draw(B, H), (draw(T, B, H), np.arange(T * B).reshape(T, B, 1) % 4 > 0)
    specs = {"all": "BI,IH->BH", "row": "BH,BHK->BK"}

    def step(product, fixed, carry, x):
        value, kept = x
        h = jnp.tanh(product("all", carry) + value * fixed["bias"][None])
        return jnp.where(kept, h, 0), (h, product("row", h * value))

    def ours(weights, fixed, carry, inputs):
        weights = {name: (specs[name], weight) for name, weight in weights.items()}
        xs_ = inputs, xs[1]
        return recur(step, weights, fixed, carry, xs_, dtype=FLOAT32, reverse=reverse)

    def plain(weights, fixed, carry, inputs):
        def body(carry, x):
            return step(lambda n, a: jnp.einsum(specs[n], a, weights[n]), fixed, carry, x)

        return jax.lax.scan(body, carry, (inputs, xs[1]), reverse=reverse)

    def with_gradients(run):
        def loss(*arguments):
            carry, (h, y) = run(*arguments)
            return jnp.sum(jnp.sin(3 * y)) + jnp.sum(h**2) + jnp.sum(jnp.cos(carry)), (carry, h, y)

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True))

    arguments = weights, fixed, carry, xs[0]
    found, expected = with_gradients(ours)(*arguments), with_gradients(plain)(*arguments)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected
    )
    assert all(np.abs(x).max() > 0.1 for x in jax.tree.leaves(found[1]))


# --- Initial values -----------------------------------------------------------------------


def test_the_recurrent_matrices_begin_orthogonal_gate_by_gate():
    for name in ("bahdanau", "glorot"):
        matrix_HG = INITIALIZATIONS[name].matrix("recurrent", (7, 7), nnx.Rngs(0), 3)[...]
        parts = np.split(np.asarray(matrix_HG), 3, axis=1)
        for part in parts:
            np.testing.assert_allclose(part.T @ part, np.eye(7), atol=1e-5)
        assert np.abs(parts[0] - parts[1]).max() > 0.1


def test_bahdanaus_other_matrices():
    """Appendix B.1: standard deviations, and what is zero."""
    deviations = {"embedding": 0.01, "other": 0.01, "alignment": 0.001, "energy": 0.0}
    for kind, deviation in deviations.items():
        matrix = INITIALIZATIONS["bahdanau"].matrix(kind, (61, 67), nnx.Rngs(0))[...]
        np.testing.assert_allclose(np.std(matrix), deviation, rtol=0.05)
        assert np.abs(np.mean(matrix)) <= 0.05 * deviation
    assert not np.any(INITIALIZATIONS["bahdanau"].vector(7, nnx.Rngs(0))[...])


@pytest.mark.parametrize(("name", "bound"), [("sutskever", 0.08), ("luong", 0.1)])
def test_uniform_initial_values_reach_their_bounds(name, bound):
    """Of every kind of parameter, biases among them."""
    init = INITIALIZATIONS[name]
    for kind in Initialization._fields:
        matrix = getattr(init, kind)(jax.random.key(0), (41, 43), FLOAT32)
        assert 0.98 * bound < np.max(matrix) <= bound
        assert -bound <= np.min(matrix) < -0.98 * bound
