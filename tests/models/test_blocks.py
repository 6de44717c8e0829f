"""Layers whose activations the backward pass computes again."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_batches import masked, pairs
from small_bert import CONFIG as BERT
from small_configs import MODEL, sizes_of

from configs import t_dmca, universal_act_base
from transformer.models.family import build_model
from transformer.models.functional import num_params
from transformer.models.numerics import DropoutRngs
from transformer.runs.run_config import Config

SMALL = {"d_model": 14, "d_ff": 11, "num_heads": 2, "dropout": 0.2}


def section_of(config, **changes):
    return dataclasses.replace(
        Config.from_dict(config.get_config().to_dict()).model, **(SMALL | changes)
    )


FAMILIES = {
    "transformer": (dataclasses.replace(MODEL, dropout=0.2), pairs()),
    "universal": (section_of(universal_act_base, encoder_steps=2, decoder_steps=2), pairs()),
    "decoder_only": (
        section_of(t_dmca, layers="LMF", block_length=5, expert_layer=2, num_experts=3),
        pairs(),
    ),
    "bert": (dataclasses.replace(BERT.model, dropout=0.2, num_layers=2), masked()),
}


def loss_of(config, batch):
    """The loss with dropout as a function of the parameters; and a model that has such."""
    longest = getattr(config, "max_positions", 31)
    model = build_model(config, sizes_of(37)._replace(max_source_length=longest))

    def loss(params):
        rngs = DropoutRngs(jax.random.key(2), jnp.arange(len(batch[0])))
        return model.bind(params).loss(batch, rngs, 0.1).loss

    return loss, model


def both(family, **changes):
    config, batch = FAMILIES[family]
    config = dataclasses.replace(config, **changes)
    kept, model = loss_of(config, batch)
    return kept, loss_of(dataclasses.replace(config, rematerialize=True), batch)[0], model


@pytest.mark.parametrize(
    "family",
    [
        "transformer",
        *(pytest.param(x, marks=pytest.mark.slow) for x in FAMILIES if x != "transformer"),
    ],
)
def test_the_backward_pass_is_given_less(family):
    kept, again, model = both(family)
    params = model.abstract_params()

    def given(loss) -> int:
        pullback = jax.eval_shape(lambda params: jax.vjp(loss, params)[1], params)
        return sum(x.size for x in jax.tree.leaves(pullback)) - num_params(params)

    assert 0 < given(again) < 0.5 * given(kept)


@pytest.mark.slow
def test_what_is_computed_again_is_the_same(random_params):
    with jax.enable_x64(True):  # or it would be the same but for rounding
        kept, again, model = both("bert", dtype="float64", num_layers=1)
        params = jax.tree.map(jnp.float64, random_params(model))
        wanted, found = (jax.jit(jax.value_and_grad(loss))(params) for loss in (kept, again))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == jnp.float64
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
