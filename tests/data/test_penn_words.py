"""Raw text as the words of a treebank."""

import pytest

from transformer.data.penn_words import penn_words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ""),
        ("We found it.", "We found it ."),
        ("Dr. Who (in 1963) can't stop...", "Dr. Who ( in 1963 ) ca n't stop..."),
        ("IL-2, IL-4; and 5.2 mM: yes!", "IL-2 , IL-4 ; and 5.2 mM : yes !"),
        ("The cell's Ro(SSA) and (-)-menthol.", "The cell 's Ro(SSA) and (-)-menthol ."),
        ('"Yes," he said.', "`` Yes , '' he said ."),
        ("``Yes,'' he said to `us' ''.", "`` Yes , '' he said to ` us ' '' ."),
        ("They'll (see [1]).", "They 'll ( see [ 1 ] ) ."),
        (". ( )", ". ( )"),
    ],
)
def test_words(line, words):
    assert penn_words(line) == words.split()
