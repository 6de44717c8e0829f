import pytest

from transformer.metrics.accuracy import corpus_accuracies, errors_by_task


def accuracies(*pairs: tuple[str, str]) -> tuple[float, float]:
    scores = corpus_accuracies(*zip(*pairs, strict=True))
    assert list(scores) == ["accuracy", "sequence_accuracy"]
    assert all(score["definition"] for score in scores.values())
    return tuple(score["score"] for score in scores.values())


@pytest.mark.parametrize(
    ("output", "reference", "right", "positions"),  # EOS is a position, too
    [
        ("1 2 3", "1 2 3", 4, 4),
        ("1 2", "1 2 3", 2, 4),  # EOS is where 3 should be, and nothing is where EOS should be
        ("1 2 3 3", "1 2 3", 3, 4),  # 3 is where EOS should be
        ("1 2 3 3 3 3 3", "1 2 3", 3, 4),  # and what follows does not count
        ("2 3", "1 2 3", 0, 4),  # positions count, not the order
        ("", "1 2 3", 0, 4),
        ("12 3", "12 4", 2, 3),  # symbols are whole words
        ("", "", 1, 1),
    ],
)
def test_positions_of_one_output(output, reference, right, positions):
    expected = pytest.approx(100 * right / positions), 100.0 * (right == positions)
    assert accuracies((output, reference)) == expected


def test_symbols_count_alike_whatever_output_they_are_of():
    # 2 of 2 and 0 of 6 positions; the mean of the two accuracies would be 50.
    assert accuracies(("7", "7"), ("1", "2 3 4 5 6")) == (25.0, 50.0)


def test_errors_by_task():
    # 1 of 20 is wrong in the first task, 1 of 10 in the second, none in the third.
    tasks = ["qa1"] * 20 + ["qa2"] * 10 + ["qa10"] * 10
    references = ["milk apple"] * 40
    hypotheses = ["apple milk", *["milk apple"] * 19, "milk", *["milk  apple"] * 19]
    scores = errors_by_task(hypotheses, references, tasks)
    assert {name: score["score"] for name, score in scores.items()} == {
        "mean_error": pytest.approx(5.0),
        "failed_tasks": 1,  # 5 per cent is no failure
        "error_qa1": 5.0,
        "error_qa2": 10.0,
        "error_qa10": 0.0,
    }
    # The mean counts tasks alike: of all 40 answers, two are wrong, as it happens 5 per cent, too.
    fewer = errors_by_task(hypotheses[20:], references[20:], tasks[20:])
    assert fewer["mean_error"]["score"] == 5.0
    assert "more than 5 per cent" in fewer["failed_tasks"]["definition"]
