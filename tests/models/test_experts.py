import jax.numpy as jnp
import numpy as np
from flax import nnx

from transformer.models.experts import Experts, groups


def experts(num_experts=5, num_chosen=2):
    return Experts(
        6,
        7,
        num_experts=num_experts,
        num_chosen=num_chosen,
        activation="relu",
        dtype=jnp.dtype("float32"),
        rngs=nnx.Rngs(0),
    )


def test_groups():
    """Experts 2 0 2 2 1 in groups of two: one group of 0, one of 1, two of 2."""
    place, expert = groups(jnp.array([2, 0, 2, 2, 1]), num_experts=3, group_size=2)
    np.testing.assert_array_equal(place, [4, 0, 5, 6, 2])
    np.testing.assert_array_equal(expert[:4], [0, 1, 2, 2])


def test_a_token_gets_the_weighted_outputs_of_its_best_experts():
    module = experts()
    x_BXD = jnp.asarray(np.random.default_rng(0).normal(size=(2, 11, 6)), jnp.float32)
    found_BXD = module(x_BXD)
    for x, found in zip(x_BXD.reshape(-1, 6), found_BXD.reshape(-1, 6)):
        scores = np.asarray(x @ module.router.kernel[...])
        best = np.argsort(scores)[-2:]
        weights = np.exp(scores[best]) / np.exp(scores[best]).sum()
        outputs = [
            np.maximum(0, x @ module.hidden_EDF[...][e]) @ module.output_EFD[...][e] for e in best
        ]
        np.testing.assert_allclose(found, weights @ np.array(outputs), rtol=1e-4, atol=1e-5)


def test_a_token_does_not_depend_on_others():
    module = experts()
    x_BXD = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 6)), jnp.float32)
    alone = module(x_BXD[1:2, 2:3])
    np.testing.assert_allclose(module(x_BXD)[1:2, 2:3], alone, rtol=1e-5, atol=1e-6)


def test_balance():
    """1 if all experts are used alike, E if one alone; padding does not count."""
    module = experts(num_experts=4, num_chosen=1)
    x_BXD = 50.0 * jnp.eye(6)[None, :5]
    real_BX = jnp.array([[1, 1, 1, 1, 0]], bool)
    module.router.kernel[...] = jnp.eye(6)[:, :4]
    np.testing.assert_allclose(module.balance(x_BXD, real_BX), [1.0], rtol=1e-5)
    module.router.kernel[...] = jnp.zeros((6, 4)).at[:, 2].set(1.0)
    np.testing.assert_allclose(module.balance(x_BXD, real_BX), [4.0], rtol=1e-5)
