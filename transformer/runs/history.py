"""What is known of how a run was made: with what, on what, from what, for how long."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.runs import experiment, provenance
from transformer.runs.experiment import Experiment
from transformer.runs.metrics import read_metrics
from transformer.runs.restore import TrainedModel

# Files whose names are not recorded, since they mean nothing elsewhere; that they were given is.
FILES = (
    *("data.extra_source", "data.extra_target"),
    *("tokenizer.source_model", "tokenizer.target_model"),
    "training.init_from",
)


def run_of(model: TrainedModel) -> dict[str, Any]:
    """What the ledger keeps of one run."""
    config, metrics = model.config, metrics_of(model)
    totals = {
        name: max(line[f"total/{name}"] for line in metrics if f"total/{name}" in line)
        for name in ("seconds", "target_tokens")
    }
    starts = provenance.starts(model.workdir)
    newest = starts[-1]
    # A start after the last step has trained nothing, but may have said that this is the end.
    starts = [start for start in starts if start["step"] < model.last_step]
    apart = ("config_file", "overrides", "command")
    origin = provenance.origin(model.workdir)
    path = Path(newest["config_file"])
    return {
        # An absolute path is one of this machine; a relative one, as a rule, of the project.
        "config_file": path.name if path.is_absolute() else str(path),
        "overrides": _overrides(newest, config),
        "seed": config.training.seed,
        "config": recorded_fields(config),
        "checkpoint_steps": model.steps,
        "steps": model.last_step,
        "target_tokens": int(totals["target_tokens"]),
        "training_seconds": round(totals["seconds"]),
        "starts": [{k: v for k, v in start.items() if k not in apart} for start in starts],
        **({"init_from": origin} if origin else {}),
    }


def metrics_of(model: TrainedModel) -> list[dict[str, float]]:
    """The lines of metrics.jsonl up to the last checkpoint."""
    metrics = read_metrics(model.workdir / "metrics.jsonl")
    return [line for line in metrics if line["step"] <= model.last_step]


def recorded_fields(config: Experiment) -> dict[str, Any]:
    """The fields of a config that say what was computed, by name."""
    recorded = experiment.fields_marked(config, "recorded", True)
    fields = {name: value for name, value in experiment.flat(config).items() if recorded[name]}
    if config.data and config.data.uses_text_files:
        fields["data.dataset"] = None
    return fields


def _overrides(start: Mapping[str, Any], config: Experiment) -> dict[str, Any]:
    """In what a config differs from its file, as a start says; FILE stands for each of FILES."""
    fields, recorded = experiment.flat(config), experiment.fields_marked(config, "recorded", True)
    found = {
        name: value
        for name, value in start["overrides"].items()
        if recorded[name] and name != "training.seed"
    }
    return found | {name: "FILE" for name in FILES if fields.get(name)}


def is_known(origin: Mapping[str, Any] | None) -> bool:
    """Whether what a run began with can be made again from what is known of it."""
    if not origin or "starts" not in origin or not origin["starts"] or origin["starts"][0]["step"]:
        return False
    is_at_its_end = origin["steps"] >= origin["config"]["training.steps"]
    if "training.init_from" in origin["overrides"] and not is_known(origin.get("init_from")):
        return False
    return is_at_its_end or origin["stopped_early"]


def lineage(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The run, after those whose parameters it began with, the first of them first."""
    return [*(lineage(run["init_from"]) if "init_from" in run else []), run]
