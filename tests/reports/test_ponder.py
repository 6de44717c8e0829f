"""The picture of a Universal Transformer's steps."""

import re

import pytest
from scripts import assert_refused, run, succeeded, write_toy
from test_families import flags

SENTENCE = "--sentence=w3 w5"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Runs with and without halting."""
    directory = tmp_path_factory.mktemp("ponder")
    write_toy(directory, train=97, validation=5, test=7)
    for name, halting in (("act", "paper"), ("fixed", "none")):
        arguments = [*flags("universal", model_halting=halting), f"--workdir={name}"]
        succeeded(run("train.py", *arguments, cwd=directory))
    return directory


@pytest.mark.slow
def test_the_command(directory):
    command = ["transformer/reports/ponder.py", "--workdir=act", SENTENCE, "--out=x.png"]
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
    script = "transformer/reports/ponder.py"
    refused = run(script, "--workdir=fixed", SENTENCE, cwd=directory)
    assert_refused(refused, "fixed has no adaptive computation time", "model.halting=paper")
    refused = run(script, "--workdir=act", cwd=directory)
    assert_refused(refused, "no sentence is given")
    refused = run(script, "--workdir=act", SENTENCE, "--out=.", cwd=directory)
    assert_refused(refused, "cannot write .: Is a directory")
