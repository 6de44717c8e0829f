import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from small_configs import EXPERTS, model_config

from configs import t_dmca
from transformer.models.decoder_only.decoder_only import DecoderOnlyConfig
from transformer.models.decoder_only.experts import Experts, groups


def experts(num_experts=5, num_chosen=2):
    changes = EXPERTS | {"d_model": 6, "expert_d_ff": 7, "activation": "relu"}
    changes |= {"num_experts": num_experts, "experts_per_token": num_chosen}
    return Experts(model_config(DecoderOnlyConfig, t_dmca, **changes), nnx.Rngs(0))


def apply(module, x_BXD):
    return np.asarray(jax.jit(lambda x: module(x))(x_BXD))


def test_groups():
    """Experts 2 0 2 2 1 in groups of two: one group of 0, one of 1, two of 2."""
    place, expert = jax.jit(lambda x: groups(x, 3, group_size=2))(np.array([2, 0, 2, 2, 1]))
    np.testing.assert_array_equal(place, [4, 0, 5, 6, 2])
    np.testing.assert_array_equal(expert[:4], [0, 1, 2, 2])


def test_a_token_gets_the_weighted_outputs_of_its_best_experts():
    module = experts()
    x_BXD = np.random.default_rng(0).normal(size=(2, 11, 6)).astype(np.float32)
    found_BXD = apply(module, x_BXD)
    router, hidden, output = (
        np.asarray(x[...]) for x in (module.router.kernel, module.hidden_EDF, module.output_EFD)
    )
    for x, found in zip(x_BXD.reshape(-1, 6), found_BXD.reshape(-1, 6)):
        scores = x @ router
        best = np.argsort(scores)[-2:]
        weights = np.exp(scores[best]) / np.exp(scores[best]).sum()
        outputs = [np.maximum(0, x @ hidden[e]) @ output[e] for e in best]
        np.testing.assert_allclose(found, weights @ np.array(outputs), rtol=1e-4, atol=1e-5)


def test_a_token_does_not_depend_on_others():
    module = experts()
    x_BXD = np.random.default_rng(0).normal(size=(3, 4, 6)).astype(np.float32)
    alone = apply(module, x_BXD[1:2, 2:3])
    np.testing.assert_allclose(apply(module, x_BXD)[1:2, 2:3], alone, rtol=1e-5, atol=1e-6)


def test_balance():
    """1 if all experts are used alike, E if one alone; padding does not count."""
    modules = [experts(num_experts=4, num_chosen=1) for _ in range(2)]
    x_BXD = 50.0 * np.eye(6, dtype=np.float32)[None, :5]
    real_BX = np.array([[1, 1, 1, 1, 0]], bool)
    routers = np.eye(6)[:, :4], np.ones((6, 1)) * np.eye(4)[2]
    for module, router in zip(modules, routers, strict=True):
        module.router.kernel[...] = jnp.asarray(router, jnp.float32)
    found = jax.jit(lambda: [module.balance(x_BXD, real_BX) for module in modules])()
    np.testing.assert_allclose(np.ravel(found), [1, 4], rtol=1e-5)
