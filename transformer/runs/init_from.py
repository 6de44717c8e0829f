"""What a run begins with if that is another's parameters: training.init_from.

They are copied to WORKDIR/initial. So the run can begin again, after a kill or a divergence,
whatever has become of the other one.
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax

from transformer.models.family import find_family
from transformer.models.functional import Params
from transformer.runs import history, hub, provenance, run_config
from transformer.runs import restore as restoring
from transformer.runs.checkpoint_store import CHECKPOINTS, Damaged, Store, steps_in
from transformer.runs.integrity import digest, signed
from transformer.runs.restore import TrainedModel
from transformer.runs.run_config import Config
from transformer.system.distributed import from_first, is_first
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.tasks.task import TrainedTask
from transformer.training.step import initial_params


def with_its_model(config: Config, workdir: Path, given: Collection[str]) -> Config:
    """The config with the model and the tokenizer of training.init_from.

    given: fields that are set by flags, such as model.d_model, and stay. `load` refuses what does
    not fit. A run that has begun has them in its own config.
    """
    origin = Path(config.training.init_from).expanduser()
    source = workdir if (workdir / "config.json").exists() else origin
    if not run_config.is_run(source):
        return config  # a folder of the hub; or nothing, as `load` will say
    other = run_config.load(source)
    is_other_family = other.model.family != config.model.family
    if is_other_family and not any(name.startswith("model.") for name in given):
        config = dataclasses.replace(config, model=other.model)
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
    """Whether a run has its copy."""
    return bool(steps_in(_directory(workdir)))


def load(config: Config) -> TrainedModel:
    """The model that training.init_from names; of a work directory its best checkpoint.

    It may also be a folder of Hugging Face's hub. Raises UserError if there is none, or if its
    parameters do not fit the run. Dropout, the type of activations and heads may differ.
    """
    directory = Path(config.training.init_from).expanduser()
    try:
        is_hub_folder = from_first(lambda: hub.is_hub_folder(directory))
        model = hub.read(directory, config) if is_hub_folder else restoring.restore(directory)
    except UserError as error:
        hint = ""
        if "--checkpoint" in str(error):
            hint = ", of evaluate.py --export, which makes a model to begin with"
        raise UserError(f"training.init_from: {error}{hint}") from error
    found, expected = _what_is_shared(model.config), _what_is_shared(config)
    differ = [name for name, x in expected.items() if name not in found or found[name] != x]
    if differ:
        name = differ[0]
        other = repr(found[name]) if name in found else "missing"
        flags = [f"--config.{name}={found[name]}" for name in differ if name in found]
        raise UserError(
            f"training.init_from: {name} is {other} in {directory} and {expected[name]!r} in the "
            f"run to begin; give both the same{': ' if flags else ''}{' '.join(flags)}"
        )
    return model


def with_heads(model: TrainedModel, task: TrainedTask, config: Config) -> TrainedModel:
    """The parameters of `load` for the model of `task`, whose heads they need not have.

    Heads that they lack, or have in another size, begin as in a run without training.init_from.
    """
    given, shapes = model.params, task.model.abstract_params()
    if _shapes(given) == _shapes(shapes):
        return model
    family = find_family(config.model.family)
    fresh = initial_params(task.model, config.training.seed)
    params = {}
    for name in shapes:
        fits = name in given and _shapes(given[name]) == _shapes(shapes[name])
        if not fits and name not in family.heads:
            raise UserError(
                f"training.init_from: {name} of {model.workdir} has another shape than in the run "
                "to begin; give a model of the same sizes and with the same vocabulary"
            )
        params[name] = given[name] if fits else fresh[name]
    return dataclasses.replace(model, params=params)


def _shapes(params: Params) -> Any:
    return jax.tree.map(lambda x: tuple(x.shape), params)


def keep(workdir: Path, model: TrainedModel) -> None:
    """Copies the parameters of `load` to `workdir`, and what is known of them."""
    past: dict[str, Any] = {}
    # Nothing is known of a model that was stripped of it, or that train.py has not made.
    with contextlib.suppress(UserError, LookupError, ValueError):
        past = history.run_of(model)
    origin = {
        **past,
        "checkpoint": model.checkpoint,
        "checkpoint_steps": model.steps,
        "stopped_early": model.stopped_early,
        "params_sha256": digest(model.params),
    }
    if not history.is_known(origin):
        print(
            f"warning: results of this run cannot be recorded: {model.workdir} does not say how it "
            "was begun, or is not at its end; train it to training.steps, or lower them to where "
            "it is, and begin anew in another --workdir",
            file=sys.stderr,
        )
    if is_first():
        write_atomically(workdir / provenance.ORIGIN, json.dumps(signed(origin)) + "\n")
    with contextlib.closing(Store(_directory(workdir))) as store:
        store.save_params(model.steps[-1], model.params, model.extra)


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
        names += ["data.source_language", "data.target_language"]
    return shared | {name: fields[name] for name in names if name in fields}
