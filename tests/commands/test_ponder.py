"""The picture of a Universal Transformer's steps."""

import re

import pytest
from scripts import assert_refused, run, succeeded
from small_models import trained_model

from configs import universal_act_base
from transformer.exports.workdir import export
from transformer.models.universal.universal_steps import UniversalConfig

SENTENCE = "--sentence=one two"
SMALL = {"d_model": 14, "d_ff": 11, "num_heads": 2, "encoder_steps": 4, "decoder_steps": 4}


@pytest.fixture(scope="module")
def directory(random_params, tmp_path_factory):
    """Models with and without halting."""
    directory = tmp_path_factory.mktemp("ponder")
    for name, halting in (("act", "paper"), ("fixed", "none")):
        sizes = universal_act_base.get_config().model.to_dict() | SMALL
        config = UniversalConfig(**sizes | {"halting": halting})
        export(trained_model(random_params, base=config), directory / name)
    return directory


@pytest.mark.slow
def test_the_command(directory):
    command = ["ponder", "--workdir=act", SENTENCE, "--out=x.png"]
    result = succeeded(run(*command, cwd=directory))
    source = result.out.decode().splitlines()[-3]
    assert source.startswith("source ")
    tokens = re.findall(r"(\S+) (\d+)(?:  |$)", source)
    assert tokens[-1][0] == "EOS"
    steps = [int(number) for _, number in tokens]
    assert len(steps) > 2
    assert all(1 <= number <= 4 for number in steps)
    assert (directory / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_what_cannot_be_drawn(directory):
    script = "ponder"
    refused = run(script, "--workdir=fixed", SENTENCE, cwd=directory)
    assert_refused(refused, "fixed has no adaptive computation time", "model.halting=paper")
    refused = run(script, "--workdir=act", cwd=directory)
    assert_refused(refused, "no sentence is given")
    refused = run(script, "--workdir=act", SENTENCE, "--out=.", cwd=directory)
    assert_refused(refused, "cannot write .: Is a directory")
