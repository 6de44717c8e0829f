"""Plain text for a language model: documents as token ids, cut into windows of one length."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from transformer.data.documents import read_documents, text_sha256
from transformer.data.pairs import Pair, PairSource, ReadPairs, in_chunks
from transformer.data.records import Records
from transformer.data.splits import TextSection
from transformer.data.token_files import COUNTED, TokenizedPairs, token_dtype
from transformer.data.vocabulary import EOS, Tokenizer
from transformer.system.errors import UserError, check_range

_BLOCK = 500  # documents tokenised at once


@dataclasses.dataclass(frozen=True)
class LanguageData(TextSection):
    """The data section; see configs/lm.py."""

    max_length: int
    packing: bool

    def __post_init__(self):
        super().__post_init__()
        check_range(self, "data", "max_length", 2)

    @property
    def max_source_length(self) -> int:
        """The longest prompt, for the commands that translate."""
        return self.max_length

    @property
    def max_target_length(self) -> int:
        return self.max_length


def text_lines(texts: Records) -> PairSource:
    """The lines of texts, each the target of an empty source; empty lines are left out."""

    def read() -> Iterator[Pair]:
        return (("", line) for document in read_documents(texts) for line in document)

    if not (count := sum(1 for _ in read())):
        raise UserError(f"{texts} hold no text; give files with lines of text")
    return ReadPairs(read, count, text_sha256(texts), f"lines of {texts}")


class Windows(NamedTuple):
    """Windows as pairs whose source is only EOS, and the size of their text."""

    pairs: TokenizedPairs
    num_documents: int
    num_bytes: int  # UTF-8, with one space between the lines of a document


def windows(texts: Records, tokenizer: Tokenizer, length: int) -> Windows:
    """The documents' tokens, EOS after each document, in windows of at most `length` tokens.

    Windows do not overlap, and none holds parts of two documents.
    """
    dtype = token_dtype(tokenizer.vocab_size)
    parts, lengths, num_documents, num_bytes = [], [], 0, 0
    for block in in_chunks(read_documents(texts), _BLOCK):
        joined = [" ".join(document) for document in block]
        num_documents += len(joined)
        num_bytes += sum(len(text.encode(errors="replace")) for text in joined)
        for ids in tokenizer.encode_batch(joined, num_threads=-1):
            parts.append(np.asarray([*ids, EOS], dtype))
            whole, rest = divmod(len(parts[-1]), length)
            lengths += whole * [length] + ([rest] if rest else [])
    if not parts:
        raise UserError(f"{texts} hold no text; give files with lines of text")
    count = len(lengths)
    pairs = TokenizedPairs(
        source_tokens=np.full(count, EOS, dtype),
        source_offsets=np.arange(count + 1),
        target_tokens=np.concatenate(parts),
        target_offsets=np.concatenate([[0], np.cumsum(lengths)]),
        report={**dict.fromkeys(COUNTED, 0), "pairs": count, "total": count},
    )
    return Windows(pairs, num_documents, num_bytes)
