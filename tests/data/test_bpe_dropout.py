"""BPE-dropout of words whose merges are known."""

import collections
import random

import pytest

from transformer.data.bpe_dropout import segment


def ranks(*merges):
    """Of merges such as "a b", the first first."""
    numbers = {tuple(merge.split(" ")): number for number, merge in enumerate(merges)}
    return lambda left, right: numbers.get((left, right))


def shares(word, rank, alpha, draws=20_000):
    rng = random.Random(3)
    counts = collections.Counter(" ".join(segment(word, rank, alpha, rng)) for _ in range(draws))
    return {symbols: count / draws for symbols, count in counts.items()}


@pytest.mark.parametrize(
    ("word", "merges", "expected"),
    [
        ("", [], ""),
        ("a", ["a a"], "a"),
        ("abc", [], "a b c"),
        ("abc", ["b c", "a b"], "a bc"),
        ("abc", ["a b", "b c"], "ab c"),
        ("abc", ["b c", "a b", "a bc"], "abc"),
        ("aaa", ["a a"], "aa a"),  # of equal ones the left one
        ("aaaa", ["a a", "aa aa"], "aaaa"),
    ],
)
def test_without_dropout_it_is_bpe(word, merges, expected):
    assert segment(word, ranks(*merges), 0.0, random.Random(3)) == expected.split()


def test_nothing_is_left_of_bpe_when_all_is_left_out():
    assert segment("abab", ranks("a b", "ab ab"), 1.0, random.Random(3)) == list("abab")


def test_a_merge_is_left_out_with_probability_alpha():
    found = shares("ab", ranks("a b"), 0.3)
    assert found == pytest.approx({"ab": 0.7, "a b": 0.3}, abs=0.015)


def test_each_is_drawn_for_itself_and_again_at_each_step():
    # First both of "a b" and "b c" are drawn: with 0.25 none is left, and it ends; with 0.5
    # "a b" is taken; else "b c". Then "a bc" has a draw of its own.
    found = shares("abc", ranks("a b", "b c", "a bc"), 0.5)
    assert found == pytest.approx(
        {"ab c": 0.5, "a b c": 0.25, "abc": 0.125, "a bc": 0.125}, abs=0.015
    )
    # Both places are drawn: none is taken with 0.25. Else one is, and the other with 0.5: at the
    # next step, whatever was drawn for it before.
    found = shares("abab", ranks("a b"), 0.5)
    assert found["a b a b"] == pytest.approx(0.25, abs=0.015)
    assert found["ab ab"] == pytest.approx(0.375, abs=0.015)
