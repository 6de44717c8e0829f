"""The flags that choose a trained model; --help shows them without importing JAX."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from absl import flags

from transformer.decoding.config import DecodingConfig
from transformer.runs import fields
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path, DEFINE_paths

if TYPE_CHECKING:
    from transformer.runs.restore import TrainedModel

LANGUAGES = "source_language", "target_language"
DECODING_FLAGS = tuple(field.name for field in dataclasses.fields(DecodingConfig))


def define_flags(
    more: Mapping[str, flags.FlagHolder] = {}, directions: bool = False
) -> Callable[..., "TrainedModel"]:
    """Defines the flags that choose a trained model, its data and its search.

    more: the command's own flags for further config fields, by field. directions: whether flags
      choose the languages of a model of many.
    Returns the function that restores it; `task` is the one that the command is for. Other keyword
    arguments of that function override the flags of the same name.
    """
    workdir = DEFINE_path("workdir", None, "The work directory of a training run.")
    checkpoint = flags.DEFINE_string(
        "checkpoint",
        None,
        "Which parameters to use: best, last, average, ema, or a step such as 1000 (default: the "
        "best, or those that were exported).",
    )
    average_last = flags.DEFINE_integer(
        "average_last",
        None,
        "Checkpoints to average (default: the last 5, or all if fewer).",
        lower_bound=1,
    )
    ensemble = DEFINE_paths(
        "ensemble", None, "More work directories, whose models decode together with --workdir's."
    )
    overrides = {
        **{f"decoding.{name}": flag for name, flag in _decoding_flags().items()},
        "data.data_dir": DEFINE_path(
            "data_dir",
            None,
            "Where TFDS keeps data sets and we keep the tokenised text.",
            is_field=True,
        ),
        "data.raw_dir": DEFINE_path("raw_dir", None, "A folder with the raw files.", is_field=True),
        "data.test_file": DEFINE_path(
            "test_file", None, "The file of the test split.", is_field=True
        ),
        "task.features": DEFINE_path(
            "features", None, "The classifier that scores of images are over.", is_field=True
        ),
        **more,
    }
    if directions:
        source = flags.DEFINE_string(
            "source_language",
            None,
            "The source's language instead of the config's, for vocabularies of M2M100 and NLLB.",
        )
        target = flags.DEFINE_string(
            "target_language", None, "The target's language instead of the config's."
        )
        overrides |= {f"data.{flag.name}": flag for flag in (source, target)}
    trust_paths = flags.DEFINE_bool(
        "trust_paths",
        False,
        "Read the data paths that the config of the work directory names, though you have not "
        "trained with them.",
    )

    def restore_chosen(task: str | None = None, **instead: Any) -> "TrainedModel":
        from transformer.runs.restore import as_one, restore

        if workdir.value is None:
            raise UserError("--workdir is missing; give the work directory of a training run")
        which = {flag.name: flag.value for flag in (checkpoint, average_last)}
        changes = {field: flag.value for field, flag in overrides.items()}
        for name, value in instead.items():
            if name in which:
                which[name] = value
            else:
                changes[f"decoding.{name}"] = value
        others = ensemble.value or []
        if ensemble.present and not (others and all(others)):
            raise UserError("--ensemble names no work directory; give one, or leave it out")
        directories = [workdir.value, *others]
        options = {**which, "overrides": changes, "trust_paths": trust_paths.value}
        models = [restore(Path(name).expanduser(), **options) for name in directories]
        for name in LANGUAGES:
            if changes.get(f"data.{name}"):
                models[0].task.tokenizers.check_languages(f"--{name}")
        if task not in (None, models[0].config.task.name):
            raise UserError(
                f"{models[0].workdir} is a run of the task {models[0].config.task.name}; give the "
                f"--workdir of one of {task}"
            )
        return models[0] if len(models) == 1 else as_one(models)

    return restore_chosen


def _decoding_flags() -> dict[str, flags.FlagHolder]:
    """A flag for each field of the decoding section, explained as in configs/base.py."""
    kinds = {
        bool: flags.DEFINE_bool,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    comments = fields.comments(fields.BASE)
    defined = {}
    for field in dataclasses.fields(DecodingConfig):
        kind = next(kind for kind in kinds if kind in (field.type, *get_args(field.type)))
        comment = comments[f"decoding.{field.name}"]
        defined[field.name] = kinds[kind](field.name, None, f"{comment}.")
    return defined
