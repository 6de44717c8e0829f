"""What is known of how a run was made: with what, on what, from what, for how long."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.runs import experiment, provenance
from transformer.runs.experiment import Experiment
from transformer.runs.metrics import read_metrics
from transformer.runs.restore import TrainedModel


def run_of(model: TrainedModel) -> dict[str, Any]:
    """What the ledger keeps of one run."""
    metrics, starts = metrics_of(model), provenance.starts(model.workdir)
    path = Path(starts[-1]["config_file"])
    apart = "config_file", "overrides", "command"

    def total(name: str) -> float:
        return max(line[name] for line in metrics if name in line)

    run = {
        # An absolute path is one of this machine; a relative one, as a rule, of the project.
        "config_file": path.name if path.is_absolute() else str(path),
        "overrides": overrides_of(starts[-1], model.config),
        "seed": model.config.training.seed,
        "config": recorded_fields(model.config),
        "checkpoint_steps": model.steps,
        "steps": model.last_step,
        "target_tokens": int(total("total/target_tokens")),
        "training_seconds": round(total("total/seconds")),
        # A start after the last step has trained nothing, but may have said that this is the end.
        "starts": [
            {name: value for name, value in start.items() if name not in apart}
            for start in starts
            if start["step"] < model.last_step
        ],
    }
    if origin := provenance.origin(model.workdir):
        run["init_from"] = origin
    return run


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


def overrides_of(start: Mapping[str, Any], config: Experiment) -> dict[str, Any]:
    """How a config differs from its file, as a start says.

    FILE stands for the name of a file, which means nothing elsewhere. The folders of the data,
    data.data_dir and data.raw_dir, are left out.
    """
    recorded = experiment.fields_marked(config, "recorded", True)
    overrides = {
        name: value
        for name, value in start["overrides"].items()
        if recorded[name] and name != "training.seed"
    }
    files = {
        name: "FILE"
        for name, value in experiment.flat(config).items()
        if not recorded[name] and isinstance(value, str) and not name.endswith("_dir")
    }
    return overrides | files


def is_known(origin: Mapping[str, Any] | None) -> bool:
    """Whether what a run began with can be made again from what is known of it."""
    if not origin or "starts" not in origin or not origin["starts"] or origin["starts"][0]["step"]:
        return False
    if "training.init_from" in origin["overrides"] and not is_known(origin.get("init_from")):
        return False
    return origin["steps"] >= origin["config"]["training.steps"] or origin["stopped_early"]


def lineage(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The runs whose parameters a run began with, the first of them first, and the run itself."""
    origin = run.get("init_from")
    return [*(lineage(origin) if origin else []), run]
