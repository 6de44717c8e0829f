"""Vocabularies of Marian, as Hugging Face's Marian models hold them.

A SentencePiece model cuts text into pieces; a separate list gives each piece its id. So source and
target may share a list and have two SentencePiece models.
"""

import base64
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import TypedDict

from transformer.data.vocabulary import LINE_BREAKS, UNK, Tokenizer, until_eos, without_surrogates
from transformer.system.errors import UserError
from transformer.system.reading import parse_json

BEGINNING = b'{"marian_pieces": '  # of model_bytes
# Models with many target languages expect a piece such as ">>fra<<" at the beginning of a source.
_LANGUAGE = re.compile(r"(>>[^<> ]+<<)(.*)", re.DOTALL)


class _Model(TypedDict):
    marian_pieces: list[str]
    sentencepiece: str


class MarianTokenizer(Tokenizer):
    """A SentencePiece model and a list of pieces.

    model_bytes: JSON, as `to_bytes` makes it.
    name: its name in errors.
    Raises UserError for other bytes.
    """

    def __init__(self, model_bytes: bytes, name: str | os.PathLike = "the tokenizer model"):
        import sentencepiece

        try:
            model = parse_json(model_bytes, _Model)
            self._pieces = model["marian_pieces"]
            proto = base64.b64decode(model["sentencepiece"], validate=True)
            if not proto or len(set(self._pieces)) != len(self._pieces) or len(self._pieces) <= UNK:
                raise ValueError("empty, or a piece twice")
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
        except (ValueError, RuntimeError) as error:
            raise UserError(
                f"{name} is not a vocabulary of Marian; give the tokenizer file of a work directory"
            ) from error
        self.model_bytes = model_bytes
        self.vocab_size = len(self._pieces)
        self._name = name
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}

    @property
    def pieces(self) -> list[str]:
        return self._pieces

    @property
    def sentencepiece_model(self) -> bytes:
        return self._processor.serialized_model_proto()

    def encode_batch(self, texts: Sequence[str], num_threads: int) -> list[list[int]]:
        codes, rest = [], []
        for text in map(without_surrogates, texts):
            match = _LANGUAGE.fullmatch(text)
            known = match is not None and match[1] in self._ids
            codes.append([self._ids[match[1]]] if known else [])
            rest.append(match[2] if known else text)
        batch = self._processor.encode(rest, out_type=str, num_threads=num_threads)
        return [
            [*code, *(self._ids.get(piece, UNK) for piece in pieces)]
            for code, pieces in zip(codes, batch, strict=True)
        ]

    def sample_batch(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        raise UserError(
            f"tokenizer.sampling_alpha leaves out merges, and {self._name} is a vocabulary of "
            "Marian, whose merges are not known; set tokenizer.sampling_alpha to 0"
        )

    def decode(self, ids: Iterable[int]) -> str:
        pieces = [self._pieces[token] for token in until_eos(ids) if token >= UNK]
        text = self._processor.decode_pieces(pieces)
        # Pieces that only the other side's SentencePiece model knows keep their space mark.
        return text.replace("▁", " ").translate(LINE_BREAKS).strip(" ")


def to_bytes(pieces: Sequence[str], sentencepiece_model: bytes) -> bytes:
    """The `model_bytes` of a MarianTokenizer. PAD, BOS, EOS and UNK are the first four pieces."""
    proto = base64.b64encode(sentencepiece_model).decode()
    content = {"marian_pieces": list(pieces), "sentencepiece": proto}
    return json.dumps(content, ensure_ascii=False).encode()
