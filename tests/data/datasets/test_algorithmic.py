import hashlib
import itertools
from unittest import mock

import pytest

from configs.sweeps import algorithmic as sweep
from transformer.data import datasets
from transformer.data.datasets.algorithmic import (
    SEPARATOR,
    SPLITS,
    Split,
    addition,
    copy,
    examples,
    reverse,
)
from transformer.data.sentencepiece import train_sentencepiece


def scripted(*draws):
    """Draws these numbers; each must be one that may be drawn."""
    script = iter(draws)

    def below(n):
        drawn = next(script)
        assert 0 <= drawn < n, f"{drawn} of {n}"
        return drawn

    below.is_used_up = lambda: next(script, None) is None
    return below


@pytest.mark.parametrize(
    ("task", "split", "draws", "source", "target"),
    [
        # The length less one, then the digits.
        (copy, Split(1, 7), (2, 5, 0, 9), "5 0 9", "5 0 9"),
        (reverse, Split(1, 7), (2, 5, 0, 9), "5 0 9", "9 0 5"),
        (copy, Split(1, 3, all_longest=True), (5, 0, 9), "5 0 9", "5 0 9"),
        # Of each number its length less one, its digits, and the last of them less one: 38 + 962.
        (addition, Split(1, 7), (1, 8, 2, 2, 2, 6, 8), "8 3 + 2 6 9", "0 0 0 1"),
        # A number of one digit may be 0, and so may the sum.
        (addition, Split(1, 7), (0, 0, 0, 0), "0 + 0", "0"),
        # 7 - 1 - 1 digits are left for the second number: 7 + 10,000.
        (addition, Split(1, 7, True), (0, 7, 0, 0, 0, 0, 0), "7 + 0 0 0 0 1", "7 0 0 0 1"),
    ],
)  # fmt: skip
def test_examples_by_hand(task, split, draws, source, target):
    below = scripted(*draws)
    assert [" ".join(side) for side in task(below, split)] == [source, target]
    assert below.is_used_up()


@pytest.mark.parametrize("task", ["copy", "reverse", "addition"])
def test_lengths(task):
    for split in ("validation", "validation_400"):
        found = list(examples(task, split))
        assert len(found) == SPLITS[split].size
        lengths = {len(source) for source, _ in found}
        shortest = 3 if task == "addition" else 1
        assert lengths == ({400} if split.endswith("_400") else set(range(shortest, 41)))
        for source, target in found:
            a, _, b = "".join(source).partition("+")
            expected = {"copy": a, "reverse": a[::-1]}
            if task == "addition":
                assert not [n for n in (a, b) if len(n) > 1 and n[-1] == "0"]
                expected["addition"] = str(int(a[::-1]) + int(b[::-1]))[::-1]
            assert "".join(target) == expected[task]


def test_the_sweep_names_the_plus():
    """The Universal Transformers that add count anew after it: model.separator is its id."""
    config = sweep.get_config().tokenizer
    pairs = itertools.islice(examples("addition", "train"), 5000)
    tokenizer = train_sentencepiece(
        (" ".join(side) for pair in pairs for side in pair),
        vocab_size=config.vocab_size,
        model_type=config.model_type,
    )
    assert tokenizer.encode(f"1 {SEPARATOR} 2")[1] == sweep.COUNTS["addition"]["model.separator"]


def test_lengths_are_drawn_up_to_the_longest():
    for split, longest in (("train", 40), ("test", 400)):
        below = mock.Mock(return_value=0)
        assert copy(below, SPLITS[split]) == (["0"], ["0"])
        assert below.call_args_list == [mock.call(longest), mock.call(10)]
    assert (SPLITS["train"].size, SPLITS["test"].size) == (100_000, 2_000)


def test_examples_are_the_same_everywhere():
    """Of version 1.1.0: if this changes, so must the version."""
    digests = {}
    for task in ("copy", "reverse", "addition"):
        digest = hashlib.sha256()
        for split in SPLITS:
            for source, target in itertools.islice(examples(task, split), 50):
                digest.update(f"{' '.join(source)}\t{' '.join(target)}\n".encode())
        digests[task] = digest.hexdigest()[:16]
    assert digests == {
        "copy": "446d61c4997bcac6",
        "reverse": "a70123beebbf58fe",
        "addition": "57e5ce57be1b0153",
    }


def test_the_builder(tmp_path, monkeypatch):
    small = {name: split._replace(size=7) for name, split in SPLITS.items()}
    monkeypatch.setattr("transformer.data.datasets.algorithmic.SPLITS", small)
    builder = datasets.get_builder("algorithmic/addition", data_dir=str(tmp_path))
    datasets.prepare(builder)
    assert builder.info.full_name == "algorithmic/addition/1.1.0"
    for split in SPLITS:
        records = builder.as_data_source(split).__getitems__(range(7))
        found = [(r["source"].decode(), r["target"].decode()) for r in records]
        assert found == [(" ".join(s), " ".join(t)) for s, t in examples("addition", split)]
