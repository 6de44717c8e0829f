"""Positions of the encoder that hold several words, as for the facts of bAbI."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_configs import MODEL, sizes_of
from stepwise import stepwise

from configs import universal_base
from transformer.models.family import build_model
from transformer.models.universal.universal_steps import UniversalConfig
from transformer.system.errors import UserError

SOURCE, TARGET, WORDS = 19, 17, 3
UNIVERSAL = UniversalConfig(**universal_base.get_config().model.to_dict())
SMALL = {"d_model": 14, "d_ff": 11, "num_heads": 2, "share_embeddings": "none", "dropout": 0.0}
CONFIGS = {
    "transformer": dataclasses.replace(MODEL, **SMALL),
    "universal": dataclasses.replace(
        UNIVERSAL, **SMALL, encoder_steps=2, decoder_steps=2, attention_dropout=0.0,
        activation_dropout=0.0, halting="paper", count_from="both_ends",
    ),
}  # fmt: skip
# Three sources of 2, 1 and 2 positions, the last of which is not full; and padding.
SRC = np.array([[4, 9, 2, 7, 7, 18, 5, 1, 3, 0], [8, 11, 6, 12, 13, 0, 0, 0, 0, 0]])
SEGMENTS = np.array([[1] * 6 + [2] * 3 + [0], [1] * 5 + [0] * 5])
TGT_IN = np.array([[1, 5, 9, 1, 16], [1, 3, 0, 0, 0]])
TGT_SEGMENTS = np.array([[1, 1, 1, 2, 2], [1, 1, 0, 0, 0]])


@pytest.fixture(params=CONFIGS)
def both(request, random_params):
    """A model, and one whose source vocabulary is the positions of SRC, row after row."""
    config = dataclasses.replace(CONFIGS[request.param], words_per_position=WORDS)
    model = build_model(config, sizes_of(SOURCE, TARGET))
    params = random_params(model)
    masks_WD = np.asarray(params["word_masks_WD"], np.float64)
    table_VD = np.asarray(params["source_embedding"]["table_VD"], np.float64)
    positions = [row[i : i + WORDS] for row in SRC for i in range(0, len(row), WORDS)]
    sums_PD = np.zeros((len(positions), 14))
    for sum_D, words in zip(sums_PD, positions, strict=True):
        for mask_D, word in zip(masks_WD, words, strict=False):  # padding may lack
            if word:
                sum_D += mask_D * table_VD[word]
    plain = build_model(CONFIGS[request.param], sizes_of(len(sums_PD), TARGET))
    own = {name: value for name, value in params.items() if name != "word_masks_WD"}
    own["source_embedding"] = {"table_VD": jnp.asarray(sums_PD, jnp.float32)}
    return (model, params), (plain, own)


def test_a_position_is_the_sum_of_its_words(both):
    """In rows of several sources; the last words of each row begin a position of their own.

    And step by step.
    """
    (model, params), (plain, own) = both
    positions = np.arange(8).reshape(2, 4)
    segments = np.array([[1, 1, 2, 0], [1, 1, 0, 0]])

    @jax.jit
    def run(params, own):
        bound = model.bind(params)
        found = bound(SRC, TGT_IN, SEGMENTS, TGT_SEGMENTS)
        expected = plain.bind(own)(positions, TGT_IN, segments, TGT_SEGMENTS)
        return found, expected, stepwise(bound, SRC[1:], TGT_IN[1:, :2])[0]

    found, expected, step_by_step = map(np.asarray, run(params, own))
    real = TGT_SEGMENTS > 0
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)
    assert np.ptp(found[real]) > 0.1
    np.testing.assert_allclose(step_by_step[0], found[1, :2], atol=1e-5)


def test_masks_tell_places_apart_from_the_start():
    config = dataclasses.replace(CONFIGS["universal"], words_per_position=12, d_model=64)
    model = build_model(config, sizes_of(SOURCE, TARGET))
    start = jax.jit(lambda key: model.init(key)["word_masks_WD"])
    masks_WD = np.asarray(start(jax.random.key(0)))
    assert masks_WD.mean() == pytest.approx(1, abs=0.06)
    assert np.std(masks_WD) == pytest.approx(0.5, abs=0.05)
    assert np.std(masks_WD, axis=0).mean() > 0.4  # of the places of a channel


def test_alignments_of_words_are_refused(both):
    (model, params), _ = both

    def step(params):
        bound, src = model.bind(params), jnp.array(SRC)
        cache = bound.init_cache(bound.encode(src), src, 1, 3)
        bound.decode_step(jnp.array([1, 1]), cache | {"attention": jnp.zeros(SRC.shape)})

    with pytest.raises(UserError, match=r"words_per_position is 3; leave out alignments"):
        jax.eval_shape(step, params)
