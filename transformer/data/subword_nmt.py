"""Byte-pair encoding (BPE) of pre-tokenised text, with the subword-nmt library.

Much published work on translation uses it. Words are separated by spaces. Merges, learned from
the words, join characters to symbols; all symbols of a word but the last end in "@@".
The vocabulary is the set of symbols in the training text; any other symbol is unknown.
"""

import collections
import contextlib
import io
import itertools
import json
import os
import random
import re
from collections.abc import Iterable, Sequence
from typing import TypedDict

from transformer.data.bpe_dropout import LONGEST, segment
from transformer.data.vocabulary import (
    BOS,
    LINE_BREAKS,
    PAD,
    UNK,
    Tokenizer,
    until_eos,
    without_surrogates,
)
from transformer.system.errors import UserError
from transformer.system.reading import parse_json

_JOINED = "@@ "
_END = "</w>"
_UNKNOWN = "<unk>"
_VERSION = "#version: 0.2"  # of the codes: the end of a word is part of its last character


class _Model(TypedDict):
    merges: list[str]
    symbols: list[str]


class SubwordNmtTokenizer(Tokenizer):
    """BPE merges and a vocabulary.

    model_bytes: JSON, as `train_subword_nmt` makes it: "merges", the lines of a subword-nmt
      codes file, and "symbols" in the order of their ids.
    name: its name in errors.
    Raises UserError for other bytes.
    """

    def __init__(self, model_bytes: bytes, name: str | os.PathLike = "the tokenizer model"):
        try:
            model = parse_json(model_bytes, _Model)
            merges, symbols = model["merges"], model["symbols"]
            if not merges or not all(re.fullmatch(r"[^ \n]+ [^ \n]+", merge) for merge in merges):
                raise ValueError("no pairs")
            if any("\n" in symbol for symbol in symbols):
                raise ValueError("no symbols")
            self._bpe = _bpe(merges)
            self._symbols = [None, None, None, _UNKNOWN, *symbols]  # PAD, BOS, EOS
            self._ids = {symbol: UNK + 1 + i for i, symbol in enumerate(symbols)}
        except ValueError as error:
            raise UserError(
                f"{name} is not a subword-nmt tokenizer; give the tokenizer.model of a run"
            ) from error
        self.model_bytes = model_bytes
        self.vocab_size = len(self._symbols)

    @property
    def pieces(self) -> list[str]:
        return ["<pad>", "<s>", "</s>", *self._symbols[UNK:]]

    def encode_batch(self, texts: Sequence[str], num_threads: int) -> list[list[int]]:
        del num_threads  # subword-nmt is Python, with a cache of words
        return [[self._ids.get(symbol, UNK) for symbol in _split(self._bpe, t)] for t in texts]

    def sample_batch(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """See Tokenizer. If a symbol drawn for a word is unknown, the word gets no dropout.

        A symbol is unknown if BPE merges it with a neighbour wherever it occurs in the training
        text.
        """
        rng = random.Random(seed)
        return [self._sample(_clean(text).split(" "), alpha, rng) for text in texts]

    def _sample(self, words: list[str], alpha: float, rng: random.Random) -> list[int]:
        def rank(left: str, right: str) -> int | None:
            return self._bpe.bpe_codes.get((left, right))

        ids = []
        for word in filter(None, words):
            symbols = []
            if len(word) <= LONGEST:
                *first, last = segment([*word[:-1], word[-1] + _END], rank, alpha, rng)
                symbols = [*(f"{symbol}@@" for symbol in first), last.removesuffix(_END)]
            if not symbols or any(symbol not in self._ids for symbol in symbols):
                symbols = self._bpe.segment_tokens([word])
            ids += [self._ids.get(symbol, UNK) for symbol in symbols]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """See Tokenizer. One space separates words; a symbol that ends in "@@" joins the next."""
        symbols = (self._symbols[token] for token in until_eos(ids) if token not in (PAD, BOS))
        return " ".join(symbols).replace(_JOINED, "").removesuffix(_JOINED.strip())


def train_subword_nmt(sentences: Sequence[str], *, num_merges: int) -> SubwordNmtTokenizer:
    """Learns merges and a vocabulary; the same sentences give the same bytes.

    num_merges: fewer are learned once no pair of symbols occurs twice.
    Raises UserError without words, and for words that give no merge.
    """
    from subword_nmt.learn_bpe import learn_bpe

    texts = [text for text in map(_clean, sentences) if text.strip(" ")]
    if not texts:
        raise UserError("no text to train the tokenizer on: every sentence is empty")
    codes = io.StringIO(newline="\n")
    if any(len(word) > 1 for text in texts for word in text.split(" ")):
        with contextlib.redirect_stderr(io.StringIO()):  # progress messages
            learn_bpe(texts, codes, num_merges)
    merges = codes.getvalue().split("\n")[1:-1]  # the first line is the version
    if not merges:
        raise UserError("no pair of characters occurs twice in the text to train the tokenizer on")
    bpe = _bpe(merges)
    counts = collections.Counter(itertools.chain.from_iterable(_split(bpe, t) for t in texts))
    # The most frequent first, as is usual; equally frequent ones in a fixed order.
    symbols = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    model = {"merges": merges, "symbols": symbols}
    return SubwordNmtTokenizer(json.dumps(model, ensure_ascii=False).encode())


def _bpe(merges: Sequence[str]):
    from subword_nmt.apply_bpe import BPE

    return BPE(io.StringIO("\n".join([_VERSION, *merges]), newline="\n"))


def _split(bpe, text: str) -> list[str]:
    return bpe.segment_tokens(_clean(text).split(" "))


def _clean(text: str) -> str:
    return without_surrogates(text).translate(LINE_BREAKS)
