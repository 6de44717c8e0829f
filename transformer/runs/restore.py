"""A trained model, restored from its work directory and ready to translate."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import jax
from absl import flags

from transformer.runs import experiment
from transformer.runs.checkpoints import Checkpoints
from transformer.system.distributed import from_first
from transformer.decoding.ensemble import Ensemble, stack
from transformer.system.errors import UserError
from transformer.runs.experiment import Experiment
from transformer.runs.integrity import read_signed
from transformer.models.family import Sizes, build_model
from transformer.models.functional import FunctionalModel, Params
from transformer.system.sharding import data_mesh, replicated
from transformer.data.tokenizers import Tokenizers
from transformer.decoding.translation import Translator

CHECKPOINTS = ("last", "best", "average")


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    workdir: Path
    config: Experiment  # as in WORKDIR/config.json
    tokenizers: Tokenizers
    steps: list[int]  # of the checkpoint, or of those averaged
    checkpoint: str  # which of CHECKPOINTS these are
    last_step: int  # that the run has a checkpoint of
    stopped_early: bool  # by training.patience
    params: Params  # of an ensemble: ensemble.stack
    translator: Translator
    others: Sequence[Self] = ()  # of an ensemble: the other models, without parameters

    def provenance(self) -> dict[str, Any]:
        """What produced a translation, for scores.json."""
        decoding = self.translator.config
        others = [
            {
                "workdir": str(other.workdir),
                "checkpoint_steps": other.steps,
                "config_sha256": other.config.sha256,
            }
            for other in self.others
        ]
        return {
            "checkpoint_steps": self.steps,
            "beam_size": decoding.beam_size,
            "length_penalty": {"name": "gnmt", "alpha": decoding.length_penalty},
            "max_extra_length": decoding.max_extra_length,
            "config_sha256": self.config.sha256,
            "tokenizer_sha256": self.tokenizers.sha256,
            **({"ensemble_with": others} if others else {}),
        }


def define_flags() -> Callable[..., TrainedModel]:
    """Defines the flags that choose a trained model and its search; returns what restores it.

    What that is given by the name of a flag takes the flag's place.
    """
    workdir = flags.DEFINE_string("workdir", None, "The work directory of a training run.")
    ensemble = flags.DEFINE_list(
        "ensemble",
        None,
        "Work directories of more runs of the same model, to be searched as one with --workdir's.",
    )
    checkpoint = flags.DEFINE_enum(
        "checkpoint",
        None,
        CHECKPOINTS,
        "Which parameters to use; the best if none, or what was exported.",
    )
    average_last = flags.DEFINE_integer(
        "average_last",
        None,
        "How many --checkpoint=average averages; 5, or all, if none.",
        lower_bound=1,
    )
    search = (
        flags.DEFINE_integer("beam_size", None, "Instead of the config's."),
        flags.DEFINE_float("length_penalty", None, "Its alpha, instead of the config's."),
    )

    def restore_chosen(**instead: Any) -> TrainedModel:
        if workdir.value is None:
            raise UserError("--workdir is missing; give the work directory of a training run")
        chosen = {flag.name: flag.value for flag in (checkpoint, average_last, *search)} | instead
        others = ensemble.value or []
        if ensemble.present and not (others and all(others)):
            raise UserError("--ensemble names no work directory; give one, or leave it out")
        models = [restore(Path(directory), **chosen) for directory in [workdir.value, *others]]
        return models[0] if len(models) == 1 else as_one(models)

    return restore_chosen


def as_one(models: Sequence[TrainedModel]) -> TrainedModel:
    """The ensemble of several models, with the search of the first.

    Raises UserError if they differ in more than their training, as far as their work directories
    say: not in the text of files.
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
    ensemble = Ensemble(_build(first.config, first.tokenizers))
    return dataclasses.replace(
        first,
        params=stack([model.params for model in models]),
        translator=Translator(ensemble, first.tokenizers, first.translator.config, data_mesh()),
        others=[dataclasses.replace(model, params={}) for model in others],
    )


def _what_an_ensemble_shares(model: TrainedModel) -> dict[str, Any]:
    fields = experiment.flat(model.config.to_dict())
    languages = "data.source_language", "data.target_language"
    shared = experiment.architecture(model.config) | {name: fields[name] for name in languages}
    checkpoints = {
        "checkpoint (--checkpoint)": model.checkpoint,
        "number of checkpoints (--average_last)": len(model.steps),
    }
    return shared | {"tokenizer_sha256": model.tokenizers.sha256} | checkpoints


def restore(
    workdir: Path, checkpoint: str | None, average_last: int | None, **decoding: Any
) -> TrainedModel:
    """Restores the 'last' or 'best' checkpoint, or the 'average' of the last few.

    Of an export it is the one that is there, and no other can be asked for.
    `decoding` takes the place of the config's fields of that name where it is not None.
    """
    config = experiment.load(workdir)
    given = {name: value for name, value in decoding.items() if value is not None}
    decoding_config = dataclasses.replace(config.decoding, **given)
    tokenizers = Tokenizers.load(workdir)
    model = _build(config, tokenizers)

    mesh = data_mesh()
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh)),
        model.abstract_params(),
    )
    training = config.training
    checkpoints = Checkpoints(
        workdir, keep_last=training.keep_last, best_metric=training.best_metric, read_only=True
    )

    def existing() -> list[int]:
        if not (steps := checkpoints.steps()):
            raise UserError(f"{workdir} has no checkpoint yet; train on, then try again")
        return steps

    def chosen() -> list[int]:
        steps = existing()
        if checkpoint != "average":
            return [steps[-1] if checkpoint == "last" else checkpoints.best_step()]
        if not (steps := checkpoints.scheduled_steps()):
            raise UserError(f"{workdir} has no checkpoint to average; use --checkpoint=last")
        last = min(len(steps), training.keep_last)  # there may be an older, better one
        if average_last is None:
            return steps[-min(5, last) :]
        if average_last > last:
            raise UserError(
                f"--average_last={average_last} is more than the last {last} checkpoints of "
                f"{workdir}; lower it, or train with a larger training.keep_last"
            )
        return steps[-average_last:]

    exported = from_first(lambda: _exported(workdir))
    checkpoint = checkpoint or (exported["checkpoint"] if exported else "best")
    if average_last is not None and checkpoint != "average":
        raise UserError(
            f"--average_last={average_last} is for --checkpoint=average, and this is "
            f"--checkpoint={checkpoint}; give both or neither"
        )
    if exported:
        steps, last_step = exported["steps"], exported["last_step"]
        stopped_early = exported["stopped_early"]
        if checkpoint != exported["checkpoint"] or average_last not in (None, len(steps)):
            raise UserError(
                f"{workdir} was exported and holds the {exported['checkpoint']} of step(s) "
                f"{', '.join(map(str, steps))} alone; give the work directory of the training "
                "run, or leave --checkpoint and --average_last out"
            )
        params = checkpoints.restore_params(steps[-1], like)
    else:
        steps, last_step = from_first(lambda: (chosen(), existing()[-1]))
        patience = from_first(lambda: checkpoints.patience(last_step))
        stopped_early = 0 < training.patience <= patience
        params = checkpoints.average_params(steps, like)
    checkpoints.close()
    translator = Translator(model, tokenizers, decoding_config, mesh)
    return TrainedModel(
        workdir, config, tokenizers, steps, checkpoint, last_step, stopped_early, params, translator
    )


def _build(config: Experiment, tokenizers: Tokenizers) -> FunctionalModel:
    lengths = config.data.max_source_length, config.data.max_target_length
    sizes = Sizes(*tokenizers.vocab_sizes, config.tokenizer.joint, *lengths)
    return build_model(config.model, sizes)


def _exported(workdir: Path) -> dict[str, Any] | None:
    """What export.py wrote down; None of the work directory of a training run."""
    path = workdir / experiment.EXPORTED
    if not path.exists():
        return None
    if (content := read_signed(path)) is None:
        raise UserError(f"{path} is damaged; export the model again")
    return content
