"""Vocabularies of M2M100 and NLLB-200, whose texts begin with a token for their language.

A SentencePiece model cuts text into pieces; a separate list gives each piece its id.
"""

import base64
import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypedDict

import numpy as np

from transformer.data.hub_files import ADVICE, HubConfig, check_ids
from transformer.data.languages import language
from transformer.data.listed_pieces import ListedPieces
from transformer.data.pairs import CHUNK, in_chunks
from transformer.data.vocabulary import LINE_BREAKS, UNK, until_eos, without_surrogates
from transformer.system.errors import UserError, nearest
from transformer.system.paths import cannot_read
from transformer.system.reading import checked, parse_json, read_plain

BEGINNING = b'{"m2m_language": '  # of model_bytes
SENTENCEPIECE = "sentencepiece.bpe.model"
_THEIRS = ["<s>", "<pad>", "</s>", "<unk>"]  # their first ids
# Ours. A target begins with </s> there; model.starts_with_eos does that, so BOS is <s>.
_OURS = ["<pad>", "<s>", "</s>", "<unk>"]
_MADE_UP = "madeupword"  # names the rows of their table that no token has: at most 8
_MOST_MADE_UP = 8
# Each special token has one of these, so most lines need no closer look.
_MAY_BE_SPECIAL = re.compile("[_<]")
_CODE = re.compile("[a-zA-Z]{2,3}")  # of a language, without a script


class _Model(TypedDict):
    m2m_language: str
    pieces: list[str]
    special: list[str]
    sentencepiece: str


class M2MTokenizer(ListedPieces):
    """A SentencePiece model, a list of pieces, and which of these are special.

    Special pieces in a text are tokens, as in Hugging Face's tokenizers. model_bytes: as `to_bytes`
    makes them.
    """

    system, form, listed = "M2M100 or NLLB", _Model, "pieces"

    def _read(self, model: Mapping[str, Any]) -> None:
        special, code = model["special"], model["m2m_language"]
        if self._pieces[: UNK + 1] != _OURS or not {*special} <= {*self._ids} - {""}:
            raise ValueError("special pieces are missing")
        self.languages = {x.strip("_"): self._ids[x] for x in special if x[0] != "<"}
        self.beginning = [self.languages[code]] if code else []
        self.language, self.special = code, special
        longest_first = sorted(special, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})").split
        self._no_text = {*range(UNK + 1), *(self._ids[piece] for piece in special)}
        self._no_text |= {i for piece, i in self._ids.items() if piece.startswith(_MADE_UP)}
        self._neutral = None if code else self

    @property
    def sentencepiece_pieces(self) -> list[str]:
        return [self._processor.id_to_piece(i) for i in range(self._processor.vocab_size())]

    def for_language(self, code: str, field: str = "the language") -> Self:
        if code and code not in self.languages:
            is_short = _CODE.fullmatch(code)  # as de for deu_Latn
            found = [x for x in self.languages if is_short and language(x) == language(code)]
            if len(found) != 1:
                hint = nearest(code, found or self.languages)
                raise UserError(f"{field} is {code!r}, which {self._name} does not have; {hint}")
            code = found[0]
        if code == self.language:
            return self
        if not code and self._neutral:
            return self._neutral
        other = copy.copy(self)
        _, comma, rest = self.model_bytes.partition(b",")
        other.model_bytes = BEGINNING + json.dumps(code).encode() + comma + rest
        other.language = code
        other.beginning = [self.languages[code]] if code else []
        if not code:
            self._neutral = other._neutral = other
        return other

    def encode_batch(self, texts: Sequence[str], num_threads: int) -> list[list[int]]:
        parts = [self._parts(without_surrogates(text)) for text in texts]
        plain = [part for each in parts for part in each[::2]]
        batch = iter(self._processor.encode(plain, out_type=str, num_threads=num_threads))
        encoded = []
        for each in parts:
            ids = list(self.beginning)
            for i, part in enumerate(each):
                ids += (self._ids.get(piece, UNK) for piece in ([part] if i % 2 else next(batch)))
            encoded.append(ids)
        return encoded

    def _parts(self, text: str) -> list[str]:
        """Text, a special token, text, ..., text."""
        return self._split(text) if _MAY_BE_SPECIAL.search(text) else [text]

    def trimmed(self, codes: Iterable[str], texts: Iterable[str]) -> tuple[Self, np.ndarray]:
        """A smaller tokenizer that takes these texts apart in the same way; and its ids here.

        It has the special tokens, those of the languages `codes`, the pieces of the texts, and all
        single characters. Where SentencePiece would take another piece, it takes its parts.
        """
        from sentencepiece.sentencepiece_model_pb2 import ModelProto

        used: set[str] = set()
        for chunk in in_chunks(map(without_surrogates, texts), CHUNK):
            parts = [part for text in chunk for part in self._parts(text)[::2]]
            for pieces in self._processor.encode(parts, out_type=str):
                used.update(pieces)
        special = [x for x in self.special if x[0] == "<" or x.strip("_") in codes]
        gone = {*self.special} - {*special}
        kept = [
            i
            for i, piece in enumerate(self._pieces)
            if i <= UNK
            or piece in special
            or (piece in used and piece not in gone)
            or len(piece) == 1
        ]
        pieces = [self._pieces[i] for i in kept]
        # Pieces that the list of ids lacks are unknown tokens, and stay so.
        proto, used = ModelProto.FromString(self.sentencepiece_model), used | {*pieces}
        for piece in proto.pieces:
            if piece.type == piece.NORMAL and piece.piece not in used and len(piece.piece) > 1:
                piece.type = piece.UNUSED
        model_bytes = to_bytes(pieces, special, proto.SerializeToString())
        return type(self)(model_bytes, self._name), np.array(kept)

    def decode(self, ids: Iterable[int]) -> str:
        """See Tokenizer; special pieces, and UNK among them, are left out."""
        pieces = (self._pieces[token] for token in until_eos(ids) if token not in self._no_text)
        return "".join(pieces).replace("▁", " ").translate(LINE_BREAKS).strip()


def to_bytes(pieces: Sequence[str], special: Sequence[str], sentencepiece_model: bytes) -> bytes:
    """The `model_bytes` of an M2MTokenizer for no language in particular.

    special: those of the pieces that a text may have as tokens; languages do not begin with <.
    """
    content = {
        "m2m_language": "",
        "pieces": list(pieces),
        "special": list(special),
        "sentencepiece": base64.b64encode(sentencepiece_model).decode(),
    }
    return json.dumps(content, ensure_ascii=False).encode()


def read(folder: Path, vocab_size: int) -> tuple[M2MTokenizer, np.ndarray]:
    """The tokenizer of a folder of the hub, and for each of its ids the row of their table.

    M2M100 has a vocab.json; the ids of NLLB are those of its SentencePiece model, and one more.
    Raises UserError for a folder whose files do not fit each other, or vocab_size.
    """
    import sentencepiece

    path = folder / SENTENCEPIECE
    try:
        proto = read_plain(path, None)
    except OSError as error:
        raise cannot_read(path, error) from error
    try:
        if not proto:
            raise ValueError("empty")
        processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{path} is not a SentencePiece model; {ADVICE}") from error
    # 1. The ids of pieces.
    names = folder / "vocab.json"
    if names.exists():
        ids = HubConfig.read(names, ADVICE).left()
        check_ids(names, ids, len(ids))
    else:
        names = path
        own = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
        pieces = [*_THEIRS, *own[3:]]
        ids = {piece: i for i, piece in enumerate(pieces)}
        if own[:3] != ["<unk>", "<s>", "</s>"] or len(ids) < len(pieces):
            raise UserError(
                f"{path} is not of NLLB: it begins with {' '.join(own[:3])}, or has a piece twice; "
                f"{ADVICE}"
            )
    if [ids.get(piece) for piece in _THEIRS] != [0, 1, 2, 3]:
        raise UserError(f"{names} does not begin with {' '.join(_THEIRS)}; {ADVICE}")
    # 2. Those of special tokens.
    special = {piece: ids[piece] for piece in _THEIRS} | _special_tokens(folder, len(ids))
    if names == path and any(x.startswith("_") for x in special):
        raise UserError(f"{folder} names languages as M2M100 does, and has no vocab.json; {ADVICE}")
    for piece, i in special.items():
        if not _MAY_BE_SPECIAL.search(piece):
            raise UserError(f"{folder} adds the token {piece!r}, which ours does not know")
        if ids.setdefault(piece, i) != i:
            raise UserError(f"{folder} gives {piece} the ids {ids[piece]} and {i}; {ADVICE}")
    # 3. Rows that no token has.
    by_id = dict(zip(ids.values(), ids, strict=True))
    if len(by_id) < len(ids):
        twice = next(piece for piece, i in ids.items() if by_id[i] != piece)
        raise UserError(f"{folder} gives {twice} and {by_id[ids[twice]]} one id; {ADVICE}")
    spare = vocab_size - len(ids)
    if max(by_id) >= vocab_size or not 0 <= spare <= _MOST_MADE_UP:
        raise UserError(
            f"{folder} has {len(ids)} tokens, with ids up to {max(by_id)}, which do not fit a "
            f"vocab_size of {vocab_size} in its config.json; {ADVICE}"
        )
    theirs = [by_id.get(i, f"{_MADE_UP}{i}") for i in range(vocab_size)]
    first = [1, 0, 2, 3]
    order = [*first, *(i for i in range(vocab_size) if i not in first)]
    pieces = [*_OURS, *(theirs[i] for i in order[UNK + 1 :])]
    try:
        model_bytes = to_bytes(pieces, list(special), proto)
    except UnicodeEncodeError as error:
        raise UserError(
            f"{folder} adds {error.object!r:.60}, which is no text; {ADVICE}"
        ) from error
    return M2MTokenizer(model_bytes, folder), np.array(order)


class _Added(TypedDict):
    id: int
    content: str


class _Content(TypedDict):
    content: str


def _special_tokens(folder: Path, first: int) -> dict[str, int]:
    """The special tokens that a folder names, with their ids.

    first: the first id after the pieces, for files that have no ids.
    """

    def take(name: str, field: str | None, kind: Any, default: Any) -> Any:
        path = folder / name
        if not path.exists():
            return default
        try:  # tokenizer.json is too long for read_json
            found = parse_json(read_plain(path, None), dict[str, Any])
            found = found if field is None else found.get(field)
            return default if found is None else checked(found, kind)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be used ({error}); {ADVICE}") from error

    # 1. Files with ids.
    added = take("tokenizer.json", "added_tokens", list[_Added], [])
    by_id = take("tokenizer_config.json", "added_tokens_decoder", dict[str, _Content], {})
    every = [
        {x["content"]: x["id"] for x in added},
        {x["content"]: int(i) for i, x in by_id.items() if i.isdecimal()},
        take("added_tokens.json", None, dict[str, int], {}),
    ]
    # 2. Lists in the order of ids. NLLB has <mask> after its languages.
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        listed = take(name, "additional_special_tokens", list[str | _Content], [])
        mask = take(name, "mask_token", str | _Content, [])
        tokens = [x if isinstance(x, str) else x["content"] for x in [*listed, mask] if x]
        tokens = dict.fromkeys(x for x in tokens if x not in _THEIRS)
        every.append({x: first + i for i, x in enumerate(tokens)})
    for found in every:
        if any(not x.startswith("<") for x in found):
            return found
    raise UserError(
        f"{folder} names no languages; they are in the tokenizer.json, tokenizer_config.json or "
        "special_tokens_map.json of its source"
    )
