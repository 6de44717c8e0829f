"""Lossless SentencePiece models: `decode(encode(line)) == line` for every line of text.

To this end a vocabulary is trained without normalisation and with a piece for each of the
256 bytes. A vocabulary of whole words (model type "word") has no bytes: a word that it lacks is
unknown, and so is the empty word between two spaces.
"""

import functools
import io
import os
import random
import re
from collections.abc import Iterable, Sequence

from transformer.data.bpe_dropout import LONGEST, segment
from transformer.data.vocabulary import (
    BOS,
    EOS,
    LINE_BREAKS,
    PAD,
    UNK,
    Tokenizer,
    until_eos,
    without_surrogates,
)
from transformer.system.errors import UserError

MODEL_TYPES = ("bpe", "unigram", "word")
_SPACE = "\u2581"  # SentencePiece's sign for a space in its pieces
_WORDS = re.compile(f"{_SPACE}?[^{_SPACE}]+|{_SPACE}")
# Private-use characters, which no vocabulary holds: see SentencePieceTokenizer._ids.
_STAND_INS = range(0xF0000, 0x110000)


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model.

    model_bytes: the content of a SentencePiece .model file.
    name: its name in errors.
    Raises UserError for bytes that are not a SentencePiece model, and for a model that
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
                f"{name} is not a SentencePiece model; give a .model file written by SentencePiece"
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
        self._name = name
        self.vocab_size: int = processor.vocab_size()
        self._byte_ids = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        self._has_bytes = all(map(processor.is_byte, self._byte_ids))

    @functools.cached_property
    def pieces(self) -> list[str]:
        return [self._processor.id_to_piece(i) for i in range(self.vocab_size)]

    def encode_batch(self, texts: Sequence[str], num_threads: int) -> list[list[int]]:
        texts = [without_surrogates(text) for text in texts]
        batch = self._processor.encode(texts, num_threads=num_threads)
        if self._has_bytes:
            for i, text in enumerate(texts):
                if _SPACE in text:
                    batch[i] = self._ids(text)
        return batch

    def sample_batch(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """See Tokenizer. A text with U+2581, or with a word that is too long, gets no dropout."""
        rng = random.Random(seed)
        return [self._sample(without_surrogates(text), alpha, rng) for text in texts]

    def _sample(self, text: str, alpha: float, rng: random.Random) -> list[int]:
        words = _WORDS.findall(self._processor.normalize(text))
        if _SPACE in text or any(len(word) > LONGEST for word in words):
            return self.encode(text)
        ids, ranks = self._merges

        def rank(left: str, right: str) -> float | None:
            return ranks.get(left + right)

        found = []
        for word in words:
            for symbol in segment(word, rank, alpha, rng):
                if symbol in ids:
                    found.append(ids[symbol])
                elif self._has_bytes:
                    found += self._bytes(symbol)
                elif found[-1:] != [self._processor.unk_id()]:  # one for a run of unknown ones
                    found.append(self._processor.unk_id())
        return found

    @functools.cached_property
    def _merges(self) -> tuple[dict[str, int], dict[str, float]]:
        """The ids of the pieces that are text, and the rank of the merge that makes each."""
        p = self._processor
        special = p.is_control, p.is_unknown, p.is_unused, p.is_byte
        ids = {
            p.id_to_piece(i): i
            for i in range(self.vocab_size)
            if not any(is_(i) for is_ in special)
        }
        ranks = {piece: -p.get_score(i) for piece, i in ids.items()}
        # In a BPE model a score is minus the number of the merge; in a unigram model, a
        # log-probability; for symbols that a user has added to either, 0.
        is_plain_bpe = (
            all(rank.is_integer() for rank in ranks.values())
            and len(set(ranks.values())) == len(ranks)
            and not any(_SPACE in piece[1:] for piece in ids)
        )
        if not is_plain_bpe:
            raise UserError(
                f"tokenizer.sampling_alpha leaves out merges, but {self._name} is not a BPE model "
                "whose merges stay within words (type bpe, no user-defined symbols, spaces first); "
                "set tokenizer.sampling_alpha to 0, or give another tokenizer"
            )
        return ids, ranks

    def _ids(self, text: str) -> list[int]:
        """Token ids of a text that holds U+2581, which SentencePiece would take for a space.

        A character that the vocabulary lacks is encoded as its bytes. So this encodes such a
        character instead of U+2581, and then replaces its bytes by those of U+2581.
        """
        known = self._processor.piece_to_id
        unknown = self._processor.unk_id()  # not always UNK, in a model that was given to us
        stand_in = next(c for c in map(chr, _STAND_INS) if c not in text and known(c) == unknown)
        wanted = self._bytes(stand_in)
        ids = self._processor.encode(text.replace(_SPACE, stand_in))
        out, i = [], 0
        while i < len(ids):
            if ids[i : i + len(wanted)] == wanted:
                out += self._bytes(_SPACE)
                i += len(wanted)
            else:
                out.append(ids[i])
                i += 1
        return out

    def _bytes(self, text: str) -> list[int]:
        return [self._byte_ids[byte] for byte in text.encode()]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids up to the first EOS; PAD and BOS are skipped.

        It is one line: a line feed or carriage return becomes a space. Bytes that are not
        UTF-8, which a model may predict, become U+FFFD.
        """
        return self._processor.decode(until_eos(ids)).translate(LINE_BREAKS)


def train_sentencepiece(
    sentences: Iterable[str],
    *,
    vocab_size: int,
    model_type: str,
    character_coverage: float = 0.99999,
    symbols: Sequence[str] = (),
) -> SentencePieceTokenizer:
    """Trains a vocabulary; the same sentences give the same bytes.

    vocab_size: pieces, including the 4 special ones and the 256 bytes.
    model_type: 'bpe' or 'unigram'; or 'word', the most frequent words of the text between spaces:
      at most vocab_size pieces, including the 4 special ones, and no bytes.
    character_coverage: this share of the text's characters gets pieces of their own. The
      rarest become bytes: web text holds thousands of characters that occur once.
    symbols: words that are never taken apart, each a piece.
    Raises UserError without sentences, and for a vocab_size that does not fit the text.
    """
    import sentencepiece

    options = {
        # Even if it is rare: as bytes, a space would come back as U+2581.
        "required_chars": _SPACE,
        "byte_fallback": True,
        "character_coverage": character_coverage,
    }
    if model_type == "word":
        options = {
            # Words are whole or unknown, even if their characters are rare.
            "character_coverage": 1.0,
            # A text with fewer words is no error.
            "hard_vocab_limit": False,
            "unk_surface": " <unk>",  # without the space it would join the word before
        }
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=map(without_surrogates, sentences),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size,
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            user_defined_symbols=list(symbols),
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            # Longer lines are dropped silently; the default is 4192 bytes.
            max_sentence_length=2**30,
            # Part of the model's bytes, so it must not depend on the machine.
            num_threads=16,
            minloglevel=3,
            **options,
        )
    except RuntimeError as error:
        raise _training_error(vocab_size, str(error)) from error
    return SentencePieceTokenizer(model.getvalue())


def _training_error(vocab_size: int, message: str) -> UserError:
    """SentencePiece's message in the words of our configuration."""
    if match := re.search(r"too high.* value <= (\d+)", message):
        return UserError(
            f"tokenizer.vocab_size is {vocab_size}, but the training text gives at most "
            f"{match[1]} pieces; set tokenizer.vocab_size to {match[1]} or less"
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


def _assignments(values: dict[str, int]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())
