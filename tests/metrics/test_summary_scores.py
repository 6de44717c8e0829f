import pytest

from transformer.metrics.summary_scores import lead, rouge, statistics, warn_of_other_scripts
from transformer.system.errors import UserError

pytest.importorskip("rouge_score", reason=".[summarization]")


def test_rouge_by_hand():
    """cats sat | cat sat here: with the stemmer 2 of 2 and 2 of 3 words, F1 0.8; without, 0.4."""
    found = rouge(["cats sat"], [["cat sat here"]], " ", stemmer=True)
    assert found["rouge1"]["score"] == pytest.approx(80)
    assert found["rouge2"]["score"] == pytest.approx(100 * 2 / 3)
    signature = found["rouge1"]["signature"]
    assert "with stemmer, sentences end at .!? before a space, 1 ref" in signature
    plain = rouge(["cats sat"], [["cat sat here"]], " ", stemmer=False)
    assert plain["rouge1"]["score"] == pytest.approx(40)
    assert "no stemmer" in plain["rougeL"]["signature"]


def test_sentences():
    """In another order, whole sentences count for rougeLsum and not for rougeL."""
    texts = ["a b. c d."], [["c d. a b."]]
    found = rouge(*texts, " ", stemmer=False)
    assert found["rougeL"]["score"] == 50
    assert found["rougeLsum"]["score"] == 100
    marked = rouge(["a b <n> c d"], [["c d <n> a b"]], " <n> ", stemmer=False)
    assert marked["rougeLsum"]["score"] == 100
    assert "at '<n>'" in marked["rougeLsum"]["signature"]


def test_several_references():
    found = rouge(["a b", "x"], [["a b", "y"], ["c d", "x"]], " ", stemmer=False)
    assert found["rouge1"]["score"] == 50
    assert found["rouge1_best"]["score"] == 100
    assert found["rouge1"]["signature"].endswith("2 reference(s), mean over references")


def test_statistics():
    sources = ["a b c d e f", "x"]
    found = statistics(sources, ["a b c. A b c!", ""], [["u v", ""], ["w", "z"]], " ")
    scores = {name: score["score"] for name, score in found.items()}
    assert scores == {
        "length": 3.0,
        "reference_length": 1.0,
        "repeated_trigrams": 25.0,  # a b c, b c a, c a b, a b c
        "copied_trigrams": 50.0,
        "empty_summaries": 1.0,
        "empty_references": 1.0,
    }


def test_a_mark_for_line_breaks_is_no_word():
    found = statistics(["a b c n"], ["a b <n> c"], [["a <n> b"]], " <n> ")
    assert found["length"]["score"] == 3
    assert found["reference_length"]["score"] == 2
    assert found["copied_trigrams"]["score"] == 100


def test_other_scripts(capsys):
    """The package's words are of a-z and 0-9: people must not take its 0 for a score."""
    assert rouge(["слово"], [["слово"]], " ", stemmer=True)["rouge1"]["score"] == 0
    warn_of_other_scripts(["слово"])
    assert "warning: ROUGE has words of a-z" in capsys.readouterr().out
    warn_of_other_scripts(["слово", "a"])
    warn_of_other_scripts([""])
    assert not capsys.readouterr().out


def test_lead():
    assert lead(["A b. C? D e! F"], 3, " ") == ["A b. C? D e!"]
    assert lead(["a <n>  <n> b <n> c"], 2, " <n> ") == ["a <n> b"]


def test_nothing_to_score():
    with pytest.raises(UserError, match="no summaries to score"):
        rouge([], [[]], " ", stemmer=True)
