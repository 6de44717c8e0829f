"""What is known of how a run was made: with what, on what, from what, for how long."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.runs import provenance, run_config
from transformer.runs.metric_writers import read_metrics
from transformer.runs.restore import TrainedModel
from transformer.runs.run_config import EXPORTED, Config
from transformer.system.commands import command
from transformer.system.errors import UserError

Run = Mapping[str, Any]


def run_of(model: TrainedModel) -> dict[str, Any]:
    """What the ledger keeps of one run."""
    metrics, starts = _metrics(model), provenance.starts(model.workdir)
    path = Path(starts[-1]["config_file"])
    apart = "config_file", "overrides", "command"
    run = {
        # An absolute path is one of this machine; a relative one, as a rule, of the project.
        "config_file": path.name if path.is_absolute() else str(path),
        "overrides": overrides_of(starts[-1], model.config),
        "seed": model.config.training.seed,
        "config": recorded_fields(model.config),
        "checkpoint_steps": model.steps,
        "steps": model.last_step,
        "target_tokens": int(total(metrics, "target_tokens")),
        "training_seconds": round(total(metrics, "seconds")),
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


def recorded_fields(config: Config) -> dict[str, Any]:
    """The fields of a config that say what was computed, by name."""
    recorded = run_config.fields_marked(config, "recorded", True)
    fields = {name: value for name, value in run_config.flat(config).items() if recorded[name]}
    if getattr(config.data, "uses_text_files", False):
        fields["data.dataset"] = None
    return fields


def overrides_of(start: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """How a config differs from its file, as a start says.

    FILE stands for the name of a file, which means nothing elsewhere. The folders of the data,
    data.data_dir and data.raw_dir, are left out, and so is the project of training.wandb.
    """
    recorded = run_config.fields_marked(config, "recorded", True)
    given = {name: value for name, value in start["overrides"].items() if recorded[name]}
    given.pop("training.seed", None)
    files = [
        name
        for name, value in run_config.flat(config).items()
        if not recorded[name] and isinstance(value, str) and not name.endswith(("_dir", "wandb"))
    ]
    return given | dict.fromkeys(files, "FILE")


def validation_curves(model: TrainedModel) -> dict[str, list[tuple[int, float]]]:
    """What a run logged of its validation: steps and values of each metric."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in _metrics(model):
        for name, value in line.items():
            if name.startswith("eval/validation/") and value is not None:
                curve = curves.setdefault(name.removeprefix("eval/validation/"), [])
                curve.append((line["step"], round(value, 4)))
    return curves


def lineage(run: Run) -> list[Run]:
    """The runs whose parameters a run began with, the first of them first, and the run itself."""
    origin = run.get("init_from")
    return [*(lineage(origin) if origin else []), run]


def identity(run: Run) -> dict[str, Any]:
    """What tells a run from others. Parameters do not: other machines train other digits."""
    names = "checkpoint", "checkpoint_steps", "config"
    beginning = [[one.get(name) for name in names] for one in lineage(run)[:-1]]
    own = {"checkpoint_steps": run["checkpoint_steps"], "what it began with": beginning}
    return {**run["config"], **own}


def is_known(origin: Run | None) -> bool:
    """Whether what a run began with can be made again from what is known of it."""
    known = {"starts", "overrides", "config", "steps"}
    if not origin or known - origin.keys() or not origin["starts"] or origin["starts"][0]["step"]:
        return False
    if "training.init_from" in origin["overrides"] and not is_known(origin.get("init_from")):
        return False
    return origin["steps"] >= origin["config"]["training.steps"] or origin.get(
        "stopped_early", False
    )


def check_can_be_repeated(model: TrainedModel) -> None:
    """Raises UserError if a work directory does not say how its run is made from the beginning."""
    workdir, training = model.workdir, model.config.training
    if (workdir / EXPORTED).exists():
        raise UserError(f"{workdir} was exported; record the training run that it comes from")
    starts = provenance.starts(workdir)
    if not starts or starts[0]["step"]:
        raise UserError(
            f"{workdir}/starts.jsonl does not say how this run was begun; it cannot be recorded"
        )
    if training.init_from and not is_known(provenance.origin(workdir)):
        raise UserError(
            f"{workdir} began with the parameters of another run, and {provenance.ORIGIN} does not "
            "have that from its beginning to its end; record only what can be trained again"
        )
    if model.last_step < training.steps and not model.stopped_early:
        steps = f"--config.training.steps={model.last_step}"
        end = command("train", f"--workdir={workdir}", steps)
        raise UserError(
            f"{workdir} is at step {model.last_step} of {training.steps}; train it to the end, or "
            f"say that this is the end: {end}"
        )


def _metrics(model: TrainedModel) -> list[dict[str, float]]:
    """The lines of metrics.jsonl up to the last checkpoint."""
    metrics = read_metrics(model.workdir / "metrics.jsonl")
    return [line for line in metrics if line["step"] <= model.last_step]


def total(metrics: list[dict[str, float]], name: str) -> float:
    """The last value of a total, which counts on over starts; 0 if there is none yet."""
    found = [line.get(f"total/{name}") for line in metrics]
    return max((x for x in found if x is not None and math.isfinite(x)), default=0.0)
