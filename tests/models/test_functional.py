import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer.models.functional import FunctionalModel, num_params

X = jnp.array([[1.0, 2.0]])


class PowerIteration(nnx.Module):
    """A linear layer and, as in spectral normalisation, a vector that each call moves on."""

    def __init__(self, rngs: nnx.Rngs):
        self.linear = nnx.Linear(2, 2, use_bias=False, rngs=rngs)
        self.u = nnx.Variable(jnp.array([1.0, 0.0]))

    def __call__(self, x):
        y = x @ self.linear.kernel[...]
        self.u[...] = self.linear.kernel[...] @ self.u[...]
        return y


@pytest.fixture(params=[True, False], ids=["graph", "tree"])
def graph_mode(request):
    """NNX with its graph mode on and off; the models have to work with either."""
    if not hasattr(nnx, "set_graph_mode"):
        pytest.skip("this Flax has no graph mode")
    with nnx.set_graph_mode(request.param):
        yield


def test_parameters_without_extra_state(graph_mode):
    model = FunctionalModel(lambda rngs: nnx.Linear(2, 3, rngs=rngs))
    params = model.init(jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == {"kernel": (2, 3), "bias": (3,)}
    assert jax.tree.map(jnp.shape, model.abstract_params()) == jax.tree.map(jnp.shape, params)
    assert num_params(params) == num_params(model.abstract_params()) == 2 * 3 + 3
    assert model.init_extra(jax.random.key(0)) == model.abstract_extra() == {}
    bound = model.bind(params)
    np.testing.assert_allclose(bound(X), X @ params["kernel"], atol=1e-6)
    assert model.extra_of(bound) == {}


class WithSharding(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        if nnx.using_eager_sharding():
            raise AssertionError("it would ask for a mesh")
        self.kernel = nnx.Param(jnp.ones((2, 3)), out_sharding=("data", None))


def fails(rngs):
    raise ValueError("no such model")


@pytest.mark.parametrize("before", [None, True, False])
def test_a_model_leaves_eager_sharding_as_it_is(before):
    """NNX's switch for the whole process; None: nobody has set it."""
    with contextlib.nullcontext() if before is None else nnx.use_eager_sharding(before):
        wanted = nnx.using_eager_sharding()
        model = FunctionalModel(WithSharding)
        model.init(0)
        model.bind(model.init(0))
        assert nnx.using_eager_sharding() == wanted
        with pytest.raises(ValueError, match="no such model"):
            FunctionalModel(fails)
        assert nnx.using_eager_sharding() == wanted


def test_extra_state_is_an_argument_and_a_result(graph_mode):
    model = FunctionalModel(PowerIteration)
    assert set(model.abstract_params()) == {"linear"}
    assert jax.tree.map(jnp.shape, model.abstract_extra()) == {"u": (2,)}
    extra = model.init_extra(jax.random.key(0))
    np.testing.assert_array_equal(extra["u"], [1, 0])

    def loss(params, extra):
        bound = model.bind(params, extra)
        return bound(X).sum(), model.extra_of(bound)

    params = {"linear": {"kernel": jnp.array([[1.0, 2.0], [3.0, 4.0]])}}
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    for expected in ([1, 3], [7, 15]):  # kernel @ u
        (value, extra), gradient = step(params, extra)
        assert value == 7 + 10
        np.testing.assert_array_equal(extra["u"], expected)
        np.testing.assert_array_equal(gradient["linear"]["kernel"], [[1, 1], [2, 2]])


def test_extra_state_cannot_be_forgotten():
    model = FunctionalModel(PowerIteration)
    with pytest.raises(TypeError, match=r"call bind\(params, extra\)"):
        model.bind(model.abstract_params())


def test_random_state_is_refused():
    with pytest.raises(ValueError, match=r"(?i)non-exhaustive"):
        FunctionalModel(lambda rngs: nnx.Dropout(0.5, rngs=rngs))


def test_bind_takes_its_arrays_from_its_arguments_alone():
    model = FunctionalModel(lambda rngs: nnx.Linear(2, 3, rngs=rngs))
    first, second = (model.init(jax.random.key(seed)) for seed in (0, 1))
    bound = [model.bind(params) for params in (first, second, first)]
    for module, params in zip(bound, (first, second, first), strict=True):
        np.testing.assert_array_equal(module.kernel[...], params["kernel"])


def test_an_integer_seeds_init():
    model = FunctionalModel(lambda rngs: nnx.Linear(2, 3, use_bias=False, rngs=rngs))
    for seed in (0, 5):
        np.testing.assert_array_equal(
            model.init(seed)["kernel"], model.init(jax.random.key(seed))["kernel"]
        )
    assert (model.init(0)["kernel"] != model.init(5)["kernel"]).any()
