"""Documents and their summaries, from JSON lines, text files, or TFDS datasets."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from transformer.data.sources import (
    SPLITS,
    DatasetPairs,
    Pair,
    PairSource,
    TextPairs,
    check_both_sides,
)
from transformer.data.text_files import count_and_hash, json_rows
from transformer.system.errors import UserError, check_choice, check_range, place
from transformer.system.paths import local

LONG_DOCUMENTS = ("cut", "refuse")
_BREAK = "\x1f"  # Unicode's unit separator, which no text holds


@dataclasses.dataclass(frozen=True)
class SummaryData:
    """The data section; see configs/summarization.py."""

    dataset: str | None
    data_dir: str = place()
    raw_dir: str | None = place()
    train_split: str
    validation_split: str
    test_split: str
    train_file: str | None = place()
    validation_file: str | None = place()
    test_file: str | None = place()
    document_field: str
    summary_field: str
    test_summary_fields: str | None
    train_source: str | None = place()
    train_target: str | None = place()
    validation_source: str | None = place()
    validation_target: str | None = place()
    test_source: str | None = place()
    test_target: str | None = place()
    line_break: str
    long_documents: str
    max_source_length: int
    max_target_length: int
    packing: bool

    def __post_init__(self):
        check_choice(self, "data", "long_documents", LONG_DOCUMENTS)
        check_range(self, "data", "max_source_length max_target_length", 2)  # a word and EOS
        if "\n" in self.line_break:
            raise UserError("data.line_break holds a line break; give what takes its place")
        check_both_sides(self, *SPLITS)
        for split in SPLITS:
            if all(self.text_files(split)) and self.json_file(split):
                raise UserError(
                    f"data.{split}_file and data.{split}_source are both given; leave one out"
                )
        if not self.uses_files and not self.dataset:
            raise UserError(
                "no training data; give data.dataset, data.train_file (JSON lines), or "
                "data.train_source and data.train_target"
            )

    def text_files(self, split: str) -> tuple[str | None, str | None]:
        return getattr(self, f"{split}_source"), getattr(self, f"{split}_target")

    def json_file(self, split: str) -> str | None:
        return getattr(self, f"{split}_file")

    @property
    def uses_files(self) -> bool:
        return any(self.json_file(x) or all(self.text_files(x)) for x in SPLITS)

    def summary_fields(self, split: str) -> list[str]:
        """The fields of a split's summaries; the test split may have several."""
        names = self.summary_field
        if split == "test" and self.test_summary_fields:
            names = self.test_summary_fields
        return [name.strip() for name in names.split(",")]


def open_summaries(config: SummaryData, split: str) -> PairSource:
    """Documents with their first summary; raises UserError for anything wrong with them."""
    return _open(config, split, config.summary_fields(split)[0])


def references(config: SummaryData, split: str) -> list[list[str]]:
    """The summaries of each document of a split: one list for each field of summaries."""
    return [
        [summary for _, summary in _open(config, split, field).pairs()]
        for field in config.summary_fields(split)
    ]


def lines_of_documents(config: SummaryData, split: str) -> list[list[str]]:
    """The lines of each document of a split; for dialogues, the turns."""
    with_breaks = dataclasses.replace(config, line_break=_BREAK)
    return [document.split(_BREAK) for document, _ in open_summaries(with_breaks, split).pairs()]


def _open(config: SummaryData, split: str, summary_field: str) -> PairSource:
    def clean(text: str) -> str:
        return config.line_break.join(line.strip() for line in text.strip().split("\n"))

    if not config.uses_files:
        columns = {"document_field": config.document_field, "summary_field": summary_field}
        return DatasetPairs(config, split, columns, clean)
    if split not in SPLITS:
        raise UserError(f"there is no split {split!r}; there are: {', '.join(SPLITS)}")
    if path := config.json_file(split):
        return JsonPairs(
            local(path, f"data.{split}_file"), config.document_field, summary_field, clean
        )
    if not all(config.text_files(split)):
        raise UserError(
            f"no files for the {split} split; give data.{split}_file, or data.{split}_source and "
            f"data.{split}_target"
        )
    return TextPairs(*config.text_files(split))


class JsonPairs(PairSource):
    """Pairs of document and summary, one from each line of a JSON-lines file, plain or .gz.

    The file is read once here, so that all errors come first: UserError, with the number of the
    line, for a line that is no JSON object, lacks a field, or has a field that is no text.
    """

    def __init__(self, path: str, document_field: str, summary_field: str, clean: Callable):
        self._path, self._clean = path, clean
        self._fields = document_field, summary_field
        _, content = count_and_hash(path)
        self._len = sum(1 for _ in self._pairs())
        if not self._len:
            raise UserError(f"{path} has no documents; give a file with a JSON object a line")
        identity = json.dumps([content, *self._fields, clean("a\nb")])
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()

    def __len__(self) -> int:
        return self._len

    def chunks(self, size: int) -> Iterator[list[Pair]]:
        chunk = []
        for pair in self._pairs():
            chunk.append(pair)
            if len(chunk) == size:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    def _pairs(self) -> Iterator[Pair]:
        for where, record in json_rows(self._path, '{"document": "...", ...}'):
            yield tuple(self._text(record, name, where) for name in self._fields)

    def _text(self, record: dict[str, Any], name: str, place: str) -> str:
        if name not in record:
            raise UserError(
                f"{place} has no field {name!r}; it has: {', '.join(record) or 'none'}; see "
                "data.document_field, data.summary_field and data.test_summary_fields"
            )
        if not isinstance(record[name], str):
            raise UserError(f"{place}: {name!r} is {record[name]!r:.40}, which is no text")
        return self._clean(record[name])

    def describe(self) -> str:
        return f"{self._len} documents of {self._path}"
