"""Texts, or pairs of texts, each with a class or a number, from TSV, JSON lines or TFDS."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from transformer.data.splits import DatasetSection, open_dataset
from transformer.data.text_files import ending, json_rows, read_lines
from transformer.system.errors import UserError, check_range, place
from transformer.system.paths import local


@dataclasses.dataclass(frozen=True)
class LabelledData(DatasetSection):
    """The data section; see configs/classification.py."""

    train_file: str | None = place()
    validation_file: str | None = place()
    test_file: str | None = place()
    has_header: bool
    text_column: str
    second_column: str | None
    label_column: str
    regression: bool
    max_length: int
    packing: bool

    what = "file"
    kinds = (("file",),)

    def __post_init__(self):
        check_range(self, "data", "max_length", 5)  # [CLS], two [SEP], a token each

    @property
    def columns(self) -> dict[str, str]:
        """The columns of an example, by the fields that name them."""
        fields = ("text_column", "second_column", "label_column")
        return {field: name for field in fields if (name := getattr(self, field)) is not None}


class Example(NamedTuple):
    text: str
    second: str | None
    label: str


def read_examples(config: LabelledData, split: str) -> list[Example]:
    """The examples of a split; raises UserError for anything wrong with them."""
    if not config.uses_files:
        return _of_dataset(config, split)
    path = local(config.needed(split, ", or data.dataset")["file"], f"data.{split}_file")
    if ending(path) in (".jsonl", ".json"):
        rows = _of_one_kind(json_rows(path, '{"text": "x"}'), config.label_column)
    else:
        rows = _tsv_rows(path, config.has_header)
    examples = [_example(config, row, place) for place, row in rows]
    if not examples:
        raise UserError(f"{path} has no examples; give a file with one a line")
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
            "data.label_column, or set data.regression"
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


def _example(config: LabelledData, row: Mapping[str, Any], place: str) -> Example:
    for column in config.columns.values():
        if column not in row:
            raise UserError(
                f"{place} has no column {column!r}; there are: {', '.join(row)}: see "
                "data.text_column, data.second_column, data.label_column and data.has_header"
            )
    label = _label(row[config.label_column], place, config)
    text, second = row[config.text_column], config.second_column and row[config.second_column]
    for value in (text, "" if second is None else second):
        if not isinstance(value, str):
            raise UserError(f"{place}: {value!r} is no text")
    return Example(text, second, label)


def _label(value: Any, place: str, config: LabelledData) -> str:
    """The name of a class, or a number. As a class, 1.0 is 1."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise UserError(f"{place} has no label in column {config.label_column!r}; remove the line")
    is_float, label = isinstance(value, float | np.floating), str(value).strip()
    if not isinstance(value, str | int | np.integer | np.bool_) and not (
        is_float and math.isfinite(value)
    ):
        raise UserError(f"{place}: the label is {label:.40}; give text or a finite number")
    if len(label.splitlines()) > 1:
        raise UserError(f"{place}: the label {label!r:.40} has a line break; write it in one line")
    is_whole = is_float and value % 1 == 0 and abs(value) < 2**53
    return str(int(value)) if is_whole and not config.regression else label


def _of_one_kind(
    rows: Iterator[tuple[str, dict[str, Any]]], column: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same rows; UserError if true or false stands among other labels: it may mean 1."""
    first: tuple[str, Any] | None = None
    for where, row in rows:
        if column in row and row[column] is not None:
            first = first or (where, row[column])
            if isinstance(first[1], bool) != isinstance(row[column], bool):
                raise UserError(
                    f"{where}: the label is {row[column]!r:.40}, and {first[1]!r:.40} in "
                    f"{first[0]}; use true and false for all labels or for none"
                )
        yield where, row


def _tsv_rows(path: str, has_header: bool) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of a file with tabs between columns and without quoting.

    Without a header, columns are called 0, 1, ... Blank lines are left out.
    """
    names: list[str] | None = None
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip(" "):
            continue
        values = line.split("\t")
        if names is None:
            names = values if has_header else [str(i) for i in range(len(values))]
            if len(set(names)) < len(names):
                raise UserError(f"{path}, line 1: two columns have one name; rename one")
            if has_header:
                continue
        if len(values) != len(names):
            raise UserError(
                f"{path}, line {number} has {len(values)} columns, and line 1 has {len(names)}; "
                "put one tab between columns and none into text"
            )
        yield f"{path}, line {number}", dict(zip(names, values, strict=True))


def _of_dataset(config: LabelledData, split: str) -> list[Example]:
    import tensorflow_datasets as tfds

    found = open_dataset(config, split, config.columns)
    records, features = found.records(), found.builder.info.features
    feature = features[config.label_column]
    examples = []
    for i in range(len(records)):
        record = dict(records[i])
        label = record[config.label_column]
        if isinstance(feature, tfds.features.ClassLabel):
            # GLUE's test splits have -1 for labels that are not public.
            label = feature.int2str(int(label)) if label >= 0 else None
        texts = {
            name: record[name].decode(errors="replace")
            for name in config.columns.values()
            if isinstance(record[name], bytes)
        }
        row = record | texts | {config.label_column: label}
        examples.append(_example(config, row, f"{config.dataset} {found.name}, example {i + 1}"))
    return examples
