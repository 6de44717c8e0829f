"""Long lines, counted in words or in characters, cut at the best places."""

import time

import echo_model
import pytest

from transformer.decoding.inputs import Request
from transformer.decoding.long_lines import Cutter, LongLines, join
from transformer.decoding.translation import Translation
from transformer.system.errors import UserError

WORDS = Cutter(lambda texts: [len(text.split()) for text in texts], 7)
CHARACTERS = Cutter(lambda texts: list(map(len, texts)), 7)
LINE = (
    "One Mr. Two. Four (five?) Six seven eight nine ten, eleven 3.14 thirteen; fourteen. "
    "A b c d e f g h i j k l. Z."
)


def test_a_line_is_cut_at_sentences_else_clauses_else_words():
    assert WORDS.pieces(LINE) == [
        "One Mr. Two.",
        "Four (five?)",
        "Six seven eight nine ten,",
        "eleven 3.14 thirteen; fourteen.",
        "A b c d e f g",
        "h i j k l.",
        "Z.",
    ]
    assert WORDS.first(LINE) == "One Mr. Two. Four (five?) Six seven"
    assert WORDS.pieces("a b c d e f g") == ["a b c d e f g"]
    assert WORDS.pieces("") == [""]


def test_text_without_spaces():
    assert CHARACTERS.pieces("你好。“你好！”我很好，谢谢你。") == [
        "你好。",
        "“你好！”",
        "我很好，",
        "谢谢你。",
    ]
    pieces = CHARACTERS.pieces("x" * 30 + " yy")
    assert "".join(pieces) == "x" * 30 + "yy"
    assert max(map(len, pieces)) <= 7
    assert CHARACTERS.first("x" * 30) == "x" * 7


@pytest.mark.parametrize("text", ["a", ".", " .", "word, ", '!" ', "。", "\u0301", "\u2028 "])
def test_time_is_proportional_to_the_text(text):
    cutter = Cutter(lambda texts: [1 + len(text) // 4 for text in texts], 255)
    start = time.process_time()
    pieces = cutter.pieces("x" + text * 60_000)
    assert time.process_time() - start < 10  # quadratic time would be minutes
    assert not any(map(cutter.is_long, pieces))
    together = "".join(pieces).replace("\u2028", "")  # a part of words, but not at their ends
    assert together.replace(" ", "") == "x" + text.replace(" ", "").replace("\u2028", "") * 60_000


def test_a_long_word_is_not_counted():
    """Some tokenizers take quadratic time for it."""

    def count(texts):
        assert max(map(len, texts), default=0) <= 28
        return list(map(len, texts))

    cutter = Cutter(count, 7)
    assert cutter.is_long("x" * 29)
    assert max(map(len, cutter.pieces("x" * 999))) <= 7


def test_translations_of_pieces_are_joined():
    a = Translation("A a.", -1.0, -2.0, ["A", "a."], [-0.5, -1.5], [(0, 1), (1, 0)])
    b = Translation("B.", -3.0, -4.0, ["B."], [-4.0], [(0, 0)])
    worse = b._replace(text="C.", score=-5.0, log_prob=-6.0, token_log_probs=[-6.0])
    best, second = join([[a], [b, worse]], ["a a.", "b."], "a a. b.", "en")
    assert best == Translation(
        "A a. B.", -4.0, -6.0, ["A", "a.", "B."], [-0.5, -1.5, -4.0], [(0, 1), (1, 0), (2, 2)]
    )
    assert second.text == "A a. C."
    assert second.score == -6.0
    (chinese,) = join([[a], [b]], ["a a.", "b."], "a a.b.", "zh")
    assert chinese.text == "A a.B."
    assert chinese.alignment == [(0, 1), (1, 0), (1, 1)]  # "a.b." and "a.B." are words
    assert join([[a], [b]], ["a a.", "b."], "a a.b.", "zho_Hans") == [chinese]
    none = a._replace(alignment=None)
    assert join([[none], [none]], ["a", "b"], "a b", "en")[0].alignment is None


@pytest.mark.parametrize(
    ("policy", "times", "source", "pieces"),
    [
        ("split", 1, "a b. C d", [("a b.", "A"), ("C d", "")]),
        ("split", 2, "a b. c d", [("a b. c d", "A")]),  # evaluation leaves it whole
        ("split", 2, "a b. C d e f g", [("a b.", "A"), ("C d e", ""), ("f g", "")]),
        ("cut", 1, "a b. c d", [("a b. c", "A")]),
        ("whole", 1, "a b. c d", [("a b. c d", "A")]),
        ("split", 1, " \t " * 9, [(" \t " * 9, "A")]),
    ],
)
def test_a_search_in_pieces(policy, times, source, pieces):
    """The first has the prefix, and all have the number. Progress counts lines."""
    lines, seen, done = LongLines(policy, echo_model.Words(), 3, times, "en"), [], []

    def find(requests, progress):
        seen.extend(requests)
        progress(0)
        progress(len(requests))
        return [[echo_model.translation(request.source.upper())] for request in requests]

    requests = [Request("x"), Request(source, "A", number=7)]
    (first,), (second,) = lines.search(find, requests, done.append)
    assert seen == [Request("x"), *(Request(*piece, number=7) for piece in pieces)]
    assert (first.text, second.text) == ("X", " ".join(text.upper() for text, _ in pieces))
    assert done == [0, 2]


def test_long_lines_that_are_refused():
    def find(requests, progress):
        raise AssertionError

    for policy, said in (("refuse", "longer than 3 tokens"), ("split", "cannot share constraints")):
        lines = LongLines(policy, echo_model.Words(), 3, 1, "en")
        with pytest.raises(UserError, match=said):
            lines.search(find, [Request("a b. C d", constraints=["c"])], print)
