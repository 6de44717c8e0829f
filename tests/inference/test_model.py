"""The Python API, and translate.py, with a model of a toy language."""

import doctest
import signal
import warnings

import echo_model
import jax
import pytest
from absl import logging
from flax import nnx
from scripts import ROOT, assert_refused, run, succeeded, toy_flags, write_toy

import transformer
from transformer.inference.model import Model
from transformer.system.errors import UserError


@pytest.fixture(scope="module")
def toy(tmp_path_factory, compiled_once):
    """A directory with a trained model."""
    directory = tmp_path_factory.mktemp("toy")
    write_toy(directory, train=30, validation=7)
    succeeded(run("train.py", *toy_flags(), "--workdir=runs/demo", cwd=directory))
    return directory


def test_the_examples_of_the_page(toy, monkeypatch):
    """They change no setting of the process. The docstring's are the first of them."""
    monkeypatch.chdir(toy)
    page, parser = ROOT / "docs" / "python.md", doctest.DocTestParser()

    def settings():
        handlers = [signal.getsignal(number) for number in signal.valid_signals()]
        switches = logging.get_verbosity(), nnx.using_eager_sharding(), warnings.showwarning
        return *switches, handlers, dict(jax.config.values)

    before = logging.get_verbosity()
    logging.set_verbosity(logging.INFO)
    try:
        wanted = settings()
        assert doctest.testfile(str(page), module_relative=False) == (0, 11)
        with pytest.raises(UserError):
            transformer.load(toy / "nowhere")
        assert settings() == wanted
    finally:
        logging.set_verbosity(before)
    docstring, of_page = (
        [(x.source.partition("#")[0].strip(), x.want) for x in parser.get_examples(text)]
        for text in (transformer.load.__doc__, page.read_text().replace("transformer.load", "load"))
    )
    assert docstring == of_page[1:8]


def test_checkpoints_and_ensembles(toy):
    """A path is as good as a text, and a number too."""
    run = toy / "runs" / "demo"
    chosen = [transformer.load(run, checkpoint=x).restored.chosen for x in (2, "2")]
    assert chosen[0] == chosen[1]
    model = transformer.load(str(run), ensemble=[str(run)], checkpoint="last")
    assert len(model.restored.params) == 2
    assert str(model.restored.chosen.checkpoint) == "last"


def test_translate_py_and_the_api_agree(toy):
    """And what a search says of an output is what forced decoding says of it."""

    def translate(*arguments, stdin):
        arguments = "--workdir=runs/demo", "--format=tsv", *arguments
        result = succeeded(run("translate.py", *arguments, cwd=toy, stdin=stdin.encode()))
        return [line.split("\t") for line in result.out.decode().splitlines()]

    sources = "one two", "three"
    rows = translate("--nbest=2", "--beam_size=3", stdin="one two\n\nthree\n")
    assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"], ["2", "1"], ["3", "1"], ["3", "2"]]
    model = transformer.load(str(toy / "runs" / "demo"), beam_size=3)
    found = [x for best in model.search(sources, nbest=2) for x in best]
    assert [row[4] for row in rows] == [
        found[0].text,
        found[1].text,
        "",
        *(x.text for x in found[2:]),
    ]

    pairs = [(source, x.text) for source, x in zip(2 * sources[:1] + 2 * sources[1:], found)]
    rows = translate("--score", stdin="".join(f"{source}\t{text}\n" for source, text in pairs))
    scored = model.score(pairs)
    assert [row[1] for row in rows] == [f"{x.log_prob:.6g}" for x in scored]
    # Of a model that knows nothing, some outputs are tokens that no text is encoded as.
    same = [(x, y) for x, y in zip(found, scored) if x.tokens == y.tokens]
    assert same
    for x, y in same:
        assert x.token_log_probs == pytest.approx(y.token_log_probs, rel=1e-4)
        assert x.score == pytest.approx(y.score, rel=1e-4)


def test_options_that_cannot_be(toy):
    def refused(*arguments, parts=()):
        arguments = "--workdir=runs/demo", "--input=train.en", *arguments
        assert_refused(run("translate.py", *arguments, cwd=toy), *parts)

    refused("--nbest=5", "--skip_bad_lines", parts=["error: 5 translations of each sentence"])
    refused("--nbset=4", parts=["Unknown command line flag 'nbset'"])
    refused("--score", "--nbest=2", parts=["--score is given"])
    refused("--length_penalty=-1", parts=["decoding.length_penalty"])
    refused("--max_tokens=0", parts=["max_tokens is 0"])


# --- Long lines, with a model that writes capitals ----------------------------------------


def capitals(**options) -> Model:
    trained = echo_model.trained(echo_model.WORDS, lambda _, line: line.upper(), max_length=4)
    return Model(trained, **options)


def test_long_sentences():
    sentences = ["a b. c d e f g.", "", "x"]
    assert capitals().translate(sentences) == ["A B. C D E F G.", "", "X"]
    assert capitals(long_lines="cut").translate(sentences) == ["A B. C", "", "X"]
    assert capitals(long_lines="refuse", max_tokens=7).translate(sentences)[0] == "A B. C D E F G."
    with pytest.raises(UserError, match="longer than 3 tokens"):
        capitals(long_lines="refuse").translate(sentences)
    with pytest.raises(UserError, match="cannot share constraints"):
        capitals().translate(["a b. c d"], constraints=[["B"]])
    with pytest.raises(UserError, match="long_lines is 'no'; it must be one of: split, cut"):
        capitals(long_lines="no")
