"""The type of a result: what a file of the ledger must say, and of each run that was trained."""

from typing import Any, NotRequired, TypedDict

from transformer.runs.provenance import Start as AnyStart
from transformer.system.reading import Count, Number

Value = str | bool | Number | None  # of a config field


class Score(TypedDict):
    score: Number
    signature: NotRequired[str | None]
    definition: NotRequired[str | None]
    needs_model: NotRequired[Any]


class _Split(TypedDict):
    name: str
    scores: dict[str, Score]
    text_sha256: str
    hypotheses_sha256: str


class Split(_Split):
    examples: Count


class EarlierSplit(_Split):
    """Earlier commits knew one task."""

    sentences: Count


class Start(AnyStart):
    commit: str
    device: str
    cpu: str
    python: str


Fields = TypedDict(
    "Fields",
    {
        "task.name": str,
        "data.dataset": str | None,
        "data.source_language": str,
        "data.target_language": str,
    },
    total=False,
)


class Run(TypedDict):
    config_file: str
    overrides: dict[str, Value]
    seed: Count
    config: Fields
    checkpoint_steps: list[Count]
    steps: Count
    starts: list[Start]
    target_tokens: Count
    training_seconds: Count
    init_from: NotRequired["Beginning"]


class Beginning(Run):
    """A run whose parameters another one began with."""

    checkpoint: str


class Penalty(TypedDict):
    name: str
    alpha: Number


class Hashes(TypedDict):
    train: str
    validation: NotRequired[str]


class Result(Run):
    splits: dict[str, Split | EarlierSplit]
    candidates: dict[str, Number]
    curve: dict[str, list[list[Number]]]
    data_sha256: Hashes
    tokenizer_sha256: list[str]
    checkpoint: str
    parameters: Count
    beam_size: NotRequired[Count]
    length_penalty: NotRequired[Penalty]
    ensemble_with: NotRequired[list[Run]]
    notes: NotRequired[list[str]]
