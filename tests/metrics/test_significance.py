import pytest

from transformer.metrics.scores import corpus_scores
from transformer.metrics.significance import against

KIND = {"target_language": "de", "is_tokenized": True, "bleu_tokenizer": None}
REFERENCES = [f"the {word} cat number {i} sat on the mat" for i in range(20) for word in "ab"]
# Slightly wrong everywhere; wrong in one sentence.
WORSE = [line.replace("mat", "rug") for line in REFERENCES]
OTHER = [*WORSE[:-1], REFERENCES[-1]]


@pytest.mark.parametrize(
    ("own", "p"), [(WORSE, (1, 1)), (OTHER, (0.1, 0.9)), (REFERENCES, (0, 0.002))]
)
def test_p_is_small_where_all_sentences_differ(own, p):
    """Of equal translations it is 1."""
    for name, entry in against("x", WORSE, own, [REFERENCES], KIND).items():
        before, after = (
            corpus_scores(lines, REFERENCES, **KIND)[name]["score"] for lines in (WORSE, own)
        )
        assert entry["score"] == pytest.approx(before)
        assert entry["difference"] == pytest.approx(after - before)
        assert p[0] <= entry["p_value"] <= p[1]
        assert (entry["other"], entry["test"]) == ("x", "paired bootstrap, 1,000 samples")


def test_several_references():
    """A blank reference beside another one does not count."""
    found = against("x", WORSE, REFERENCES, [REFERENCES, [""] * 40], KIND)["bleu"]
    assert found["score"] + found["difference"] == pytest.approx(100)
