"""The parameters of another run, with which a run begins: training.init_from.

They are copied to WORKDIR/initial. So the run can start over after a kill or a divergence even if
the other run is gone.
"""

import contextlib
import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.configs import bert_base
from transformer.data.hub_files import is_hub_folder
from transformer.models.functional import Params
from transformer.runs import history, provenance, run_config
from transformer.runs import restore as restoring
from transformer.runs.checkpoint_store import CHECKPOINTS, Damaged, Store, steps_in
from transformer.runs.integrity import digest, signed
from transformer.runs.restore import TrainedModel
from transformer.runs.run_config import Config
from transformer.system.commands import script
from transformer.system.distributed import from_first, is_first
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.system.paths import local
from transformer.system.sharding import name_of
from transformer.tasks.task import Pretrained, TrainedTask
from transformer.training.step import initial_variables

NAMED = 10  # classes listed in a log line


def with_its_model(config: Config, workdir: Path, given: Collection[str]) -> Config:
    """The config with the model and the tokenizer of training.init_from.

    given: fields set by flags, such as model.d_model, which stay. `load` refuses what does not fit;
    flags that do not fit a folder of the hub are refused here.
    A run that has begun has these fields in its own config.
    """
    origin = Path(local(config.training.init_from, "training.init_from"))
    source = workdir if (workdir / "config.json").exists() else origin
    if run_config.is_run(source):
        other = run_config.load(source)
        is_other_family = other.model.family != config.model.family
        if is_other_family and not any(name.startswith("model.") for name in given):
            config = dataclasses.replace(config, model=other.model)
    elif is_hub_folder(source):
        with _named():
            other = _pretrained(source, config).config
        _check_fits(source, _what_is_shared(other), _what_is_shared(config), given)
    else:
        return config  # nothing is there, which `load` reports
    fields, found = run_config.flat(config), _what_is_shared(other)
    changes = {
        name: value
        for name, value in found.items()
        if name in fields and name not in given and fields[name] != value
    }
    if changes:
        said = ", ".join(f"{name}={value}" for name, value in changes.items())
        print(f"initial  as in {source}: {said}")
    return run_config.with_fields(config, changes)


def is_kept(workdir: Path) -> bool:
    """True if a run has its copy."""
    return bool(steps_in(_directory(workdir)))


def load(config: Config) -> TrainedModel:
    """The model that training.init_from names; the best checkpoint of a work directory.

    It may also be a folder of Hugging Face's hub. Raises UserError if there is none, or if its
    parameters do not fit the run. Dropout, activation dtype and heads may differ.
    """
    directory = Path(local(config.training.init_from, "training.init_from"))
    with _named():
        is_of_hub = from_first(lambda: is_hub_folder(directory))
        model = of_hub(directory, config) if is_of_hub else restoring.restore(directory)
    expected = _what_is_shared(config)
    _check_fits(directory, _what_is_shared(model.config), expected, expected)
    return model


def _check_fits(
    directory: Path, found: dict[str, Any], expected: dict[str, Any], names: Collection[str]
) -> None:
    """Raises UserError unless a model in `directory` and a run have the same in these fields."""
    differ = [
        name
        for name, x in expected.items()
        if name in names and (name not in found or found[name] != x)
    ]
    if differ:
        name = differ[0]
        other = repr(found[name]) if name in found else "missing"
        flags = [f"--config.{name}={found[name]}" for name in differ if name in found]
        raise UserError(
            f"training.init_from: {name} is {other} in {directory} and {expected[name]!r} in the "
            f"run to begin; give both the same{': ' if flags else ''}{shlex.join(flags)}"
        )


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Says in errors that training.init_from is meant."""
    try:
        yield
    except UserError as error:
        hint = ""
        if "--checkpoint" in str(error):
            hint = f", of {script('evaluate')} --export, which makes a model to begin with"
        raise UserError(f"training.init_from: {error}{hint}") from error


def of_hub(folder: Path, config: Config, given: Collection[str] = ()) -> TrainedModel:
    """The model of a folder of Hugging Face's hub; all but its sizes comes from `config`.

    given: fields set by flags; raises UserError for one that does not fit.
    """
    asked = _what_is_shared(config)
    config, task, read_params = _pretrained(folder, config)
    _check_fits(folder, _what_is_shared(config), asked, given)
    chosen = restoring.Chosen("last", [0], 0, False)
    return TrainedModel(folder, config, task, chosen, read_params(), {})


def bert_or_run(workdir: str | None, restore: Callable[[], TrainedModel]) -> TrainedModel:
    """The model of a folder of the hub, which must be BERT; of others, what `restore` returns."""
    folder = Path(workdir or "").expanduser()
    if not is_hub_folder(folder):
        return restore()
    return of_hub(folder, Config.from_dict(bert_base.get_config().to_dict()))


def _pretrained(folder: Path, config: Config) -> Pretrained:
    if config.kind.pretrained is None:
        raise UserError(
            f"{folder} holds a model of Hugging Face's, and the task {config.task.name} cannot "
            "begin with one; give the work directory of a run"
        )
    return config.kind.pretrained(folder, config)


def with_heads(model: TrainedModel, task: TrainedTask, config: Config) -> TrainedModel:
    """Fits the arrays of `load` to the model of `task`, whose heads and classes may differ.

    Entries of classes are matched by class name. Entries of new classes, and heads that the model
    lacks or has in another size, are initialised as in a run without training.init_from. Prints
    which.
    """
    axes, seed = config.family.class_axes, config.training.seed

    def sizes(arrays: Any) -> dict[Any, tuple[int, ...]]:
        """The shapes by path, without the axes of classes."""
        return {
            path: tuple(np.delete(x.shape, _class_axes(path, axes)))
            for path, x in jax.tree_util.tree_leaves_with_path(arrays)
        }

    def part(path: jax.tree_util.KeyPath) -> str:
        return name_of(path).partition("/")[0]

    # 1. Parts of the model that begin with fresh values.
    given = model.params, model.extra
    old, new = sizes(given), sizes((task.model.abstract_params(), task.model.abstract_extra()))
    fresh_parts = {part(path) for path, _ in old.items() ^ new.items()} & set(map(part, new))
    if unfit := sorted(fresh_parts - set(config.family.heads)):
        raise UserError(
            f"training.init_from: {unfit[0]} of {model.workdir} has another shape than in the run "
            "to begin; give a model of the same sizes and with the same vocabulary"
        )
    if fresh_parts:
        print(f"initial  with fresh values: {', '.join(sorted(fresh_parts))}")

    # 2. Classes, unless their part is fresh.
    has_classes = [
        path for path in new if _class_axes(path, axes) and part(path) not in fresh_parts
    ]
    is_same = not has_classes or model.task.classes == task.classes
    if has_classes and (model.task.classes or task.classes):
        print(f"initial  classes {_said(model.task.classes or [], task.classes or [])}")
    if is_same and old == new:
        return model

    # 3. The arrays.
    found = dict(jax.tree_util.tree_leaves_with_path(given))
    numbers = {name: number for number, name in enumerate(model.task.classes or [])}
    pairs = [(i, numbers[name]) for i, name in enumerate(task.classes or []) if name in numbers]

    def leaf(path: jax.tree_util.KeyPath, fresh: jax.Array) -> Any:
        if part(path) in fresh_parts:
            return fresh
        if is_same or path not in has_classes:
            return found[path]
        (axis,) = _class_axes(path, axes)
        made, to = np.array(fresh), [slice(None)] * axis
        for new_number, old_number in pairs:
            made[*to, new_number] = np.asarray(found[path])[*to, old_number]
        return jnp.asarray(made)

    fresh = initial_variables(task.model, seed)
    params, extra = jax.tree_util.tree_map_with_path(leaf, fresh)
    return dataclasses.replace(model, params=params, extra=extra)


def _class_axes(path: jax.tree_util.KeyPath, axes: Sequence[tuple[str, int]]) -> list[int]:
    return [axis for pattern, axis in axes if re.fullmatch(pattern, name_of(path))]


def _said(old: Sequence[str], new: Sequence[str]) -> str:
    """Describes what becomes of a model's classes in a run with other classes."""
    before, after = dict.fromkeys(old), dict.fromkeys(new)
    kinds = {
        "taken over": [name for name in after if name in before],
        "with fresh values": [name for name in after if name not in before],
        "left out": [name for name in before if name not in after],
    }
    return "; ".join(
        f"{kind}: {', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''}"
        for kind, names in kinds.items()
        if names
    )


def keep(workdir: Path, model: TrainedModel) -> None:
    """Copies the parameters of `load` and their provenance to `workdir`."""
    past: dict[str, Any] = {}
    # A stripped model, or one not made by train.py, has no provenance.
    with contextlib.suppress(UserError, LookupError, ValueError):
        past = history.run_of(model)
    origin = {
        **past,
        "checkpoint": model.chosen.checkpoint,
        "checkpoint_steps": model.chosen.steps,
        "stopped_early": model.chosen.stopped_early,
        "params_sha256": digest(model.params),
    }
    if not history.is_known(origin):
        advice = (
            ", or is not at its end; train it to training.steps, or lower them to where it is, and "
            "begin again in another --workdir"
        )
        print(
            f"warning: results of this run cannot be recorded: {model.workdir} does not say how it "
            f"was trained{'' if is_hub_folder(model.workdir) else advice}",
            file=sys.stderr,
        )
    if is_first():
        write_atomically(workdir / provenance.ORIGIN, json.dumps(signed(origin)) + "\n")
    with contextlib.closing(Store(_directory(workdir))) as store:
        store.save_params(model.chosen.steps[-1], model.params, model.extra)


def restore(workdir: Path, params: Params, extra: dict[str, Any]) -> tuple[Params, dict[str, Any]]:
    """The copy, laid out as the given shapes; raises UserError if it is gone or damaged."""
    directory = _directory(workdir)
    if not (steps := from_first(lambda: steps_in(directory))):
        raise UserError(
            f"{directory} is gone, which held the parameters that the run began with; put it "
            "back, or start again in another --workdir"
        )
    with contextlib.closing(Store(directory)) as store:
        try:
            items, _ = store.restore(steps[-1], {"params": params, "extra": extra})
        except Damaged as error:
            raise UserError(
                f"{directory}, the parameters that the run began with, is damaged ({error}); put "
                "back a copy of it, or start again in another --workdir"
            ) from error
    return items["params"], items["extra"]


def _directory(workdir: Path) -> Path:
    return workdir.absolute() / provenance.INITIAL / CHECKPOINTS


def _what_is_shared(config: Config) -> dict[str, Any]:
    shared, fields = run_config.architecture(config), run_config.flat(config)
    del shared["model.dtype"]
    names = ["tokenizer.joint", "tokenizer.model_type", "tokenizer.vocab_size", "data.is_tokenized"]
    names.append("tokenizer.lowercase")
    if not fields.get("tokenizer.joint", True):  # its vocabularies must keep their places
        names += [f"data.{name}" for name in config.data.languages]
    return shared | {name: fields[name] for name in names if name in fields}
