"""Digits to copy, to reverse and to add: the algorithmic tasks of the Universal Transformer.

Dehghani et al., 2019 (arXiv 1807.03819), Section 3.2, train on lengths up to 40 and test at 400.
The way to draw examples is that of the authors' Tensor2Tensor (data_generators/algorithmic.py).
"""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow_datasets as tfds

from transformer.data.datasets.ordered_pairs import OrderedPairs


class Split(NamedTuple):
    size: int
    longest: int  # symbols of a source
    all_longest: bool = False  # every source is that long; otherwise lengths are drawn


SPLITS = {
    "train": Split(100_000, 40),
    "validation": Split(2_000, 40),
    "validation_400": Split(200, 400, all_longest=True),  # for choices about length
    "test": Split(2_000, 400),
    "test_400": Split(500, 400, all_longest=True),
}
SEPARATOR = "+"

Example = tuple[list[str], list[str]]  # symbols of source and target
Below = Callable[[int], int]  # below(n) draws one of 0, ..., n - 1


def copy(below: Below, split: Split) -> Example:
    """Digits, and the same digits; the length is uniform in 1, ..., longest."""
    length = split.longest if split.all_longest else 1 + below(split.longest)
    digits = [str(below(10)) for _ in range(length)]
    return digits, digits


def reverse(below: Below, split: Split) -> Example:
    """Digits, and the same digits from the last to the first."""
    digits, _ = copy(below, split)
    return digits, digits[::-1]


def addition(below: Below, split: Split) -> Example:
    """Two numbers and their sum, all with the least significant digit first.

    With L = longest, the first number has 1, ..., L / 2 digits. The second one has at most as many
    as the source still allows.
    """
    first = 1 + below(split.longest // 2)
    room = split.longest - first - 1
    a = _number(below, first)
    b = _number(below, room if split.all_longest else 1 + below(room))
    total = sum(int("".join(reversed(digits))) for digits in (a, b))
    return [*a, SEPARATOR, *b], list(reversed(str(total)))


TASKS = {"copy": copy, "reverse": reverse, "addition": addition}


def examples(task: str, split: str) -> Iterator[Example]:
    """The examples of a split, the same on every machine. Short ones occur more than once."""
    # Only random(), of all methods of Random, is the same in all versions of Python.
    draw = random.Random(f"{task} {split}").random
    for _ in range(SPLITS[split].size):
        yield TASKS[task](lambda n: int(draw() * n), SPLITS[split])


def _number(below: Below, length: int) -> list[str]:
    """A number's digits. The last one, the most significant, is 0 only if it is the only one."""
    low = [below(10) for _ in range(length - 1)]
    return [str(digit) for digit in (*low, 1 + below(9) if low else below(10))]


class Algorithmic(OrderedPairs):
    """Configs "copy", "reverse" and "addition"; symbols are separated by spaces.

    Splits: train and validation (lengths up to 40), test (up to 400), and validation_400 and
    test_400 (exactly 400).
    """

    VERSION = tfds.core.Version("1.1.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in TASKS]
    languages = ("source", "target")
    description = __doc__

    def _split_generators(self, dl_manager) -> dict[str, Iterator]:
        task = self.builder_config.name
        return {
            split: self._generate_examples(map(" ".join, both) for both in examples(task, split))
            for split in SPLITS
        }
