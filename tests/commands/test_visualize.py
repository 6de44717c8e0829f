"""The page and the figures of attention."""

import base64
import html.parser
import json
from pathlib import Path

import numpy as np
import pytest
from scripts import assert_refused, run, succeeded
from small_models import trained_model

from transformer.exports.workdir import export
from transformer.inference.attention_maps import attention_of

EVIL = "one </script><script>document.title='X'</script><!-- & \"two\" three عربي 机器 😀"
PAGE = "visualize"


@pytest.fixture(scope="module")
def model(random_params, compiled_once):
    return trained_model(random_params)


@pytest.fixture(scope="module")
def directory(model, tmp_path_factory) -> Path:
    """With a work directory, a page and a figure."""
    directory = tmp_path_factory.mktemp("visualize")
    export(model, directory / "run")
    command = [PAGE, "--workdir=run", f"--source={EVIL}", "--target=two one", "--figure=x.png"]
    succeeded(run(*command, cwd=directory))
    return directory


class Scripts(html.parser.HTMLParser):
    """The contents of a page's script elements."""

    def __init__(self, text):
        super().__init__()
        self.found, self.inside, self.urls = [], False, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.inside = tag == "script"
        if self.inside:
            self.found.append("")
        urls = [value for name, value in attributes if name in ("src", "href")]
        self.urls += [url for url in urls if not url.startswith("data:image/png;base64,")]

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.found[-1] += data


def test_the_page_has_the_models_numbers_and_runs_no_text(directory, model):
    scripts = Scripts((directory / "attention.html").read_text())
    assert len(scripts.found) == 2
    assert scripts.urls == []
    data = json.loads(scripts.found[0])
    assert data["source"] == EVIL
    found = attention_of(model, EVIL, "two one")
    for name, weights in found.maps.items():
        packed = data["maps"][name]
        queries, keys = found.tokens(name)
        assert data["tokens"][packed["queries"]] == [list(token) for token in queries]
        assert data["tokens"][packed["keys"]] == [list(token) for token in keys]
        numbers = np.frombuffer(base64.b64decode(packed["data"]), "<u2") / 65535
        np.testing.assert_allclose(numbers.reshape(packed["shape"]), weights, atol=1e-5)


def test_the_figure_is_a_picture(directory):
    assert (directory / "x.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_has_the_lectures_pictures(directory):
    page = (directory / "attention.html").read_text()
    for name in ("Positions", "Masks", "Learning rate"):
        assert f"<h2>{name}</h2>" in page
    assert "<h2>Steps</h2>" not in page
    assert page.count('src="data:image/png;base64,iVBOR') == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no sentence is given"),
        (["--source= "], "the source sentence is empty"),
        (["--source=one", "--out=x.txt"], "x.txt must end in .html"),
        (["--source=one", "--out=", "--figure=x.png/y.png"], "cannot write x.png/y.png: Not a dir"),
        (["--source=one", "--figure=y.svg", "--heads=a"], "must be numbers"),
    ],
)
def test_what_cannot_be_drawn(directory, flags, message):
    before = sorted(directory.iterdir())
    refused = run(PAGE, "--workdir=run", "--target=two", *flags, cwd=directory)
    assert_refused(refused, message)
    assert sorted(directory.iterdir()) == before
