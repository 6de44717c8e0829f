"""Several trained models as one. How one is restored, tests/exports and the scripts' tests show."""

import dataclasses
import re
from collections import namedtuple
from pathlib import Path

import pytest
from small_configs import sizes_of

from configs import demo
from transformer.data.tokenizers import Tokenizers
from transformer.models.family import build_model
from transformer.runs.restore import TrainedModel, as_one
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh
from transformer.tasks.seq2seq import Seq2Seq

DEMO = Config.from_dict(demo.get_config().to_dict())
ToyTokenizer = namedtuple("ToyTokenizer", "sha256 vocab_size")


def restored(workdir, tokenizer="a", params=None, language="de", steps=(1,), **changes):
    config = dataclasses.replace(
        DEMO,
        model=dataclasses.replace(DEMO.model, **changes),
        data=dataclasses.replace(DEMO.data, target_language=language),
    )
    tokenizers = Tokenizers(*2 * [ToyTokenizer(tokenizer, 23)])
    model = build_model(config.model, sizes_of(23))
    task = Seq2Seq(config.data, tokenizers, model, config.decoding, data_mesh())
    apart = dict(steps=list(steps), last_step=1, stopped_early=False, params=params, extra={})
    return TrainedModel(Path(workdir), config, task, checkpoint="best", **apart)


@pytest.mark.parametrize(
    ("other", "message"),
    [
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
    """Also of models that differ."""
    models = [restored(name, params={"w": i}, d_ff=11 + i) for i, name in enumerate("xyz")]
    found = as_one(models)
    assert found.params == [{"w": 0}, {"w": 1}, {"w": 2}]
    assert found.extra == [{}, {}, {}]
    assert found.workdir == Path("x")
    assert [other["workdir"] for other in found.provenance()["ensemble_with"]] == ["y", "z"]
    assert [other.params for other in found.others] == [{}, {}]
    assert "ensemble_with" not in models[0].provenance()
