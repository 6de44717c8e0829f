"""The walk-through as a command, and its measurements."""

import numpy as np
import pytest
from scripts import assert_refused, run, succeeded
from small_models import trained_model

from transformer.exports.workdir import export
from transformer.reports.walkthrough import LARGEST, SLOPES, change_beside, saturation

COMMAND = "walkthrough"


def test_without_scaling_the_softmax_saturates():
    found = saturation(sizes=(1, 256), num_queries=16)
    assert found[LARGEST]["scaled"][0] == found[LARGEST]["not scaled"][0]
    assert found[LARGEST]["not scaled"][1] > 0.85 > 2 * found[LARGEST]["scaled"][1]
    assert found[SLOPES]["not scaled"][1] < 0.6 * found[SLOPES]["scaled"][1]


def test_layer_norm_minds_no_other_sentence():
    x, other = (np.random.default_rng(0).normal(size=(n, 7)) for n in (5, 3))
    assert change_beside(x, other, 1e-6, axis=1) < 1e-6
    assert change_beside(x, other, 1e-6, axis=0) > 0.1


@pytest.mark.slow
def test_a_page_of_a_model(random_params, tmp_path):
    """With all that is measured."""
    export(trained_model(random_params), tmp_path / "run")
    evil = "--source=one <script>alert(1)</script> two"
    succeeded(run(COMMAND, "--workdir=run", evil, "--target=two one", cwd=tmp_path))
    page = (tmp_path / "walkthrough.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for title in ("Loss with label smoothing", "One gradient step", "Why divide by √d_k?"):
        assert title in page
    refused = run(COMMAND, "--workdir=run", "--source=one", "--head=3", cwd=tmp_path)
    assert_refused(refused, "head 3 is asked for")


def test_what_cannot_be_walked_through(tmp_path):
    for flags, message in (
        (["--workdir=run"], "no sentence is given"),
        (["--workdir=run", "--source=one", "--out=x.txt"], "x.txt must end in .html"),
    ):
        assert_refused(run(COMMAND, *flags, cwd=tmp_path), message)
    assert not [*tmp_path.iterdir()]
