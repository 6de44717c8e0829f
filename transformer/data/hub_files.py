"""The files of a Hugging Face model, read so that no field or tensor is silently ignored."""

import contextlib
import fnmatch
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypedDict

import numpy as np

from transformer.system.errors import UserError
from transformer.system.packages import optional_module
from transformer.system.reading import MISSING, Size, checked, plain, read_json

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # of several files
FLOATS = "F64", "F32", "F16", "BF16"  # as safetensors names types
AT_ONCE = 1 << 14  # rows of a table that are read at once
ADVICE = "take the file from its source again"
# Fields of config.json that do not change what our model computes from a source.
_LIBRARY = (  # names, and how the library runs the model
    "architectures _name_or_path name_or_path transformers_version torch_dtype dtype use_cache "
    "return_dict output_attentions output_hidden_states torchscript use_bfloat16 tokenizer_class "
    "chunk_size_feed_forward is_encoder_decoder finetuning_task task_specific_params id2label "
    "label2id num_labels _num_labels problem_type gradient_checkpointing _attn_implementation "
    "attn_implementation _attn_implementation_autoset prefix output_past"
)
_TRAINING = (
    "dropout attention_dropout activation_dropout classifier_dropout classif_dropout "
    "encoder_layerdrop decoder_layerdrop init_std initializer_range hidden_dropout_prob "
    "attention_probs_dropout_prob"
)
_SEARCH = (  # our config file has its own
    "max_length min_length max_new_tokens num_beams num_beam_groups num_return_sequences "
    "length_penalty repetition_penalty encoder_no_repeat_ngram_size no_repeat_ngram_size "
    "diversity_penalty temperature top_k top_p typical_p do_sample early_stopping bad_words_ids "
    "forced_bos_token_id forced_eos_token_id"
)
_TOKENS = (  # tokens are found by name in vocab.json and vocab.txt
    "pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id unk_token_id"
)
_IRRELEVANT = frozenset(f"{_LIBRARY} {_TRAINING} {_SEARCH} {_TOKENS}".split())


def is_hub_folder(folder: Path) -> bool:
    """True if a folder has the config.json of a hub model, not of a run."""
    try:
        theirs = read_json(folder / "config.json", None, dict[str, Any], ADVICE)  # may be a link
        return "model_type" in theirs
    except (*MISSING, UserError):
        return False


_MISSING = object()


class HubConfig:
    """The fields of a JSON object that others wrote; remembers which ones were read.

    advice: what to do with a file that cannot be used.
    """

    def __init__(self, content: dict[str, Any], path: Path, advice: str):
        self._content, self.path, self._advice = content, path, advice
        self._taken: set[str] = set()

    @classmethod
    def read(cls, path: Path, advice: str) -> Self:
        """Raises UserError for a file that cannot be read or is no JSON object."""
        try:
            return cls(read_json(path, None, dict[str, Any], advice), path, advice)  # maybe a link
        except MISSING as error:
            raise UserError(f"cannot read {path}: {error.strerror}; {advice}") from error

    def take(self, name: str, kind: type, default: Any = _MISSING) -> Any:
        """The value of a field; raises UserError for one of another type.

        kind: bool, int, float or str. default: for a field that may be missing; if it is None,
        the field may be null.
        """
        self._taken.add(name)
        value = self._content.get(name, default)
        if value is _MISSING:
            raise UserError(f"{self.path} lacks {name!r}; {self._advice}")
        kind = Size if kind is int else kind
        try:
            return value if value is default else checked({name: value}, dict[str, kind])[name]
        except ValueError as error:
            raise UserError(f"{self.path}: {error}; {self._advice}") from error

    def left(self) -> dict[str, Any]:
        """The fields that were not taken."""
        return {name: x for name, x in self._content.items() if name not in self._taken}

    def check(self, irrelevant: Collection[str]) -> None:
        """Raises UserError for a set field that was not read and may change the model."""
        for name, value in self.left().items():
            if value and name not in irrelevant and name not in _IRRELEVANT:
                raise UserError(
                    f"{self.path}: {name} is {value!r:.60}, which ours does not know; if outputs "
                    "do not depend on it, remove it from the file"
                )


class _Index(TypedDict):
    weight_map: dict[str, str]  # the file of each tensor


class _Tensor(NamedTuple):
    file: Path
    shape: tuple[int, ...]
    type: str


class HubWeights(Mapping[str, np.ndarray]):
    """The tensors of model.safetensors, or of the shards that its index lists; each is read when it
    is asked for. Remembers which ones were.

    model_class: the library's class that can convert a pickle. extra: the extra of pyproject.toml
    that lists safetensors.
    """

    def __init__(self, folder: Path, model_class: str, extra: str):
        self._safe_open = optional_module("safetensors", extra).safe_open
        self.path = folder / WEIGHTS
        if not self.path.exists() and (folder / INDEX).exists():
            self.path = folder / INDEX
        elif not self.path.exists():
            hint = ""
            if (folder / "pytorch_model.bin").exists():
                hint = (
                    "; pytorch_model.bin can run code when it is read, so it is not: convert it "
                    f"with {model_class}.from_pretrained(folder).save_pretrained(folder), or take "
                    "a revision with safetensors from the hub"
                )
            raise UserError(f"{folder} has no {WEIGHTS}{hint}")
        self._tensors: dict[str, _Tensor] = {}
        for file in self._files():
            with self._opened(file) as content:
                for name in content.keys():  # noqa: SIM118
                    if name in self._tensors:
                        raise UserError(
                            f"{self._tensors[name].file} and {file.name} both have the tensor "
                            f"{name}; {ADVICE}"
                        )
                    part = content.get_slice(name)
                    self._tensors[name] = _Tensor(file, tuple(part.get_shape()), part.get_dtype())
        self._read: set[str] = set()

    def _files(self) -> list[Path]:
        if self.path.name == WEIGHTS:
            return [self.path]
        names = set(read_json(self.path, None, _Index, ADVICE)["weight_map"].values())
        for name in sorted(names):
            if name in (".", "..") or Path(name).name != name:
                raise UserError(
                    f"{self.path} names {name!r:.60}; expected a file beside it; {ADVICE}"
                )
            if not (self.path.parent / name).exists():
                raise UserError(f"{self.path} names {name:.60}, which is not there; {ADVICE}")
        return [self.path.parent / name for name in sorted(names)]

    @contextlib.contextmanager
    def _opened(self, file: Path) -> Iterator[Any]:
        """The file, mapped into memory while the context lasts: its pages count as ours."""
        plain(file)
        try:
            with self._safe_open(file, "numpy") as content:
                yield content
        except UserError:
            raise
        except Exception as error:  # safetensors' exception has no public name
            raise UserError(f"{file} cannot be read ({error}); {ADVICE}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> np.ndarray:
        """A tensor in float32; raises UserError for one of whole numbers."""
        return self._part(name, slice(None))

    def _part(self, name: str, rows: slice) -> np.ndarray:
        file, shape, kind = self._tensors[name]
        self._read.add(name)
        if kind not in FLOATS:
            raise UserError(
                f"{file}: {name} has type {kind:.20}, which ours does not read; give a model "
                f"whose weights are {', '.join(FLOATS)}"
            )
        with self._opened(file) as content:
            part = content.get_slice(name)[rows] if shape else content.get_tensor(name)
            return np.array(part, np.float32)

    def take(self, name: str, shape: tuple[int, ...], rows: np.ndarray | None = None) -> np.ndarray:
        """A tensor in float32; raises UserError if it is missing or has another shape.

        rows: which of its rows to take, in this order.
        """
        if name not in self:
            raise UserError(f"{self.path} lacks {name}; {ADVICE}")
        if (found := self._tensors[name].shape) != shape:
            raise UserError(
                f"{self.path} does not fit its config.json: {name} has shape {found}; "
                f"expected {shape}"
            )
        if rows is None:
            return self[name]
        chosen = np.empty((len(rows), *shape[1:]), np.float32)
        for start in range(0, shape[0], AT_ONCE):
            stop = min(start + AT_ONCE, shape[0])
            (here,) = np.nonzero((rows >= start) & (rows < stop))
            if here.size:
                part = self._part(name, slice(start, stop))
                chosen[here] = part[rows[here] - start]
        return chosen

    def rows(self, name: str) -> int:
        """The number of rows of a tensor; 0 if it is missing, 1 for a scalar."""
        return (*self._tensors[name].shape, 1)[0] if name in self else 0

    def check(self, irrelevant: Collection[str]) -> None:
        """Raises UserError for a tensor that was not read.

        irrelevant: patterns of names that may be ignored.
        """
        unread = [
            name
            for name in self._tensors.keys() - self._read
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in irrelevant)
        ]
        if unread:
            more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
            raise UserError(
                f"{self.path} has the tensor {min(unread)}{more}, for which ours has no "
                "place; give a model without it"
            )


def check_ids(path: Path, content: Mapping[str, Any], size: int) -> None:
    """Raises UserError unless a vocabulary gives each piece a distinct id below its size."""
    ids = list(content.values())
    if any(type(i) is not int for i in ids) or sorted(ids) != list(range(len(ids))):
        raise UserError(f"{path} gives other ids; expected ids below {size}, each once; {ADVICE}")
    if len(ids) != size:
        raise UserError(f"{path} holds {len(ids)} pieces; expected ids below {size}")
    for piece in content:
        try:
            piece.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{path} has the piece {piece!r}, which is no text; {ADVICE}"
            ) from error
