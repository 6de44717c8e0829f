"""The record of how a run was made: config, starts, initial parameters, training time."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.runs import provenance, run_config
from transformer.runs.metric_writers import read_metrics
from transformer.runs.restore import TrainedModel
from transformer.runs.run_config import EXPORTED, Config
from transformer.system.commands import command, script
from transformer.system.errors import UserError

Run = Mapping[str, Any]


def run_of(model: TrainedModel) -> dict[str, Any]:
    """The ledger's entry for one run."""
    metrics = metrics_until(model.workdir, model.chosen.last_step)
    starts = provenance.starts(model.workdir)
    path = Path(starts[-1]["config_file"])
    apart = "config_file", "overrides", "command"
    run = {
        # An absolute path belongs to this machine; a relative one usually belongs to the project.
        "config_file": path.name if path.is_absolute() else str(path),
        "overrides": overrides_of(starts[-1], model.config),
        "seed": model.config.training.seed,
        "config": recorded_fields(model.config),
        "checkpoint_steps": model.chosen.steps,
        "steps": model.chosen.last_step,
        "target_tokens": int(total(metrics, "target_tokens")),
        "training_seconds": round(total(metrics, "seconds")),
        # A start after the last step has trained nothing, but may have ended the run there.
        "starts": [
            {name: value for name, value in start.items() if name not in apart}
            for start in starts
            if start["step"] < model.chosen.last_step
        ],
    }
    if origin := provenance.origin(model.workdir):
        run["init_from"] = origin
    return run


def recorded_fields(config: Config) -> dict[str, Any]:
    """The config fields that determine what is computed, by name."""
    recorded = run_config.fields_marked(config, "recorded", True)
    fields = {name: value for name, value in run_config.flat(config).items() if recorded[name]}
    if "data.dataset" in fields and config.data.uses_files:
        fields["data.dataset"] = None
    return fields


def overrides_of(start: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The differences between a config and its file, as recorded at a start.

    FILE stands for a file name, which means nothing elsewhere. The data folders data.data_dir and
    data.raw_dir are left out, and so is the project of training.wandb.
    """
    recorded = run_config.fields_marked(config, "recorded", True)
    given = {name: value for name, value in start["overrides"].items() if recorded.get(name)}
    given.pop("training.seed", None)
    files = [
        name
        for name, value in run_config.flat(config).items()
        if not recorded[name] and isinstance(value, str) and not name.endswith(("_dir", "wandb"))
    ]
    return given | dict.fromkeys(files, "FILE")


def validation_curves(model: TrainedModel) -> dict[str, list[tuple[int, float]]]:
    """The validation metrics that a run logged: steps and values, by metric."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in metrics_until(model.workdir, model.chosen.last_step):
        for name, value in line.items():
            if name.startswith("eval/validation/") and value is not None:
                curve = curves.setdefault(name.removeprefix("eval/validation/"), [])
                curve.append((line["step"], round(value, 4)))
    return curves


def lineage(run: Run) -> list[Run]:
    """The runs whose parameters a run began with, the earliest first, then the run itself."""
    origin = run.get("init_from")
    return [*(lineage(origin) if origin else []), run]


def identity(run: Run) -> dict[str, Any]:
    """The fields that identify a run. Parameters do not: their digits differ between machines."""
    names = "checkpoint", "checkpoint_steps", "config"
    beginning = [[one.get(name) for name in names] for one in lineage(run)[:-1]]
    own = {"checkpoint_steps": run["checkpoint_steps"], "what it began with": beginning}
    return {**run["config"], **own}


def is_known(origin: Run | None) -> bool:
    """True if the run that another began with can be repeated from its record."""
    known = {"starts", "overrides", "config", "steps"}
    if not origin or known - origin.keys() or not origin["starts"] or origin["starts"][0]["step"]:
        return False
    if "training.init_from" in origin["overrides"] and not is_known(origin.get("init_from")):
        return False
    return origin["steps"] >= origin["config"]["training.steps"] or origin.get(
        "stopped_early", False
    )


def check_can_be_repeated(model: TrainedModel) -> None:
    """Raises UserError if a work directory does not record how its run began."""
    workdir, training = model.workdir, model.config.training
    if (workdir / EXPORTED).exists():
        raise UserError(f"{workdir} was exported; record the training run that it comes from")
    starts = provenance.starts(workdir)
    if not starts or starts[0]["step"]:
        raise UserError(
            f"{workdir}/starts.jsonl does not say how this run was begun; it cannot be recorded"
        )
    if not {"config_file", "overrides"} <= starts[-1].keys():
        raise UserError(
            f"{workdir}/starts.jsonl names no config file, as a run from Python code has none; "
            f"record a run of {script('train')}"
        )
    if training.init_from and not is_known(provenance.origin(workdir)):
        raise UserError(
            f"{workdir} began with the parameters of another run, and {provenance.ORIGIN} does not "
            "have that from its beginning to its end; record only what can be trained again"
        )
    if model.chosen.last_step < training.steps and not model.chosen.stopped_early:
        steps = f"--config.training.steps={model.chosen.last_step}"
        end = command("train", f"--workdir={workdir}", steps)
        raise UserError(
            f"{workdir} is at step {model.chosen.last_step} of {training.steps}; train it to the "
            f"end, or say that this is the end: {end}"
        )


def metrics_until(workdir: Path, step: int) -> list[dict[str, float]]:
    """The lines of metrics.jsonl up to a step."""
    return [line for line in read_metrics(workdir / "metrics.jsonl") if line["step"] <= step]


def total(metrics: list[dict[str, float]], name: str) -> float:
    """The last value of a total, which continues across starts; 0 if there is none yet."""
    found = [line.get(f"total/{name}") for line in metrics]
    return max((x for x in found if x is not None and math.isfinite(x)), default=0.0)
