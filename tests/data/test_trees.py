"""Penn brackets, and the sequences of trees."""

import pytest

from transformer.data.trees import (
    cleaned,
    escaped,
    linearised,
    read_trees,
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


def test_brackets_in_words():
    assert escaped("Ro(SSA)") == "Ro-LRB-SSA-RRB-"
