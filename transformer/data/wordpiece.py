"""WordPiece, BERT's vocabulary, by the library `tokenizers`, in Hugging Face's file formats."""

import collections
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NotRequired, Self, TypedDict

import numpy as np

from transformer.system.errors import UserError, check_range, setting
from transformer.system.files import write_atomically
from transformer.system.packages import optional_module
from transformer.system.paths import cannot_read
from transformer.system.reading import MISSING, read_json, read_text

PAD, UNK, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NOT_OURS = "it is no tokenizer of BERT's; give one, or its vocab.txt"
CONTINUES = "##"  # begins a piece that is not the first of its word
MAX_CHARACTERS = 1000  # distinct ones in a new vocabulary; rarer ones are unknown
VOCABULARIES = "vocab.txt", "tokenizer.json"
FILES = *VOCABULARIES, "tokenizer_config.json"


@dataclasses.dataclass(frozen=True)
class WordPieceConfig:
    """Settings of the vocabulary; see configs/bert_base.py."""

    vocab_size: int
    lowercase: bool
    # recorded=False: the hash of the tokenizer says more than its path.
    source_model: str | None = setting(recorded=False, place=True)

    def __post_init__(self):
        check_range(self, "tokenizer", "vocab_size", len(SPECIAL) + 1)


class WordPiece:
    """Text to ids and back. Id 0 is [PAD].

    Special tokens are added to text, never read from it: "[MASK]" in a text is five pieces.
    """

    def __init__(self, pieces: Sequence[str], lowercase: bool, name: str | Path = "vocab.txt"):
        """Raises UserError for a vocabulary that is not BERT's; `name` is its name in the error."""
        ids = {piece: i for i, piece in enumerate(pieces)}
        if len(ids) < len(pieces):
            twice = next(piece for piece, n in collections.Counter(pieces).items() if n > 1)
            raise UserError(f"{name} holds {twice!r} twice; take the file from its source again")
        for piece in SPECIAL:
            if piece not in ids:
                raise UserError(f"{name} has no {piece}; give the vocabulary of a BERT model")
        if ids[PAD] != 0:
            raise UserError(f"{name} has {PAD} in line {ids[PAD] + 1}; expected in line 1")
        self.pieces = list(pieces)
        self.lowercase = lowercase
        self.ids = ids
        self.unk, self.cls, self.sep, self.mask = (ids[piece] for piece in SPECIAL[1:])

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    @property
    def sha256(self) -> str:
        content = json.dumps([self.pieces, self.lowercase])
        return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()

    @functools.cached_property
    def is_continuation_V(self) -> np.ndarray:
        """True for each id whose piece continues a word."""
        return np.array([piece.startswith(CONTINUES) for piece in self.pieces])

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts, without special tokens."""
        texts = [text.encode("utf-8", "replace").decode() for text in texts]  # lone surrogates
        return [x.ids for x in self._library.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text, with special tokens and with spaces between words and punctuation."""
        words: list[str] = []
        for piece in (self.pieces[i] for i in ids):
            if piece.startswith(CONTINUES) and words:
                words[-1] += piece.removeprefix(CONTINUES)
            else:
                words.append(piece)
        return " ".join(words)

    def save(self, folder: Path) -> None:
        """Writes vocab.txt, tokenizer.json and tokenizer_config.json."""
        write_atomically(folder / "vocab.txt", "".join(f"{piece}\n" for piece in self.pieces))
        tokenizer = _library(self.pieces, self.lowercase)
        tokenizer.add_special_tokens(list(SPECIAL))
        processors = optional_module("tokenizers.processors", "bert")
        tokenizer.post_processor = processors.BertProcessing((SEP, self.sep), (CLS, self.cls))
        decoders = optional_module("tokenizers.decoders", "bert")
        tokenizer.decoder = decoders.WordPiece(prefix=CONTINUES)
        write_atomically(folder / "tokenizer.json", tokenizer.to_str(pretty=True) + "\n")
        config = {"tokenizer_class": "BertTokenizer", "do_lower_case": self.lowercase}
        names = "pad_token", "unk_token", "cls_token", "sep_token", "mask_token"
        config |= dict(zip(names, SPECIAL, strict=True))
        write_atomically(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path, inside: Path | None = None) -> Self:
        """Reads the vocabulary of a folder; raises UserError if it has none."""
        for name in VOCABULARIES:
            if (folder / name).exists():
                return cls.read(folder / name, inside)
        raise UserError(f"no vocabulary in {folder}: expected {' or '.join(VOCABULARIES)}")

    @classmethod
    def read(cls, path: Path, inside: Path | None = None) -> Self:
        """Reads a vocab.txt or a tokenizer.json; raises UserError for one that cannot be used.

        A vocab.txt does not say whether text is lowercased. tokenizer_config.json beside it does;
        without one, text is lowercased if no piece has a capital letter. inside: see `open_plain`.
        """
        beside, lowercase = path.with_name("tokenizer_config.json"), None
        try:
            if path.suffix.lower() == ".json":
                return cls(*_from_json(read_text(path, inside), path), path)
            pieces = read_text(path, inside).removesuffix("\n").split("\n")
            if beside.exists():
                lowercase = read_json(beside, inside, _Beside).get("do_lower_case")
        except MISSING as error:
            raise cannot_read(path, error, kind="the vocabulary ") from error
        if lowercase is None:
            lowercase = not any(p != p.lower() for p in pieces if p not in SPECIAL and p[:1] != "[")
        return cls(pieces, lowercase, path)

    @functools.cached_property
    def _library(self) -> Any:
        return _library(self.pieces, self.lowercase)


def train_wordpiece(lines: Callable[[], Iterable[str]], config: WordPieceConfig) -> WordPiece:
    """A new vocabulary of the words in some lines; the same lines give the same one.

    lines: returns the lines; it is called twice. Raises UserError if they have too few words for
    the size.
    """
    trainers = optional_module("tokenizers.trainers", "bert")
    tokenizer = _library(SPECIAL, config.lowercase)
    counts: collections.Counter = collections.Counter()
    for line in lines():
        counts.update(tokenizer.normalizer.normalize_str(line))
    counts = collections.Counter({c: n for c, n in counts.items() if not c.isspace()})
    characters = sorted(sorted(counts, key=lambda c: (-counts[c], c))[:MAX_CHARACTERS])
    # The library numbers characters that it finds itself in a different order each time, and then
    # breaks ties differently.
    first = [*SPECIAL, *characters, *(CONTINUES + c for c in characters)]
    if config.vocab_size <= len(first):
        raise UserError(
            f"tokenizer.vocab_size is {config.vocab_size}, but special tokens and characters of "
            f"the text are {len(first)}; give more"
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size, special_tokens=first, show_progress=False
    )
    tokenizer.train_from_iterator(lines(), trainer)
    ids = tokenizer.get_vocab()
    if len(ids) < config.vocab_size:
        raise UserError(
            f"tokenizer.vocab_size is {config.vocab_size}, but the training text gives only "
            f"{len(ids)} pieces; set it to that or less"
        )
    return WordPiece(sorted(ids, key=ids.__getitem__), config.lowercase)


def _library(pieces: Sequence[str], lowercase: bool) -> Any:
    """The library's tokenizer, which knows no special tokens."""
    tokenizers = optional_module("tokenizers", "bert")
    ids = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(ids, unk_token=UNK, continuing_subword_prefix=CONTINUES)
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer


class _Beside(TypedDict):
    """A tokenizer_config.json."""

    do_lower_case: NotRequired[bool | None]


def _from_json(text: str, path: Path) -> tuple[list[str], bool]:
    """Pieces and lowercasing of a tokenizer.json."""
    try:
        found = optional_module("tokenizers", "bert").Tokenizer.from_str(text)
    except Exception as error:  # the library has no other
        raise UserError(f"{path} is damaged ({error}); {NOT_OURS}") from error
    ids, normalizer = found.get_vocab(with_added_tokens=False), found.normalizer
    kinds = type(found.model).__name__, type(normalizer).__name__
    if kinds != ("WordPiece", "BertNormalizer") or (
        found.model.continuing_subword_prefix != CONTINUES
    ):
        raise UserError(f"{path} is a tokenizer of another kind than WordPiece; {NOT_OURS}")
    lowercase, strips = normalizer.lowercase, normalizer.strip_accents
    if strips not in (None, lowercase):
        raise UserError(
            f"{path} has strip_accents {strips} and lowercase {lowercase}; ours go together"
        )
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(f"{path} has ids other than 0 to {len(ids) - 1}")
    return sorted(ids, key=ids.__getitem__), lowercase
