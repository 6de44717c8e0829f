"""Vocabularies of two parts: a SentencePiece model, and a list that gives each piece its id."""

import abc
import base64
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from transformer.data.vocabulary import UNK, Tokenizer
from transformer.system.errors import UserError
from transformer.system.reading import parse_json


class ListedPieces(Tokenizer):
    """A SentencePiece model and a list of pieces.

    system: whose vocabulary it is, for errors.
    form: of the JSON in `model_bytes`. Its field `listed` has the pieces; sentencepiece, the model
      in base64.
    name: its name in errors.
    Raises UserError for other bytes.
    """

    system: ClassVar[str]
    form: ClassVar[type]
    listed: ClassVar[str]

    def __init__(self, model_bytes: bytes, name: str | os.PathLike = "the tokenizer model"):
        import sentencepiece

        try:
            model = parse_json(model_bytes, self.form)
            self._pieces: list[str] = model[self.listed]
            self._ids = {piece: i for i, piece in enumerate(self._pieces)}
            proto = base64.b64decode(model["sentencepiece"], validate=True)
            if not proto or len(self._ids) != len(self._pieces) or len(self._pieces) <= UNK:
                raise ValueError("empty, or a piece twice")
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
            self._read(model)
        except (ValueError, LookupError, RuntimeError) as error:
            raise UserError(
                f"{name} is not a vocabulary of {self.system}; give the tokenizer file of a work "
                "directory"
            ) from error
        self.model_bytes, self.vocab_size, self._name = model_bytes, len(self._pieces), name

    @abc.abstractmethod
    def _read(self, model: Mapping[str, Any]) -> None:
        """Reads the other fields; raises ValueError or LookupError for values that cannot be."""

    @property
    def pieces(self) -> list[str]:
        return self._pieces

    @property
    def sentencepiece_model(self) -> bytes:
        return self._processor.serialized_model_proto()

    def sample_batch(self, texts: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        raise UserError(
            f"tokenizer.sampling_alpha leaves out merges, and {self._name} is a vocabulary of "
            f"{self.system}, whose merges are not known; set tokenizer.sampling_alpha to 0"
        )
