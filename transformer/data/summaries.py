"""Documents and their summaries, from files of records, text files, or TFDS datasets."""

import dataclasses

from transformer.data.pairs import PairSource
from transformer.data.sources import open_pairs
from transformer.data.splits import PairSection
from transformer.system.errors import UserError, check_choice

LONG_DOCUMENTS = ("cut", "refuse")
_BREAK = "\x1f"  # Unicode's unit separator, which no text holds


@dataclasses.dataclass(frozen=True)
class SummaryData(PairSection):
    """The data section; see configs/summarization.py."""

    document_field: str
    summary_field: str
    test_summary_fields: str | None
    line_break: str
    long_documents: str

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

    named_by = "summary_field" if summary_field == config.summary_field else "test_summary_fields"
    columns = {"document_field": config.document_field, named_by: summary_field}
    return open_pairs(config, split, columns, clean)
