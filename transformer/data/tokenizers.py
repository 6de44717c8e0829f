"""The tokenizers of a run: read from its work directory or from given files, or trained."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import NamedTuple, Self

import numpy as np
from absl import logging

from transformer.data import m2m_vocabulary, marian_vocabulary, sentencepiece
from transformer.data.cleaning import OFF, Cleaning, reason
from transformer.data.pairs import Pair, PairSource
from transformer.data.remembered import Facts, remembered
from transformer.data.sentencepiece import SentencePieceTokenizer, train_sentencepiece
from transformer.data.subword_nmt import SubwordNmtTokenizer, train_subword_nmt
from transformer.data.vocabulary import Tokenizer
from transformer.data.words import words_of
from transformer.system.errors import (
    COUNT,
    UserError,
    check_choice,
    check_range,
    nearest,
    setting,
)
from transformer.system.files import write_atomically
from transformer.system.paths import cannot_read, local
from transformer.system.reading import read_plain
from transformer.system.terminal import signs_of_life

MODEL_TYPES = (*sentencepiece.MODEL_TYPES, "subword-nmt")
# A vocabulary holds the special tokens; one of word pieces also the bytes and the characters.
_SMALLEST_VOCABULARY = {"bpe": 4 + 256 + 1, "unigram": 4 + 256 + 1, "word": 4 + 1, "subword-nmt": 1}


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """Settings of the vocabulary; see configs/base.py."""

    model_type: str
    vocab_size: int
    joint: bool
    sample_size: int
    sampling_alpha: float
    num_samples: int
    # recorded=False: the hash of the tokenizer says more than its path.
    source_model: str | None = setting(recorded=False, place=True)
    target_model: str | None = setting(recorded=False, place=True)
    target_model_type: str | None = None

    def __post_init__(self):
        check_choice(self, "tokenizer", "model_type", MODEL_TYPES)
        check_range(self, "tokenizer", "vocab_size", _SMALLEST_VOCABULARY[self.model_type])
        if self.target_model_type is not None:
            check_choice(self, "tokenizer", "target_model_type", MODEL_TYPES)
            if self.joint:
                raise UserError(
                    "tokenizer.target_model_type is given and tokenizer.joint is True; leave the "
                    "former out, or set tokenizer.joint to False"
                )
        check_range(self, "tokenizer", "sample_size", 1, COUNT)
        check_range(self, "tokenizer", "num_samples", 1, 1001)  # in an epoch
        check_range(self, "tokenizer", "sampling_alpha", 0, 1)
        for field in ("model_type", "target_model_type"):
            no_merges = getattr(self, field) in ("unigram", "word")
            if no_merges and self.sampling_alpha and not self.source_model:
                raise UserError(
                    f"tokenizer.sampling_alpha is {self.sampling_alpha}, but a "
                    f"{getattr(self, field)} model has no merges to leave out; set "
                    f"tokenizer.{field} to bpe, or sampling_alpha to 0"
                )
        if self.num_samples > 1 and not self.sampling_alpha:
            raise UserError(
                f"tokenizer.num_samples is {self.num_samples}, but without sampling all would be "
                "the same; set tokenizer.sampling_alpha, too, or tokenizer.num_samples to 1"
            )
        if self.target_model and not self.source_model:
            raise UserError(
                "tokenizer.target_model is given without tokenizer.source_model; give both "
                "(or, with tokenizer.joint, only tokenizer.source_model)"
            )
        if self.joint and self.target_model:
            raise UserError(
                "tokenizer.joint is True and tokenizer.target_model is given; give a joint "
                "vocabulary as tokenizer.source_model alone"
            )
        if not self.joint and self.source_model and not self.target_model:
            raise UserError(
                "tokenizer.source_model is given without tokenizer.target_model; give both, "
                "or set tokenizer.joint to use one for both languages"
            )


def from_bytes(model_bytes: bytes, name: str | os.PathLike = "the tokenizer model") -> Tokenizer:
    """The tokenizer with these `model_bytes`; raises UserError for other bytes."""
    if model_bytes.startswith(marian_vocabulary.BEGINNING):
        return marian_vocabulary.MarianTokenizer(model_bytes, name)
    if model_bytes.startswith(m2m_vocabulary.BEGINNING):
        return m2m_vocabulary.M2MTokenizer(model_bytes, name)
    kind = SubwordNmtTokenizer if model_bytes.startswith(b"{") else SentencePieceTokenizer
    return kind(model_bytes, name)


def load(path: str | os.PathLike, inside: pathlib.Path | None = None) -> Tokenizer:
    """Reads a tokenizer from a file; raises UserError for one that cannot be used.

    inside: see `open_plain`.
    """
    try:
        return from_bytes(read_plain(pathlib.Path(path), inside), path)
    except OSError as error:
        raise cannot_read(path, error, kind="the tokenizer ") from error


class Tokenizers(NamedTuple):
    """The tokenizers of both languages; the same object twice if they are one."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        """True if ids mean the same on both sides. Marian's two still segment text differently."""
        return self.source is self.target or self.source.pieces == self.target.pieces

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        return self.source.vocab_size, self.target.vocab_size

    @property
    def sha256(self) -> list[str]:
        """The hash of each different tokenizer: one, or those of source and target."""
        return [tokenizer.sha256 for tokenizer in dict.fromkeys(self)]

    def for_languages(self, languages: Mapping[str, str]) -> Self:
        """Those for lines of two languages, by the fields of the data section that name them.

        Raises UserError for a language that a vocabulary with languages does not have, and for "".
        """
        sides = [*zip(self, languages.items(), strict=False)]
        for tokenizer, (field, code) in sides:
            if tokenizer.languages and not code:  # a model of many languages needs their tokens
                hint = nearest(code, tokenizer.languages)
                raise UserError(f"data.{field} is empty, and the vocabulary has languages; {hint}")
        found = [x.for_language(code, f"data.{field}") for x, (field, code) in sides]
        return type(self)(*found) if found else self

    def check_languages(self, given: str) -> None:
        """Raises UserError for vocabularies without languages. given: the word that names one."""
        if not self.source.languages:
            raise UserError(
                f"{given} names a language, and the vocabulary has no tokens for languages, as "
                "those of M2M100 and NLLB have; leave it out"
            )

    def save(self, workdir: str | os.PathLike) -> None:
        """Writes tokenizer.model, or tokenizer.source.model and tokenizer.target.model.

        The files name no language: the config does.
        """
        source, target = (tokenizer.for_language("") for tokenizer in self)
        names = (_JOINT,) if source is target else _SEPARATE
        for name, tokenizer in zip(names, (source, target), strict=False):
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
        tokenizers = [load(workdir / name, workdir) for name in found]
        return cls(tokenizers[0], tokenizers[-1])


_JOINT = "tokenizer.model"
_SEPARATE = ("tokenizer.source.model", "tokenizer.target.model")
FILES = (_JOINT, *_SEPARATE)


def get_tokenizers(
    workdir: str | os.PathLike,
    config: TokenizerConfig,
    pairs: PairSource,
    tags: Sequence[str] = (),
    cleaning: Cleaning = OFF,
) -> Tokenizers:
    """The tokenizers of a run: those in workdir, else those that the config names, else new ones.

    New ones are trained on `config.sample_size` of the `pairs` (the training data), evenly
    spaced, without those that a filter of words drops; SentencePiece has a piece for each of the
    tags. Nothing is written: see `Tokenizers.save`.
    """
    if _saved(pathlib.Path(workdir)) is not None:
        return Tokenizers.load(workdir)
    if config.source_model:
        return _configured(config)

    def train() -> Facts:
        trained = _train(config, _sample(config, pairs, tags, cleaning), tags)
        different = dict.fromkeys(trained)
        return {str(i): np.frombuffer(x.model_bytes, np.uint8) for i, x in enumerate(different)}

    programs = [version(name) for name in ("sentencepiece", "subword-nmt")]
    identity = ["tokenizer", 1, *programs, pairs.fingerprint, *tags]
    settings = dataclasses.asdict(config), dataclasses.asdict(cleaning)
    found = [from_bytes(x.tobytes()) for x in remembered([*identity, *settings], train).values()]
    return Tokenizers(found[0], found[-1])


def _sample(
    config: TokenizerConfig, pairs: PairSource, tags: Sequence[str], cleaning: Cleaning
) -> list[Pair]:
    """What a tokenizer is trained on."""
    sample = pairs.sample(config.sample_size)
    if cleaning.filters:
        words = ([*map(words_of, pair)] for pair in sample)
        whys = (reason(cleaning, tags, both, lengths=(1, 1)) for both in words)
        sample = [pair for pair, why in zip(sample, whys, strict=True) if not why]
        if not sample:
            raise UserError(f"the filters leave none of {pairs.describe()}; see docs/cleaning.md")
    logging.info("training the tokenizer on %d of %d pairs", len(sample), len(pairs))
    return sample


def _train(config: TokenizerConfig, sample: list[Pair], tags: Sequence[str]) -> Tokenizers:
    sources = [source for source, _ in sample]
    targets = [target for _, target in sample]

    def train(sentences: list[str], model_type: str) -> Tokenizer:
        with signs_of_life(f"training the tokenizer on {len(sentences):,} sentences"):
            return learn(sentences, model_type)

    def learn(sentences: list[str], model_type: str) -> Tokenizer:
        if model_type == "subword-nmt":
            return train_subword_nmt(sentences, num_merges=config.vocab_size)
        size = config.vocab_size
        return train_sentencepiece(sentences, vocab_size=size, model_type=model_type, symbols=tags)

    if config.joint:
        tokenizer = train(sources + targets, config.model_type)
        return Tokenizers(tokenizer, tokenizer)
    target_type = config.target_model_type or config.model_type
    return Tokenizers(train(sources, config.model_type), train(targets, target_type))


def _configured(config: TokenizerConfig) -> Tokenizers:
    source = load(local(config.source_model, "tokenizer.source_model"))
    if config.joint:
        return Tokenizers(source, source)
    return Tokenizers(source, load(local(config.target_model, "tokenizer.target_model")))


def _saved(workdir: pathlib.Path) -> tuple[str, ...] | None:
    """The names of the tokenizer files in workdir, if they are complete."""
    if (workdir / _JOINT).exists():
        return (_JOINT,)
    # A run that was killed between the two leaves one; they are then made again.
    if all((workdir / name).exists() for name in _SEPARATE):
        return _SEPARATE
    return None
