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
def toy(tmp_path_factory):
    """A directory with a trained model."""
    directory = tmp_path_factory.mktemp("toy")
    write_toy(directory, train=30, validation=7)
    flags = toy_flags(decoding_beam_size=3)
    succeeded(run("train.py", *flags, "--workdir=runs/demo", cwd=directory))
    return directory


def test_the_example_of_the_docstring(toy, monkeypatch):
    monkeypatch.chdir(toy)
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(transformer.load, globs=vars(transformer)):
        runner.run(test)
    assert runner.summarize() == (0, 7)


def test_the_examples_of_the_page(toy, monkeypatch):
    monkeypatch.chdir(toy)
    page = ROOT / "docs" / "python.md"
    assert doctest.testfile(str(page), module_relative=False) == (0, 11)


def test_a_path_is_as_good_as_a_text(toy):
    sentences = ["one two"]
    texts = [
        transformer.load(toy / "runs/demo", checkpoint=x).translate(sentences) for x in (2, "2")
    ]
    assert texts[0] == texts[1]


def test_to_load_a_model_changes_no_setting_of_the_process(toy):
    """Whoever uses the library has log levels, handlers and settings of JAX."""

    def settings():
        handlers = [signal.getsignal(number) for number in signal.valid_signals()]
        switches = logging.get_verbosity(), nnx.using_eager_sharding(), warnings.showwarning
        return *switches, handlers, dict(jax.config.values)

    before = logging.get_verbosity()
    logging.set_verbosity(logging.INFO)
    try:
        wanted = settings()
        transformer.load(toy / "runs/demo").translate(["one two"])
        with pytest.raises(UserError):
            transformer.load(toy / "nowhere")
        assert settings() == wanted
    finally:
        logging.set_verbosity(before)


def test_an_ensemble(toy):
    run = toy / "runs" / "demo"
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
    rows = translate("--nbest=2", "--beam_size=5", stdin="one two\n\nthree\n")
    assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"], ["2", "1"], ["3", "1"], ["3", "2"]]
    model = transformer.load(str(toy / "runs" / "demo"), beam_size=5)
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

    refused("--nbest=4", "--skip_bad_lines", parts=["error: 4 translations of each sentence"])
    refused("--nbset=4", parts=["Unknown command line flag 'nbset'"])
    refused("--score", "--nbest=2", parts=["--score is given"])
    refused("--score", "--seed_by=line", parts=["--score is given"])
    refused("--seed_by=line", parts=["is for samples; set"])
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


def test_only_the_first_piece_has_the_prefix():
    model = capitals()
    model.restored.task.search = lambda params, extra, requests, **_: [
        [echo_model.translation(request.prefix)] for request in requests
    ]
    sentences, prefixes = ["x", "a b. c d.", "y"], ["X", "A", ""]
    found = [x.text for (x,) in model.search(sentences, prefixes=prefixes)]
    assert found == ["X", "A ", ""]


def test_prefixes_and_constraints_are_one_for_each_sentence():
    with pytest.raises(UserError, match=r"prefixes are \['a', 'b'\] for 1 sentences"):
        capitals().translate(["x"], prefixes=["a", "b"])
    with pytest.raises(UserError, match="prefixes are 'a' for 1 sentences"):
        capitals().translate(["x"], prefixes="a")
    with pytest.raises(UserError, match="give each sentence a list of phrases"):
        capitals().translate(["x"], constraints=["a"])
