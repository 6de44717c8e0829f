"""Text to token ids and back: SentencePiece models that lose nothing.

A vocabulary is trained without any normalisation and with one piece for each of
the 256 bytes, so that `decode(encode(line)) == line` for every line of text.
"""

import dataclasses
import hashlib
import io
import itertools
import os
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from absl import logging

from transformer.errors import UserError
from transformer.files import write_atomically
from transformer.sources import PairSource

PAD, BOS, EOS, UNK = 0, 1, 2, 3

MODEL_TYPES = ("bpe", "unigram")
# The special tokens and the bytes: a vocabulary needs these and the characters of the text.
_SMALLEST_VOCABULARY = 4 + 256
_SPACE = "\u2581"  # what SentencePiece writes for a space inside its pieces
# Private-use characters, which no vocabulary holds: see Tokenizer._ids.
_STAND_INS = range(0xF0000, 0x110000)
_LINE_BREAKS = str.maketrans("\r\n", "  ")


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """How the vocabulary is made.

    model_type: 'bpe' or 'unigram'.
    vocab_size: pieces of each vocabulary, the 4 special ones and the 256 bytes included.
    joint: one vocabulary for both languages, or one for each.
    sample_size: training reads at most this many pairs, evenly spaced over the data.
    source_model, target_model: SentencePiece files to use instead of training. A joint
      vocabulary is `source_model` alone; separate ones need both. What is in the file
      then holds, and model_type, vocab_size and sample_size are not used.
    """

    model_type: str
    vocab_size: int
    joint: bool
    sample_size: int
    source_model: str | None
    target_model: str | None

    def __post_init__(self):
        if self.model_type not in MODEL_TYPES:
            raise UserError(
                f"tokenizer.model_type is {self.model_type!r}; give one of: "
                f"{', '.join(MODEL_TYPES)}"
            )
        if self.vocab_size <= _SMALLEST_VOCABULARY:
            raise UserError(
                f"tokenizer.vocab_size is {self.vocab_size}; give more than "
                f"{_SMALLEST_VOCABULARY} (4 special tokens, 256 bytes, and the characters)"
            )
        if self.sample_size < 1:
            raise UserError(
                f"tokenizer.sample_size is {self.sample_size}; give 1 or more sentence pairs"
            )
        if self.target_model and not self.source_model:
            raise UserError(
                "tokenizer.target_model is given without tokenizer.source_model; give both "
                "(or, with tokenizer.joint, tokenizer.source_model alone)"
            )
        if self.joint and self.target_model:
            raise UserError(
                "tokenizer.joint is true and tokenizer.target_model is given; a joint "
                "vocabulary is tokenizer.source_model alone"
            )
        if not self.joint and self.source_model and not self.target_model:
            raise UserError(
                "tokenizer.source_model is given without tokenizer.target_model; give both, "
                "or set tokenizer.joint to use one for both languages"
            )


class Tokenizer:
    """A SentencePiece model.

    model_bytes: the content of a SentencePiece .model file.
    name: what to call the model in errors.
    Raises UserError for bytes that are no SentencePiece model, and for a model that
    gives padding, BOS or EOS other ids than 0, 1 and 2.
    """

    def __init__(self, model_bytes: bytes, name: str | os.PathLike = "the tokenizer model"):
        import sentencepiece

        try:
            # Empty bytes load without complaint, and abort later.
            if not model_bytes:
                raise ValueError("empty")
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
        except (RuntimeError, ValueError, TypeError) as error:
            raise UserError(
                f"{name} is not a SentencePiece model; give a .model file that "
                "SentencePiece has written"
            ) from error
        processor = self._processor
        found = {
            "pad_id": processor.pad_id(),
            "bos_id": processor.bos_id(),
            "eos_id": processor.eos_id(),
        }
        expected = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}
        if found != expected:
            raise UserError(
                f"{name} has {_assignments(found)}; expected {_assignments(expected)}: train "
                f"it again with --pad_id={PAD} --bos_id={BOS} --eos_id={EOS} --unk_id={UNK}"
            )
        self.model_bytes = model_bytes
        self.sha256 = hashlib.sha256(model_bytes).hexdigest()
        self.vocab_size: int = processor.vocab_size()
        self._space_ids = [processor.piece_to_id(f"<0x{b:02X}>") for b in _SPACE.encode()]
        self._has_bytes = all(processor.is_byte(i) for i in self._space_ids)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Reads a .model file; raises UserError for one that cannot be used."""
        try:
            model_bytes = pathlib.Path(path).read_bytes()
        except OSError as error:
            raise UserError(f"cannot read the tokenizer {path}: {error.strerror}") from error
        return cls(model_bytes, name=path)

    def encode(self, text: str) -> list[int]:
        """Token ids of a line of text, without BOS and EOS.

        A lone surrogate, which UTF-8 cannot hold, is read as U+FFFD.
        """
        return self.encode_batch([text], num_threads=1)[0]

    def encode_batch(self, texts: Sequence[str], num_threads: int) -> list[list[int]]:
        """`encode` of each text, on `num_threads` threads."""
        texts = [_without_surrogates(text) for text in texts]
        batch = self._processor.encode(texts, num_threads=num_threads)
        if self._has_bytes:
            for i, text in enumerate(texts):
                if _SPACE in text:
                    batch[i] = self._ids(text)
        return batch

    def _ids(self, text: str) -> list[int]:
        """Token ids of a text that holds U+2581, which SentencePiece takes for a space.

        A character that the vocabulary lacks comes out as its bytes; so put one in
        place of U+2581, and then its bytes in place of the bytes of the other.
        """
        known = self._processor.piece_to_id
        unknown = self._processor.unk_id()  # not always UNK, in a model that was given to us
        stand_in = next(c for c in map(chr, _STAND_INS) if c not in text and known(c) == unknown)
        wanted = [known(f"<0x{b:02X}>") for b in stand_in.encode()]
        ids = self._processor.encode(text.replace(_SPACE, stand_in))
        out, i = [], 0
        while i < len(ids):
            if ids[i : i + len(wanted)] == wanted:
                out += self._space_ids
                i += len(wanted)
            else:
                out.append(ids[i])
                i += 1
        return out

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids up to the first EOS; PAD and BOS are passed over.

        One hypothesis is one line: a line feed or carriage return becomes a space.
        Bytes that are no UTF-8, which a model may well predict, become U+FFFD.
        """
        tokens = list(itertools.takewhile(lambda token: token != EOS, map(int, ids)))
        return self._processor.decode(tokens).translate(_LINE_BREAKS)


def train_tokenizer(
    sentences: Iterable[str],
    *,
    vocab_size: int,
    model_type: str,
    character_coverage: float = 0.99999,
) -> Tokenizer:
    """Trains a vocabulary; the same sentences give the same bytes.

    vocab_size: pieces, including the 4 special ones and the 256 bytes.
    model_type: 'bpe' or 'unigram'.
    character_coverage: this share of the text's characters get pieces of their own, the
      rarest are left to the bytes: web text holds thousands that occur once.
    Raises UserError without sentences, and for a vocab_size that the text cannot give.
    """
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=map(_without_surrogates, sentences),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            byte_fallback=True,
            # However rare it is: left to the bytes, a space would come back as U+2581.
            required_chars=_SPACE,
            # Longer lines are dropped without a word; the default is 4192 bytes.
            max_sentence_length=2**30,
            # Part of the model's bytes, so it must not depend on the machine.
            num_threads=16,
            minloglevel=3,
        )
    except RuntimeError as error:
        raise _training_error(vocab_size, str(error)) from error
    return Tokenizer(model.getvalue())


def _training_error(vocab_size: int, message: str) -> UserError:
    """What SentencePiece's message says, in the words of our configuration."""
    if match := re.search(r"too high.* value <= (\d+)", message):
        return UserError(
            f"tokenizer.vocab_size is {vocab_size}, but the training text gives "
            f"{match[1]} pieces at most; set tokenizer.vocab_size to {match[1]} or less"
        )
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"tokenizer.vocab_size is {vocab_size}, but the special tokens, the bytes and the "
            f"characters of the training text are {match[1]} pieces already; set "
            f"tokenizer.vocab_size to {match[1]} or more"
        )
    if "sentences_.empty()" in message:
        return UserError("no text to train the tokenizer on: every sentence is empty")
    return UserError(f"SentencePiece cannot train the tokenizer: {' '.join(message.split())}")


class Tokenizers(NamedTuple):
    """The vocabularies of both languages; the same object twice when joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def save(self, workdir: str | os.PathLike) -> None:
        """Writes tokenizer.model, or tokenizer.source.model and tokenizer.target.model."""
        names = (_JOINT,) if self.joint else _SEPARATE
        for name, tokenizer in zip(names, self, strict=False):
            write_atomically(pathlib.Path(workdir) / name, tokenizer.model_bytes)

    @classmethod
    def load(cls, workdir: str | os.PathLike) -> Self:
        """Reads what `save` wrote; raises UserError when there is none."""
        workdir = pathlib.Path(workdir)
        found = _saved(workdir)
        if found is None:
            raise UserError(
                f"no tokenizer in {workdir}: expected {_JOINT}, or {' and '.join(_SEPARATE)}"
            )
        tokenizers = [Tokenizer.load(workdir / name) for name in found]
        return cls(tokenizers[0], tokenizers[-1])


_JOINT = "tokenizer.model"
_SEPARATE = ("tokenizer.source.model", "tokenizer.target.model")


def get_tokenizers(
    workdir: str | os.PathLike, config: TokenizerConfig, pairs: PairSource
) -> Tokenizers:
    """The tokenizers of a run: those in workdir; else those of the configuration; else new.

    Training uses `config.sample_size` of the `pairs` (the training data), evenly spaced.
    Nothing is written: see `Tokenizers.save`.
    """
    if _saved(pathlib.Path(workdir)) is not None:
        return Tokenizers.load(workdir)
    return _configured(config) if config.source_model else _train(config, pairs)


def _train(config: TokenizerConfig, pairs: PairSource) -> Tokenizers:
    sample = pairs.sample(config.sample_size)
    sources = [source for source, _ in sample]
    targets = [target for _, target in sample]
    logging.info("training the tokenizer on %d of %d pairs", len(sample), len(pairs))
    options = {"vocab_size": config.vocab_size, "model_type": config.model_type}
    if config.joint:
        tokenizer = train_tokenizer(sources + targets, **options)
        return Tokenizers(tokenizer, tokenizer)
    return Tokenizers(train_tokenizer(sources, **options), train_tokenizer(targets, **options))


def _configured(config: TokenizerConfig) -> Tokenizers:
    source = Tokenizer.load(os.path.expanduser(config.source_model))
    if config.joint:
        return Tokenizers(source, source)
    return Tokenizers(source, Tokenizer.load(os.path.expanduser(config.target_model)))


def _saved(workdir: pathlib.Path) -> tuple[str, ...] | None:
    """The names of the tokenizer files in workdir, if they are complete."""
    if (workdir / _JOINT).exists():
        return (_JOINT,)
    # One alone is what a run that was killed between the two has left: made again.
    if all((workdir / name).exists() for name in _SEPARATE):
        return _SEPARATE
    return None


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text)
    return text


def _assignments(values: dict[str, int]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())
