"""A trained model, restored from its work directory and ready for use."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax

from transformer.models.functional import Params
from transformer.runs import run_config, trusted_paths
from transformer.runs.checkpoints import Checkpoints
from transformer.runs.integrity import check_seal, read_signed
from transformer.runs.run_config import Config
from transformer.system.buckets import address_of
from transformer.system.distributed import from_first
from transformer.system.errors import UserError
from transformer.system.reading import Count
from transformer.system.sharding import data_mesh, replicated
from transformer.tasks.task import TrainedTask

CHECKPOINTS = ("last", "best", "average", "ema")


class Chosen(NamedTuple):
    """The checkpoint of a model, and of which run; exports/workdir.py writes it."""

    checkpoint: str  # one of CHECKPOINTS, or a step
    steps: list[Count]  # of the checkpoint, or of those averaged
    last_step: Count  # of the run's last checkpoint
    stopped_early: bool  # by training.patience


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    workdir: Path
    config: Config  # as in WORKDIR/config.json
    task: TrainedTask
    chosen: Chosen
    params: Params | list[Params]  # for an ensemble, those of each model
    extra: dict[str, Any] | list[dict[str, Any]]  # for an ensemble, that of each model
    output_dir: Path | None = None  # for outputs, if not WORKDIR/eval
    others: Sequence[Self] = ()  # the other models of an ensemble, without parameters
    # Paths that the config names and the user does not know, by field: see trusted_paths.py.
    unknown_paths: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def check_paths(self) -> None:
        """Call before reading the data: raises UserError if a stranger may have named them."""
        trusted_paths.check(self.workdir, self.unknown_paths)

    def provenance(self) -> dict[str, Any]:
        """The model and checkpoints behind an output, for scores.json."""
        others = [
            {
                "workdir": address_of(other.workdir),
                "checkpoint_steps": other.chosen.steps,
                "config_sha256": other.config.sha256,
            }
            for other in self.others
        ]
        return {
            "checkpoint_steps": self.chosen.steps,
            **self.task.provenance(),
            "config_sha256": self.config.sha256,
            **({"ensemble_with": others} if others else {}),
        }


def as_one(models: Sequence[TrainedModel]) -> TrainedModel:
    """The ensemble of several models, with the data and the search of the first.

    They may be of different families. Raises UserError if they differ in languages, vocabularies or
    checkpoint selection.
    """
    first, *others = models
    expected = _what_an_ensemble_shares(first)
    for model in others:
        for name, value in _what_an_ensemble_shares(model).items():
            if value != expected[name]:
                raise UserError(
                    f"--ensemble: {name} of {model.workdir} is {value!r} and of {first.workdir} "
                    f"{expected[name]!r}; give runs that are alike in that"
                )
    return dataclasses.replace(
        first,
        task=first.config.kind.ensemble([model.task for model in models]),
        params=[model.params for model in models],
        extra=[model.extra for model in models],
        others=[dataclasses.replace(model, params={}, extra={}) for model in others],
    )


def _what_an_ensemble_shares(model: TrainedModel) -> dict[str, Any]:
    languages = {f"data.{name}": x for name, x in model.config.data.languages.items()}
    checkpoints = {
        "checkpoint (--checkpoint)": model.chosen.checkpoint,
        "number of checkpoints (--average_last)": len(model.chosen.steps),
    }
    tokenizers = {"tokenizer_sha256": model.task.provenance().get("tokenizer_sha256")}
    return languages | tokenizers | checkpoints


def restore(
    workdir: Path,
    checkpoint: str | None = None,
    average_last: int | None = None,
    overrides: dict[str, Any] | None = None,
    trust_paths: bool = False,
) -> TrainedModel:
    """Restores the 'last' or 'best' checkpoint, that of a step, or the 'average' of the last few.

    'ema' is the moving average of the parameters in the last checkpoint.
    An export holds one set of parameters, and no other can be chosen.
    overrides: values for fields of the config, such as decoding.beam_size; None leaves a field as
      it is.
    trust_paths: whether the user trusts the paths that the config names.
    """
    if checkpoint and checkpoint not in CHECKPOINTS and not checkpoint.isdecimal():
        raise UserError(
            f"--checkpoint={checkpoint}: it must be {', '.join(CHECKPOINTS)}, or a step"
        )
    config = run_config.load(workdir)
    check_seal(workdir)
    changed = run_config.with_fields(config, overrides or {})
    given = [field for field, value in (overrides or {}).items() if value is not None]
    unknown = {} if trust_paths else trusted_paths.unknown(config, given)
    # A task may open its own files at any time; data wait for `check_paths`.
    without = {name.removeprefix("task."): None for name in unknown if name.startswith("task.")}
    changed = dataclasses.replace(changed, task=dataclasses.replace(changed.task, **without))
    task, training = config.kind.restore(changed, workdir), config.training
    everywhere = replicated(data_mesh())
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere),
        (task.model.abstract_params(), task.model.abstract_extra()),
    )
    checkpoints = Checkpoints(
        workdir,
        keep_last=training.keep_last,
        best_metric=training.best_metric,
        direction=config.best_metric.better,
        read_only=True,
    )
    exported = from_first(lambda: _exported(workdir))
    checkpoint = checkpoint or (exported.checkpoint if exported else "best")
    if average_last is not None and checkpoint != "average":
        raise UserError(
            f"--average_last={average_last} is for --checkpoint=average, and this is "
            f"--checkpoint={checkpoint}; give both or neither"
        )
    if checkpoint == "ema" and not training.ema:
        raise UserError(
            f"--checkpoint=ema: {workdir} has no moving average, since its training.ema is 0; use "
            "--checkpoint=average, or train with training.ema=0.999"
        )
    if exported:
        if checkpoint != exported.checkpoint or average_last not in (None, len(exported.steps)):
            raise UserError(
                f"{workdir} was exported and holds the {exported.checkpoint} of step(s) "
                f"{', '.join(map(str, exported.steps))} alone; give the work directory of the "
                "training run, or leave --checkpoint and --average_last out"
            )
    else:
        keep_last = training.keep_last
        steps, last_step, patience = from_first(
            lambda: _chosen(workdir, checkpoints, checkpoint, average_last, keep_last)
        )
        stopped_early = 0 < training.patience <= patience
    chosen = exported or Chosen(checkpoint, steps, last_step, stopped_early)
    # An average was exported as one checkpoint.
    params, extra = checkpoints.average_params(
        chosen.steps[-1:] if exported else steps,
        *like,
        "ema" if checkpoint == "ema" and not exported else "params",
    )
    checkpoints.close()
    return TrainedModel(workdir, config, task, chosen, params, extra, unknown_paths=unknown)


def _chosen(
    workdir: Path,
    checkpoints: Checkpoints,
    checkpoint: str,
    average_last: int | None,
    keep_last: int,
) -> tuple[list[int], int, int]:
    """The steps to use, the last step available, and the state of patience there."""
    if not (steps := checkpoints.steps()):
        raise UserError(f"{workdir} has no checkpoint yet; train on, then try again")
    last_step = steps[-1]
    patience = checkpoints.patience(last_step)
    if checkpoint.isdecimal():
        if checkpoint.lstrip("0") not in map(str, steps):
            raise UserError(
                f"{workdir} has no checkpoint of step {checkpoint}; it has: "
                f"{', '.join(map(str, steps))} (training.keep_last says how many are kept)"
            )
        return [int(checkpoint)], last_step, patience
    if checkpoint != "average":
        steps = [checkpoints.best_step() if checkpoint == "best" else last_step]
        return steps, last_step, patience
    if not (steps := checkpoints.scheduled_steps()):
        raise UserError(f"{workdir} has no checkpoint to average; use --checkpoint=last")
    last = min(len(steps), keep_last)  # an older, better one may be kept as well
    if average_last is None:
        return steps[-min(5, last) :], last_step, patience
    if average_last > last:
        raise UserError(
            f"--average_last={average_last} is more than the last {last} checkpoints of "
            f"{workdir}; lower it, or train with a larger training.keep_last"
        )
    return steps[-average_last:], last_step, patience


def _exported(workdir: Path) -> Chosen | None:
    """The record of exports/workdir.py; None for the work directory of a training run."""
    path = workdir / run_config.EXPORTED
    if not path.exists():
        return None
    content = read_signed(path, workdir, Chosen)
    if content is None or not content["steps"]:
        raise UserError(f"{path} is damaged; export the model again")
    if (checkpoint := content["checkpoint"]) not in CHECKPOINTS and not checkpoint.isdecimal():
        raise UserError(f"{path} has the checkpoint {checkpoint!r:.60}; export the model again")
    return Chosen(**content)
