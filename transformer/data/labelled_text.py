"""Texts, or pairs of texts, each with a class or a number, from files of records or TFDS."""

import dataclasses
import hashlib
import json
import math
import re
from typing import Any, NamedTuple

import numpy as np

from transformer.data.records import check_text
from transformer.data.splits import RecordSection, open_dataset
from transformer.system.errors import UserError, check_range, place


@dataclasses.dataclass(frozen=True)
class LabelledData(RecordSection):
    """The data section; see configs/classification.py."""

    data_dir: str = place()
    text_field: str
    second_field: str | None
    label_field: str
    regression: bool
    max_length: int
    packing: bool

    def __post_init__(self):
        check_range(self, "data", "max_length", 5)  # [CLS], two [SEP], a token each

    @property
    def columns(self) -> dict[str, str]:
        """The fields of an example, by the fields of this section that name them."""
        fields = ("text_field", "second_field", "label_field")
        return {field: name for field in fields if (name := getattr(self, field)) is not None}


class Example(NamedTuple):
    text: str
    second: str | None
    label: str


def read_examples(config: LabelledData, split: str) -> list[Example]:
    """The examples of a split; raises UserError for anything wrong with them."""
    columns = config.columns
    rows = (
        open_dataset(config, split, columns).rows(columns)
        if config.uses_tfds
        else config.records(split, columns)
    )
    examples: list[Example] = []
    is_bool, first = False, ""
    for where, (text, *second, value) in rows:
        check_text(where, config.text_field, text)
        for other in second:
            if other is not None:
                check_text(where, config.second_field, other)
        label = _label(value, where, config)
        if not examples:
            is_bool, first = isinstance(value, bool), f"{value!r:.40} in {where}"
        if isinstance(value, bool) != is_bool:  # true may mean 1
            raise UserError(
                f"{where}: the label is {value!r:.40}, and {first}; use true and false for all "
                "labels or for none"
            )
        examples.append(Example(text, second[0] if second else None, label))
    if not examples:
        raise UserError(f"the {split} split has no examples; give one with some")
    return examples


def examples_sha256(examples: list[Example]) -> str:
    content = hashlib.sha256()
    for example in examples:
        content.update((json.dumps(example) + "\n").encode())
    return content.hexdigest()


def classes_of(examples: list[Example], name: str) -> list[str]:
    """The labels, sorted; whole numbers by size. Raises UserError for fewer than two."""
    labels = {example.label for example in examples}
    if len(labels) < 2:
        raise UserError(
            f"{name} has one label alone, {labels.pop()!r}; two at least are needed: check "
            "data.label_field, or set data.regression"
        )
    are_numbers = all(re.fullmatch(r"-?\d{1,300}", label) for label in labels)
    return sorted(labels, key=lambda label: (int(label) if are_numbers else 0, label))


def numbers_of(examples: list[Example], classes: list[str] | None, name: str) -> list[float]:
    """The targets: the number of each label in `classes`; without classes, the label itself."""
    found, numbers = [], {label: float(i) for i, label in enumerate(classes or ())}
    for i, example in enumerate(examples, start=1):
        if classes is None:
            try:
                number = float(example.label)
                if not abs(number) <= float(np.finfo(np.float32).max):
                    raise ValueError
            except ValueError:
                raise UserError(
                    f"{name}, example {i}: the label is {example.label!r}, and data.regression "
                    "needs finite numbers of 32 bits; set it to False for classes"
                ) from None
        else:
            if example.label not in numbers:
                raise UserError(
                    f"{name}, example {i}: unknown label {example.label!r}; the training data "
                    f"have {', '.join(classes[:10])}"
                )
            number = numbers[example.label]
        found.append(number)
    return found


def _label(value: Any, place: str, config: LabelledData) -> str:
    """The name of a class, or a number. As a class, 1.0 is 1."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise UserError(f"{place} has no label in {config.label_field!r}; remove the line")
    is_float, label = isinstance(value, float | np.floating), str(value).strip()
    if not isinstance(value, str | int | np.integer | np.bool_) and not (
        is_float and math.isfinite(value)
    ):
        raise UserError(f"{place}: the label is {label:.40}; give text or a finite number")
    if len(label.splitlines()) > 1:
        raise UserError(f"{place}: the label {label!r:.40} has a line break; write it in one line")
    is_whole = is_float and value % 1 == 0 and abs(value) < 2**53
    return str(int(value)) if is_whole and not config.regression else label
