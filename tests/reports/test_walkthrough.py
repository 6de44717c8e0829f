"""The walk-through as a command."""

from pathlib import Path

import pytest
from scripts import assert_refused, run, succeeded
from small_models import trained_model

from transformer.exports.workdir import export

COMMAND = "walkthrough"


@pytest.fixture(scope="module")
def directory(random_params, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("walkthrough")
    export(trained_model(random_params), directory / "run")
    return directory


@pytest.mark.slow
def test_a_page_of_a_model(directory):
    """With all that is measured."""
    evil = "--source=one <script>alert(1)</script> two"
    succeeded(run(COMMAND, "--workdir=run", evil, "--target=two one", cwd=directory))
    page = (directory / "walkthrough.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for title in ("Loss with label smoothing", "One gradient step", "Why divide by √d_k?"):
        assert title in page


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workdir=run"], "no sentence is given"),
        (["--workdir=run", "--source=one", "--out=x.txt"], "x.txt must end in .html"),
        (["--workdir=run", "--source=one", "--target=two", "--head=3"], "head 3 is asked for"),
        (["--source=one"], "--workdir is missing"),
    ],
)
def test_what_cannot_be_walked_through(directory, flags, message):
    before = sorted(directory.iterdir())
    assert_refused(run(COMMAND, *flags, cwd=directory), message)
    assert sorted(directory.iterdir()) == before
