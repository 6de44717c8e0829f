"""Vocabularies of Marian, as Hugging Face's Marian models hold them.

A SentencePiece model cuts text into pieces; a separate list gives each piece its id. So source and
target may share a list and have two SentencePiece models.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from transformer.data.listed_pieces import ListedPieces
from transformer.data.vocabulary import LINE_BREAKS, UNK, until_eos, without_surrogates

BEGINNING = b'{"marian_pieces": '  # of model_bytes
# Models with many target languages expect a piece such as ">>fra<<" at the beginning of a source.
_LANGUAGE = re.compile(r"(>>[^<> ]+<<)(.*)", re.DOTALL)


class _Model(TypedDict):
    marian_pieces: list[str]
    sentencepiece: str


class MarianTokenizer(ListedPieces):
    """A SentencePiece model and a list of pieces. model_bytes: as `to_bytes` makes them."""

    system, form, listed = "Marian", _Model, "marian_pieces"

    def _read(self, model: Mapping[str, Any]) -> None:
        """There are no other fields."""

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
