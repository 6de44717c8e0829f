"""How broken sequences become trees."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_trees import JOHN, SEQUENCE, read

from transformer.data.trees import Tree, linearised
from transformer.tasks.mending import is_well_formed, own_tag, repaired

WORDS, TAGS = ["John", "has", "a", "dog", "."], ["NNP", "VBZ", "DT", "NN", "."]


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        (SEQUENCE, JOHN),
        (SEQUENCE.replace(" )VP XX )S", " XX"), JOHN.replace(")) (. .)", ") (. .))")),
        ("(S XX XX", "(S (NNP John) (VBZ has) (DT a) (NN dog) (. .))"),
        ("", "(TOP (NNP John) (VBZ has) (DT a) (NN dog) (. .))"),
        ("XX XX )NP XX", "(TOP (NP (NNP John) (VBZ has)) (DT a) (NN dog) (. .))"),
        ("(S XX XX XX XX XX XX XX )S", "(S (NNP John) (VBZ has) (DT a) (NN dog) (. .))"),
        ("(S (NP )NP XX XX XX XX XX )S", "(S (NNP John) (VBZ has) (DT a) (NN dog) (. .))"),
        ("(S (NP XX )S", "(S (NP (NNP John)) (VBZ has) (DT a) (NN dog) (. .))"),
        ("(S(NP XX )NP)S", "(S (NP (NNP John)) (VBZ has) (DT a) (NN dog) (. .))"),
    ],
)
def test_repair(sequence, expected):
    assert str(repaired(sequence.split(), WORDS, TAGS)) == expected
    assert is_well_formed(sequence.split(), 5) == (sequence == SEQUENCE)


@pytest.mark.parametrize("tokens", [["(S"] * 500, ["XX"] + [")S", ")NP"] * 300, ["(S", "XX"] * 400])
def test_what_never_ends_becomes_a_tree_that_can_be_read(tokens):
    tree = repaired(tokens, ["w"] * 300)
    assert read(str(tree)) == [tree]
    assert len(list(tree.leaves())) == 300


def test_tags_of_the_sequence_itself():
    tree = repaired(["(S", "NN", "VB"], ["dogs", "bark", "."])
    assert str(tree) == "(S (NN dogs) (VB bark) (. .))"
    assert [own_tag(word) for word in (",", "--", "dog")] == [",", ":", "XX"]


patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
LEAVES = st.builds(lambda tag, word: Tree(tag, (), word), st.sampled_from("ABC"), st.just("w"))
TREES = st.builds(
    lambda children: Tree("S", tuple(children)),
    st.lists(
        st.recursive(
            LEAVES,
            lambda inside: st.builds(
                lambda label, children: Tree(label, tuple(children)),
                st.sampled_from(["S", "NP", "VP"]),
                st.lists(inside, min_size=1, max_size=3),
            ),
            max_leaves=7,
        ),
        min_size=1,
        max_size=3,
    ),
)


@patient
@given(TREES)
def test_a_tree_comes_back(tree):
    leaves = list(tree.leaves())
    tokens = linearised(tree, with_tags=False)
    assert is_well_formed(tokens, len(leaves))
    assert not is_well_formed(tokens, len(leaves) + 1)
    assert repaired(tokens, ["w"] * len(leaves), [x.label for x in leaves]) == tree
    assert read(str(tree)) == [tree]


@patient
@given(
    st.lists(st.sampled_from(["(S", ")S", "(NP", ")NP", "XX", "(S(NP", ")S(", "X)"])),
    st.integers(1, 5),
)
def test_any_sequence_becomes_a_tree_over_its_words(tokens, num_words):
    words = [f"w{i}" for i in range(num_words)]
    tree = repaired(tokens, words)
    assert [leaf.word for leaf in tree.leaves()] == words
    assert read(str(tree)) == [tree]
    again = linearised(tree, with_tags=False)
    assert is_well_formed(again, num_words)
    if is_well_formed(tokens, num_words):
        assert again == tokens
