"""Models searched as one."""

import dataclasses
import re
import types
from collections import namedtuple
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_transformer import small, stepwise

from configs import demo
from transformer.data.tokenizers import Tokenizers
from transformer.decoding.ensemble import Ensemble, stack
from transformer.decoding.search import beam_search
from transformer.runs.experiment import Experiment
from transformer.runs.restore import TrainedModel, as_one
from transformer.system.errors import UserError

DEMO = Experiment.from_dict(demo.get_config().to_dict())
ToyTokenizer = namedtuple("ToyTokenizer", "sha256 vocab_size")
SRC = jnp.array([[3, 0, 5, 7, 0], [2, 4, 6, 8, 9]])
M, LONGEST = 3, 7


def logits_of(model, params, tokens_NT):
    """Step by step, [N, T, V]."""
    return jax.jit(lambda params: stepwise(model.bind(params), SRC, tokens_NT)[0])(params)


def found(model, params):
    @jax.jit
    def search(params):
        bound = model.bind(params)
        cache = bound.init_cache(bound.encode(SRC), SRC, M, LONGEST)
        lengths = jnp.array([LONGEST, LONGEST - 2])
        return beam_search(
            bound.decode_step, cache, lengths, beam_size=M, alpha=0.6, longest=LONGEST
        )

    return search(params)


def test_the_mean_of_probabilities(random_params):
    model = small(num_encoder_layers=1)
    three = [random_params(model, seed) for seed in (1, 2, 3)]
    tokens_NT = jnp.asarray(np.random.default_rng(1).integers(1, 9, (2 * M, LONGEST)))
    mean = np.mean([jax.nn.softmax(logits_of(model, p, tokens_NT)) for p in three], axis=0)
    together = logits_of(Ensemble(model), stack(three), tokens_NT)
    np.testing.assert_allclose(np.exp(together), mean, atol=1e-6)
    assert np.abs(mean - jax.nn.softmax(logits_of(model, three[0], tokens_NT))).max() > 0.01


def test_a_search_with_the_same_model_twice(random_params):
    """So every hypothesis keeps its own cache in both."""
    model = small(num_encoder_layers=1)
    params = random_params(model)
    alone, twice = found(model, params), found(Ensemble(model), stack([params, params]))
    np.testing.assert_array_equal(alone.tokens_BML, twice.tokens_BML)
    np.testing.assert_allclose(alone.scores_BM, twice.scores_BM, atol=1e-5)
    other = found(Ensemble(model), stack([params, random_params(model, 5)]))
    assert not np.array_equal(alone.tokens_BML, other.tokens_BML)


def restored(workdir, tokenizer="a", params=None, language="de", steps=(1,), **changes):
    config = dataclasses.replace(
        DEMO,
        model=dataclasses.replace(DEMO.model, **changes),
        data=dataclasses.replace(DEMO.data, target_language=language),
    )
    tokenizers = Tokenizers(*2 * [ToyTokenizer(tokenizer, 23)])
    translator = types.SimpleNamespace(config=config.decoding)
    apart = dict(
        steps=list(steps), last_step=1, stopped_early=False, params=params, translator=translator
    )
    return TrainedModel(Path(workdir), config, tokenizers, checkpoint="best", **apart)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (restored("y", d_ff=11), "model.d_ff of y is 11 and of x 512"),
        (restored("y", activation="gelu"), "model.activation of y is 'gelu' and of x 'relu'"),
        (restored("y", tokenizer="b", dropout=0.3), "tokenizer_sha256 of y is ['b'] and of x"),
        (restored("y", language="fr"), "data.target_language of y is 'fr' and of x 'de'"),
        (
            restored("y", steps=[1, 2]),
            "number of checkpoints (--average_last) of y is 2",
        ),
    ],
)
def test_what_cannot_be_searched_as_one(other, message):
    with pytest.raises(UserError, match=re.escape(f"--ensemble: {message}")):
        as_one([restored("x"), restored("x"), other])


def test_an_ensemble_is_of_all_models():
    models = [restored(name, params={"w": jnp.array([i])}) for i, name in enumerate("xyz")]
    found = as_one(models)
    assert found.params["w"].tolist() == [[0], [1], [2]]
    assert found.workdir == Path("x")
    assert [other["workdir"] for other in found.provenance()["ensemble_with"]] == ["y", "z"]
    assert [other.params for other in found.others] == [{}, {}]
    assert "ensemble_with" not in models[0].provenance()
