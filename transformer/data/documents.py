"""Documents of plain text as token ids, and the sequences that BERT's pre-training cuts from them.

Text files have one sentence a line and an empty line between documents, as in the original code; in
other files, each record is a document. A sequence is [CLS] A [SEP] or [CLS] A [SEP] B [SEP], where
A and B are one or more lines each.
"""

import dataclasses
import functools
import hashlib
import itertools
import random
from collections.abc import Iterator

import numpy as np

from transformer.data.pairs import in_chunks
from transformer.data.records import Records
from transformer.data.wordpiece import WordPiece
from transformer.system.errors import UserError

_BLOCK = 500  # documents tokenised at once
_TRIES = 10  # to find another document than one's own


def read_documents(texts: Records) -> Iterator[list[str]]:
    """The lines of each document that has any."""
    for (text,) in texts.texts():
        if document := [line for x in text.split("\n") if (line := x.strip())]:
            yield document


def text_sha256(texts: Records) -> str:
    """A hash of the documents."""
    content = hashlib.sha256()
    for document in read_documents(texts):
        content.update(("\n".join(document) + "\n\n").encode(errors="surrogatepass"))
    return content.hexdigest()


@dataclasses.dataclass(frozen=True)
class Documents:
    """Token ids of all lines, one after the other.

    Line i is tokens[offsets[i] : offsets[i + 1]]. Document d has lines starts[d] to
    starts[d + 1] - 1.
    """

    tokens: np.ndarray  # int32
    offsets: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1


def tokenize(texts: Records, tokenizer: WordPiece) -> Documents:
    """The documents of texts. Raises UserError if they hold none."""
    parts, lengths, starts = [], [0], [0]
    for block in in_chunks(read_documents(texts), _BLOCK):
        encoded = iter(tokenizer.encode_batch([line for document in block for line in document]))
        for document in block:
            own = [ids for ids in itertools.islice(encoded, len(document)) if ids]
            parts += [np.array(ids, np.int32) for ids in own]
            lengths += map(len, own)
            if own:  # other documents had only control characters
                starts.append(starts[-1] + len(own))
    if len(starts) == 1:
        raise UserError(
            f"{texts} hold no documents; give text with one sentence a line and an "
            "empty line between documents"
        )
    return Documents(np.concatenate(parts), np.cumsum(lengths), np.array(starts))


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Sequences cut from documents: where A and B begin and end in `tokens`; B may be empty."""

    documents: Documents
    spans: np.ndarray  # [N, 4]
    is_random: np.ndarray  # 1: B is from elsewhere, 0: it follows A; -1: there is no B

    def __len__(self) -> int:
        return len(self.spans)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """The number of tokens in each sequence, special ones included."""
        a, b = (self.spans[:, i + 1] - self.spans[:, i] for i in (0, 2))
        return a + b + np.where(self.is_random < 0, 2, 3)


def cut(
    documents: Documents,
    max_length: int,
    short_rate: float,
    duplicates: int,
    has_pairs: bool,
    seed: int,
) -> Sequences:
    """Cuts each document into sequences, `duplicates` times; depends only on its arguments.

    Pairs are made as in the original code. Lines are collected up to `max_length`; in a share
    `short_rate` of the documents, only up to a random length. A is the first part of these lines,
    up to a random one. With even chance, or if there is only one line, B is not the rest but from
    another document, and the rest is used again. So more than half of all B are random.

    Without pairs, sequences hold as many lines as fit.
    """
    if has_pairs and len(documents) < 2:
        raise UserError(
            "the training text is one document, and next-sentence pairs need two; put empty lines "
            "between documents, or set model.head to masked_lm"
        )
    draw = random.Random(seed).random  # Python promises that this stays the same
    make, room = (_pairs, max_length - 3) if has_pairs else (_singles, max_length - 2)
    numbers = duplicates * list(range(len(documents)))
    found = [x for number in numbers for x in make(documents, number, room, short_rate, draw)]
    spans, labels = ([x[i] for x in found] for i in (0, 1))
    return Sequences(documents, np.array(spans, np.int64), np.array(labels, np.int8))


def _target(room: int, short_rate: float, draw) -> int:
    """The length up to which the sequences of a document are filled."""
    return 2 + int(draw() * (room - 1)) if draw() < short_rate else room


def _pairs(documents, number, room, short_rate, draw):
    """Spans and labels of one document."""
    offsets, starts = documents.offsets, documents.starts
    first, end = int(starts[number]), int(starts[number + 1])
    target = _target(room, short_rate, draw)
    line = begin = first
    while line < end:
        length = offsets[line + 1] - offsets[begin]
        if line < end - 1 and length < target:
            line += 1
            continue
        count = line + 1 - begin
        middle = begin + 1 + (int(draw() * (count - 1)) if count >= 2 else 0)
        a = int(offsets[begin]), int(offsets[middle])
        if count == 1 or draw() < 0.5:
            for _ in range(_TRIES):
                other = int(draw() * len(documents))
                if other != number:
                    break
            other_end = int(starts[other + 1])
            b_line = int(starts[other]) + int(draw() * (other_end - starts[other]))
            b_end = b_line + 1
            wanted = target - (a[1] - a[0])
            while b_end < other_end and offsets[b_end] - offsets[b_line] < wanted:
                b_end += 1
            b = int(offsets[b_line]), int(offsets[b_end])
            label, line = 1, middle - 1
        else:
            b = a[1], int(offsets[line + 1])
            label = 0
        yield _truncate(a, b, room, draw), label
        line += 1
        begin = line


def _truncate(a, b, room, draw) -> tuple[int, int, int, int]:
    """Takes tokens off the longer one, at random from its front or back, until both fit."""
    a, b = list(a), list(b)
    while (excess := a[1] - a[0] + b[1] - b[0] - room) > 0:
        longer = a if a[1] - a[0] > b[1] - b[0] else b
        for _ in range(min(excess, max(1, abs(a[1] - a[0] - b[1] + b[0])))):
            if draw() < 0.5:
                longer[0] += 1
            else:
                longer[1] -= 1
    return a[0], a[1], b[0], b[1]


def _singles(documents, number, room, short_rate, draw):
    """Spans of one document, without B, labelled -1. A line longer than a sequence is cut off."""
    offsets, starts = documents.offsets, documents.starts
    target = _target(room, short_rate, draw)
    begin = int(starts[number])
    for line in range(begin, int(starts[number + 1])):
        if offsets[line + 1] - offsets[begin] > target and line > begin:
            yield _single(offsets, begin, line, room), -1
            begin = line
    yield _single(offsets, begin, int(starts[number + 1]), room), -1


def _single(offsets, begin, end, room) -> tuple[int, int, int, int]:
    first = int(offsets[begin])
    last = min(int(offsets[end]), first + room)
    return first, last, last, last
