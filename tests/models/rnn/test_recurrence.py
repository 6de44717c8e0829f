"""The parts of RNNs: cells, the loop over a sequence, attention, initial values."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rnn_papers
from flax import nnx

from transformer.models.functional import FunctionalModel
from transformer.models.rnn.alignment import Alignment
from transformer.models.rnn.recurrence import (
    CELLS,
    INITIALIZATIONS,
    Initialization,
    products,
    recur,
    run_cell,
)

GLOROT, FLOAT32 = INITIALIZATIONS["glorot"], jnp.dtype("float32")


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), FLOAT32)


# --- Cells --------------------------------------------------------------------------------


@pytest.mark.parametrize("biases", [0, 1, 2])
@pytest.mark.parametrize("name", CELLS)
def test_cells_are_their_equations(name, biases, random_params):
    """Rows of two sentences, of which each starts from zeros or from a state of its own."""
    options = {"biases": biases, "initialization": GLOROT, "dtype": FLOAT32}
    model = FunctionalModel(lambda rngs: CELLS[name](5, 7, rngs=rngs, **options))
    params, cell = random_params(model), CELLS[name]
    gates = cell.gates * 7
    assert sum(x.size for x in jax.tree.leaves(params)) == gates * (5 + 7 + biases)

    x, starts = draw(2, 6, 5), jnp.array([[1, 0, 0, 0, 1, 0], [1, 0, 1, 0, 0, 0]]) > 0
    initial = tuple(draw(2, 6, 7, seed=part) for part in range(cell.parts))

    @jax.jit
    def run(params, initial):
        bound = model.bind(params)
        return run_cell(bound, x, starts), run_cell(bound, x, starts, initial)

    from_zeros, from_initial = run(params, initial)
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
    carry, xs = draw(B, H), (draw(T, B, H), jnp.arange(T * B).reshape(T, B, 1) % 4 > 0)
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


# --- Attention ----------------------------------------------------------------------------

H2 = [[1.0, 0.0], [0.0, 2.0]]


def attend(alignment, state, annotations, mask):
    """The context and the weights of one state."""

    @jax.jit
    def run(annotations, state, mask):
        keys = alignment.keys(annotations)
        product = products(alignment.weights(annotations, keys), FLOAT32)
        return alignment(product, alignment.fixed(keys), state, mask)

    found = run(np.float32([annotations]), np.float32([[state]]), np.array([[mask]]) > 0)
    context, weights = map(np.asarray, found)
    return context[0, 0], weights[0, 0]


def alignment_of(score, size, window=0):
    sizes = {"hidden_size": size, "annotation_size": size, "attention_size": size}
    choices = {"attention": score, "attention_bias": False, "attention_window": window}
    config = SimpleNamespace(**sizes, **choices, initialization="glorot", dtype="float32")
    return Alignment(config, nnx.Rngs(0))


def test_additive_attention_by_hand():
    """With W = U = I, v = (1, 1) and s = 0: scores .761594 and .964028."""
    alignment = alignment_of("additive", 2)
    alignment.query_HK[...] = alignment.key_UK[...] = jnp.eye(2)
    alignment.energy_K[...] = jnp.ones(2)
    context, weights = attend(alignment, [0.0, 0.0], H2, [1, 1])
    np.testing.assert_allclose(weights, [0.449564, 0.550436], atol=1e-6)
    np.testing.assert_allclose(context, [0.449564, 1.100873], atol=1e-6)


def test_dot_and_general_attention_by_hand():
    expected = [0.268941, 0.731059]  # of scores 1 and 2
    np.testing.assert_allclose(
        attend(alignment_of("dot", 2), [1.0, 1.0], H2, [1, 1])[1], expected, atol=1e-6
    )
    general = alignment_of("general", 2)
    # s W h: only s_1 meets h, and only as 0.5 of h_2 and as nothing of h_1.
    general.key_UH[...] = jnp.array([[0.0, 0.0], [0.5, 0.0]])
    weights = attend(general, [1.0, 7.0], H2, [1, 1])[1]
    np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_a_hidden_annotation_has_no_weight():
    _, weights = attend(alignment_of("dot", 2), [1.0, 1.0], [*H2, [9.0, 9.0]], [1, 1, 0])
    np.testing.assert_allclose(weights, [0.268941, 0.731059, 0], atol=1e-6)
    assert weights[2] == 0


def test_local_attention_by_hand():
    """p = 4 * 0.7 and D = 2: of equal scores 1, 2 and 3, weights exp(-(j - 2.8)^2 / 2) / 3.

    The sentence of four annotations stands behind another of three in the row.
    """
    alignment = alignment_of("dot", 1, window=2)
    alignment.position_HP[...] = jnp.ones((1, 1))
    alignment.position_P[...] = jnp.full((1,), np.log(7 / 3) / np.tanh(1))
    context, weights = attend(alignment, [1.0], [[0.0]] * 7, [0, 0, 0, 1, 1, 1, 1])
    np.testing.assert_allclose(weights, [0, 0, 0, 0, 0.065966, 0.242050, 0.326733], atol=1e-6)
    assert context == 0


# --- Initial values -----------------------------------------------------------------------


def test_the_recurrent_matrices_begin_orthogonal_gate_by_gate():
    for name in ("bahdanau", "glorot"):
        matrix_HG = INITIALIZATIONS[name].matrix("recurrent", (7, 7), nnx.Rngs(0), 3)[...]
        parts = jnp.split(matrix_HG, 3, axis=1)
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
