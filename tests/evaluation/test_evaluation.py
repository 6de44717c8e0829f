import dataclasses
import json

import jax.numpy as jnp
import pytest

from configs import base
from transformer.data.sources import DataConfig, PairSource
from transformer.evaluation.evaluation import (
    Translations,
    mean_nll,
    translate_source,
    write_evaluation,
)
from transformer.models.loss import Loss

ODD = ["two  spaces ", "\ttab", "line\u2028separator\u0085", '"quotes" ‘’', "", "a\rb", "ä"]


class Pairs(PairSource):
    fingerprint = "f"

    def __len__(self):
        return 23

    def chunks(self, size):
        pairs = [(f"source {i}", f"target {i}") for i in range(23)]
        for start in range(0, 23, 5):
            yield pairs[start : start + 5]

    def describe(self):
        return "the test pairs"


def test_mean_nll_is_per_token():
    parts = [Loss(jnp.array(0.0), jnp.array(x), jnp.array(n)) for x, n in [(6.0, 2), (3.0, 7)]]
    assert mean_nll(lambda params, batch: parts[batch], None, [0, 1]) == 1.0


def test_every_sentence_once_in_its_order():
    class Reverser:
        def translate(self, params, sentences, progress):
            progress(len(sentences))
            return [sentence[::-1] for sentence in sentences]

    done = []
    found = translate_source(Reverser(), None, Pairs(), done.append)
    assert found.sources == [f"source {i}" for i in range(23)]
    assert found.references == [f"target {i}" for i in range(23)]
    assert found.hypotheses == [f"source {i}"[::-1] for i in range(23)]
    assert done == [23]


def test_examples():
    texts = [[f"{side}{i}" for i in range(7)] for side in "srh"]
    assert Translations(*texts).examples(2) == (
        "  source       s1\n"
        "  reference    r1\n"
        "  translation  h1\n"
        "\n"
        "  source       s4\n"
        "  reference    r4\n"
        "  translation  h4"
    )
    assert Translations(["s"], ["r"], ["h"]).examples(3) == (
        "  source       s\n  reference    r\n  translation  h"
    )


DATA = DataConfig(**base.get_config().data)


def test_bleu_of_the_raw_text():
    reference = ["The cat sat on the mat today."]
    assert Translations([""], reference, reference).bleu(DATA) == pytest.approx(100)
    assert Translations([""], reference, ["The cat sat on a mat today."]).bleu(DATA) < 70


def test_bleu_of_tokenized_text():
    # 13a would take the colons and the dots apart, and find more that is right.
    translations = Translations([""], ["a b c d:e. f:g. h:i."], ["a b c d:e. f:g. h:j."])
    data = dataclasses.replace(DATA, is_tokenized=True)
    assert translations.bleu(data) == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    assert translations.bleu(DATA) > translations.bleu(data)
    scores = translations.scores(data)
    assert list(scores) == ["bleu", "chrf", "ter"]
    assert scores["bleu"]["score"] == translations.bleu(data)
    assert "tok:none" in scores["bleu"]["signature"]
    assert len(translations.scores(DATA)) == 5


def test_files_are_verbatim(tmp_path):
    translations = Translations(ODD, ODD[::-1], ["h"] * 7)
    directory = write_evaluation(tmp_path, "test", translations, {"bleu": {"score": 1.5}})
    assert directory == tmp_path / "eval" / "test"
    names = ["hypotheses.txt", "references.txt", "scores.json", "sources.txt"]
    assert sorted(path.name for path in directory.iterdir()) == names
    sources = (directory / "sources.txt").read_bytes().decode()
    assert sources == "".join(f"{line}\n" for line in ODD)
    references = (directory / "references.txt").read_bytes().decode()
    assert references.split("\n") == [*ODD[::-1], ""]
    assert (directory / "hypotheses.txt").read_text() == "h\n" * 7
    assert json.loads((directory / "scores.json").read_text()) == {"bleu": {"score": 1.5}}


def test_a_second_evaluation_takes_the_place_of_the_first(tmp_path):
    for text in ("long", "x"):
        write_evaluation(tmp_path, "test", Translations([text], [text], [text]), {"n": text})
    assert (tmp_path / "eval" / "test" / "sources.txt").read_text() == "x\n"
    assert (tmp_path / "eval" / "test" / "scores.json").read_text() == '{\n  "n": "x"\n}\n'


def test_a_split_with_a_slash_is_one_directory(tmp_path):
    directory = write_evaluation(tmp_path, "a/../b", Translations([], [], []), {})
    assert directory.parent == tmp_path / "eval"
    assert len(list((tmp_path / "eval").iterdir())) == 1
