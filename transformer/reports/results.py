"""The types of a result: the required content of a ledger file and of each trained run."""

import dataclasses
from typing import Any, NotRequired, TypedDict

from transformer.decoding.config import DecodingConfig
from transformer.runs.config_fields import check_types
from transformer.runs.provenance import Start as AnyStart
from transformer.system.reading import Count, Number

Value = str | bool | Number | None | dict[str, Any]  # of a config field


class Score(TypedDict):
    score: Number
    signature: NotRequired[str | None]
    definition: NotRequired[str | None]
    needs_model: NotRequired[Any]


class Split(TypedDict):
    name: str
    scores: dict[str, Score]
    examples: Count
    text_sha256: str
    hypotheses_sha256: str


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
    splits: dict[str, Split]
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


def checkpoint_flags(run: Run) -> dict[str, Any]:
    """The flags of evaluate.py for the recorded checkpoint of a run."""
    average = {"average_last": len(run["checkpoint_steps"])}
    return {"checkpoint": run["checkpoint"], **(average if run["checkpoint"] == "average" else {})}


def search_flags(result: Result) -> dict[str, Any]:
    """The flags of evaluate.py that choose the search: see Seq2Seq.provenance."""
    if "beam_size" not in result:  # a task without a search
        return {}
    penalty = result["length_penalty"]
    recorded = {
        **result,
        "length_penalty": penalty["alpha"],
        "length_penalty_form": penalty["name"],
        "seed": result.get("search_seed", 0),
    }
    # A missing setting had its default, even if the run's config says otherwise.
    found = {
        field.name: recorded.get(field.name, field.default)
        for field in dataclasses.fields(DecodingConfig)
        if field.name in recorded or field.default is not dataclasses.MISSING
    }
    check_types("decoding", DecodingConfig, found)
    return found
