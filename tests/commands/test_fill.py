"""Words for [MASK], from the command line."""

import pytest
from scripts import assert_refused, run
from small_bert import trained_bert

from transformer.exports import bert_folder
from transformer.exports.workdir import export
from transformer.inference.masked_words import fill


@pytest.fixture(scope="module")
def model(random_params, compiled_once):
    return trained_bert(random_params)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """With a work directory, and the same model as a folder of Hugging Face's."""
    folder = tmp_path_factory.mktemp("fill")
    export(model, folder / "run")
    (folder / "hub").mkdir()
    bert_folder.write(model, folder / "hub")
    return folder


@pytest.mark.parametrize("workdir", ["run", "hub"])
def test_a_line_for_each_mask(model, folder, workdir):
    """What comes before a bad line is written."""
    text = b"one [MASK] two [MASK]\n\n[MASK]"
    found = run("fill", f"--workdir={workdir}", "--nbest=2", cwd=folder, stdin=text)
    assert_refused(found, "standard input, line 2: there is no [MASK] in ''")
    lines = found.out.decode().splitlines()
    expected = fill(model, "one [MASK] two [MASK]", 2)
    assert lines == ["\t".join(f"{word} {p:.3f}" for word, p in words) for words in expected]


def test_lines_that_cannot_be_filled(folder):
    for text, message in (
        (b"one " * 12 + b"[MASK]", "line 1: the text has 15 tokens, and the model takes 13"),
        (b"\xff", "not UTF-8: line 1, byte 1"),
    ):
        found = run("fill", "--workdir=run", cwd=folder, stdin=text)
        assert_refused(found, message)
        assert found.out == b""
