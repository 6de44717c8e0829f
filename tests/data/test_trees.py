"""Penn brackets, the sequences of trees, and how broken sequences are mended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.data.trees import (
    Tree,
    cleaned,
    escaped,
    is_well_formed,
    linearised,
    own_tag,
    read_trees,
    repaired,
)
from transformer.system.errors import UserError

JOHN = "(S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .))"
SEQUENCE = "(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S"


def read(*lines):
    return list(read_trees(lines, "bank.mrg"))


def tree_of(text):
    (tree,) = read(text)
    return tree


def clean(text, remove_traces=True, remove_functions=True):
    tree = cleaned(tree_of(text), remove_traces=remove_traces, remove_functions=remove_functions)
    return tree and str(tree)


def test_trees_on_one_line_or_several():
    assert list(map(str, read(JOHN, "", f"( {JOHN[:20]}", JOHN[20:], ")"))) == [JOHN, f"( {JOHN})"]
    assert [leaf.word for leaf in tree_of(JOHN).leaves()] == ["John", "has", "a", "dog", "."]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([JOHN, "", JOHN[:-1], JOHN], "bank.mrg, line 3: the tree that begins here is not closed"),
        ([JOHN, JOHN + ")"], "line 2: a bracket is closed that was not opened"),
        (
            ["(S (NN Ro(SSA)) (VB x))"],
            "line 1: the word 'Ro' stands beside brackets; write .*-LRB-",
        ),
        (["(S (NP a dog))"], r"line 1: \(NP has 2 words; give each a tag"),
        (["", "(S (NP))"], r"line 2: \(NP\) is an empty tree"),
        (["()"], r"line 1: \(\) is an empty tree"),
        (["hello"], "line 1: 'hello' stands outside of brackets"),
        (["(" * 300], "line 1: more than 150 brackets"),
    ],
)
def test_refused(lines, message):
    with pytest.raises(UserError, match=message):
        read(*lines)


def test_traces_functions_and_roots():
    text = (
        "( (S (NP-SBJ-1 (PRP It)) (VP (VBZ is) (SBAR (-NONE- 0) (S (-NONE- *T*-1))) (ADJP=2 (JJ x)"
        "))) )"
    )
    assert clean(text) == "(S (NP (PRP It)) (VP (VBZ is) (ADJP (JJ x))))"
    assert clean(text, remove_traces=False).count("-NONE-") == 2
    assert "NP-SBJ-1" in clean(text, remove_functions=False)
    assert clean("(S1 (S (-NONE- *)))") is None
    assert clean("(S1 (NN dog))") == "(TOP (NN dog))"
    assert clean("(NN dog)") == "(TOP (NN dog))"
    assert clean("( (NP (NN a)) (NP (NN b)))") == "(TOP (NP (NN a)) (NP (NN b)))"
    assert clean("(S (-LRB- -LRB-))") == "(S (-LRB- -LRB-))"  # a tag is no label to be cut


def test_the_sequence_of_the_papers():
    tree = tree_of(JOHN)
    assert " ".join(linearised(tree, with_tags=False)) == SEQUENCE
    assert len(SEQUENCE.split()) == 5 + 2 * 4
    assert "NNP" in linearised(tree, with_tags=True)


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
    assert escaped("Ro(SSA)") == "Ro-LRB-SSA-RRB-"


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


@given(TREES)
def test_a_tree_comes_back(tree):
    leaves = list(tree.leaves())
    tokens = linearised(tree, with_tags=False)
    assert is_well_formed(tokens, len(leaves))
    assert not is_well_formed(tokens, len(leaves) + 1)
    assert repaired(tokens, ["w"] * len(leaves), [x.label for x in leaves]) == tree
    assert read(str(tree)) == [tree]


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
