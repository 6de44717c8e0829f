"""Special token ids, and the interface of a tokenizer."""

import abc
import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

PAD, BOS, EOS, UNK = 0, 1, 2, 3
FILLER = "_"  # a word that fills up a position of several words; see datasets/babi.py
LINE_BREAKS = str.maketrans("\r\n", "  ")  # a sentence is one line


class Tokenizer(abc.ABC):
    """Text to token ids and back.

    model_bytes: the whole tokenizer, as a file holds it.
    vocab_size: ids are 0 to vocab_size - 1; PAD, BOS, EOS and UNK are the first four.
    languages: the codes of the languages that texts may name, with their tokens.
    beginning: the tokens at the beginning of each line, which name its language.
    """

    model_bytes: bytes
    vocab_size: int
    languages: Mapping[str, int] = {}
    beginning: Sequence[int] = ()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.model_bytes).hexdigest()

    @property
    @abc.abstractmethod
    def pieces(self) -> list[str]:
        """The name of each id, as other systems write tokens."""

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str], num_threads: int) -> list[list[int]]:
        """Token ids of lines of text, without BOS and EOS, on `num_threads` threads.

        A lone surrogate, which UTF-8 cannot hold, is read as U+FFFD.
        """

    @abc.abstractmethod
    def sample_batch(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """`encode_batch` with BPE-dropout: see bpe_dropout.segment. One seed gives the same ids.

        Words of more than bpe_dropout.LONGEST characters, or texts with such words, are segmented
        without dropout. Raises UserError for a vocabulary that has no merges.
        """

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text, one line, of token ids up to the first EOS; PAD and BOS are skipped."""

    def for_language(self, code: str, field: str = "") -> "Tokenizer":
        """This tokenizer for lines of a language; itself, if they do not name their language.

        code: "" for none. field: the one that gives it, for messages.
        Raises UserError for a language that is not among `languages`.
        """
        del code, field
        return self

    def encode(self, text: str) -> list[int]:
        """`encode_batch` of one line."""
        return self.encode_batch([text], num_threads=1)[0]


def until_eos(ids: Iterable[int]) -> list[int]:
    return list(itertools.takewhile(lambda token: token != EOS, map(int, ids)))


def without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text)
    return text
