import pytest
from sacrebleu import sentence_chrf

from transformer.decoding.mbr import by_utility, chosen
from transformer.system.errors import UserError

CANDIDATES = ["a dog barks", "the cat sat", "the cat sits", "the cat sat", "that cat sat down"]


def test_the_best_is_most_like_all_of_them():
    means = [
        sum(sentence_chrf(one, [other]).score for other in CANDIDATES) / len(CANDIDATES)
        for one in CANDIDATES
    ]
    found = by_utility(CANDIDATES)
    assert found[:2] == [1, 3]  # equal, and drawn twice
    assert [means[i] for i in found] == pytest.approx(sorted(means, reverse=True))
    assert found[-1] == 0
    assert by_utility([""]) == [0]


def test_candidates_of_several_sources():
    """A blank source has blank candidates; one of fewer candidates has blanks for the rest."""
    lines = [*CANDIDATES, *[""] * 5, "b", "c", "", "", ""]
    assert chosen(lines, 5, None) == ["the cat sat", "", "b"]
    scores = ["1", "-2", "3e1", "0", "-inf", *5 * ["0"], "0 -2", "-3\t2", "9", "9", "9"]
    assert chosen(lines, 5, scores) == ["the cat sits", "", "c"]
    assert chosen(["x", "y"], 1, None) == ["x", "y"]


@pytest.mark.parametrize(
    ("nbest", "scores", "message"),
    [
        (2, None, "--candidates has 5 lines, which is no multiple of --nbest=2; give the --nbest"),
        (5, ["1"], "--candidates has 5 lines and --scores has 1; line n of both"),
        (5, ["1", "2", "", "4", "5"], "--scores, line 3 is ''; it must have a number, or several"),
        (5, ["1", "2", "3", "4", "good"], "--scores, line 5 is 'good'; it must have a number"),
        (5, ["1", "nan", "3", "4", "5"], "--scores, line 2 is 'nan'; it must have a number"),
    ],
)
def test_scores_that_cannot_be_used(nbest, scores, message):
    with pytest.raises(UserError) as error:
        chosen(CANDIDATES, nbest, scores)
    assert message in str(error.value)
