"""Documents and their summaries, from JSON lines, text files, or TFDS datasets."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from transformer.data.pairs import Pair, PairSource, ReadPairs, TextPairs
from transformer.data.sources import DatasetPairs
from transformer.data.splits import PairSection
from transformer.data.text_files import count_and_hash, json_rows
from transformer.system.errors import UserError, check_choice, place
from transformer.system.paths import local

LONG_DOCUMENTS = ("cut", "refuse")
_BREAK = "\x1f"  # Unicode's unit separator, which no text holds


@dataclasses.dataclass(frozen=True)
class SummaryData(PairSection):
    """The data section; see configs/summarization.py."""

    train_file: str | None = place()
    validation_file: str | None = place()
    test_file: str | None = place()
    document_field: str
    summary_field: str
    test_summary_fields: str | None
    line_break: str
    long_documents: str

    what = "files"
    kinds = (("file",), ("source", "target"))

    def __post_init__(self):
        super().__post_init__()
        check_choice(self, "data", "long_documents", LONG_DOCUMENTS)
        if "\n" in self.line_break:
            raise UserError("data.line_break holds a line break; give what takes its place")

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
    files = config.needed(split)
    if "file" not in files:
        return TextPairs(**files)
    path = local(files["file"], f"data.{split}_file")
    return _of_json(path, (config.document_field, summary_field), clean)


def _of_json(path: str, fields: tuple[str, str], clean: Callable[[str], str]) -> PairSource:
    """Pairs of document and summary, one from each line of a JSON-lines file, plain or .gz.

    The file is read once here, so that all errors come first: UserError, with the number of the
    line, for a line that is no JSON object, lacks a field, or has a field that is no text.
    """

    def text(record: dict[str, Any], name: str, place: str) -> str:
        if name not in record:
            raise UserError(
                f"{place} has no field {name!r}; it has: {', '.join(record) or 'none'}; see "
                "data.document_field, data.summary_field and data.test_summary_fields"
            )
        if not isinstance(record[name], str):
            raise UserError(f"{place}: {name!r} is {record[name]!r:.40}, which is no text")
        return clean(record[name])

    def read() -> Iterator[Pair]:
        for where, record in json_rows(path, '{"document": "...", ...}'):
            yield text(record, fields[0], where), text(record, fields[1], where)

    if not (count := sum(1 for _ in read())):
        raise UserError(f"{path} has no documents; give a file with a JSON object a line")
    identity = json.dumps([count_and_hash(path)[1], *fields, clean("a\nb")])
    fingerprint = hashlib.sha256(identity.encode()).hexdigest()
    return ReadPairs(read, count, fingerprint, f"documents of {path}")
