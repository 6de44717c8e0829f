"""What a run begins with if that is another's parameters: training.init_from.

They are copied to WORKDIR/initial, so that the run can be begun again, after a kill or a
divergence, whatever has become of the other one.
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from transformer.models.functional import Params
from transformer.reports import ledger
from transformer.runs import experiment, provenance, restore
from transformer.runs.checkpoints import DISK_TROUBLE, Checkpoints, reason_of, saved_steps
from transformer.runs.experiment import Experiment
from transformer.runs.integrity import digest, signed
from transformer.runs.restore import TrainedModel
from transformer.system.distributed import from_first, is_first
from transformer.system.errors import UserError
from transformer.system.files import write_atomically


def is_kept(workdir: Path) -> bool:
    """Whether a run has its copy."""
    return bool(saved_steps(workdir / provenance.INITIAL))


def load(config: Experiment) -> TrainedModel:
    """The model that training.init_from names: of a work directory its best checkpoint.

    Raises UserError if it cannot be had, or is not one that the run could be. Dropout and the type
    of activations may differ.
    """
    directory = Path(config.training.init_from).expanduser()
    try:
        model = restore.restore(directory, None, None)
    except UserError as error:
        hint = ""
        if "--checkpoint" in str(error):
            hint = ", of evaluate.py --export, which makes a model to begin with"
        raise UserError(f"training.init_from: {error}{hint}") from error
    found, expected = _what_is_shared(model.config), _what_is_shared(config)
    for name, value in expected.items():
        if found[name] != value:
            raise UserError(
                f"training.init_from: {name} is {found[name]!r} in {directory} and {value!r} in "
                "the run to begin; give both the same"
            )
    return model


def keep(workdir: Path, model: TrainedModel) -> None:
    """Copies the parameters of `load` to `workdir`, and what is known of them."""
    directory = workdir / provenance.INITIAL
    history: dict[str, Any] = {}
    # Of a model that was stripped of it, or is not of train.py, there is none.
    with contextlib.suppress(UserError, LookupError, ValueError):
        history = ledger.run_of(model)
    origin = {
        **history,
        "checkpoint": model.checkpoint,
        "checkpoint_steps": model.steps,
        "stopped_early": model.stopped_early,
        "params_sha256": digest(model.params),
    }
    if not ledger.is_known(origin):
        print(
            f"warning: results of this run cannot be recorded: {model.workdir} does not say how it "
            "was begun, or is not at its end; train it to training.steps, or lower them to where "
            "it is, and begin anew in another --workdir",
            file=sys.stderr,
        )
    try:
        if is_first():
            content = json.dumps(signed(origin)) + "\n"
            write_atomically(workdir / provenance.ORIGIN, content)
        checkpoints = Checkpoints(directory, keep_last=1, best_metric="nll")
        with contextlib.closing(checkpoints):
            checkpoints.save_params(model.steps[-1], model.params)
    except DISK_TROUBLE as error:
        raise UserError(f"cannot write {directory}: {reason_of(error)}; make room there") from error


def params(workdir: Path, like: Params) -> Params:
    """The copy, laid out as the shapes of `like`; raises UserError if it is gone or damaged."""
    directory = workdir / provenance.INITIAL
    if not (steps := from_first(lambda: saved_steps(directory))):
        raise UserError(
            f"{directory} is gone, with what the run began with; put it back, or start again in "
            "another --workdir"
        )
    checkpoints = Checkpoints(directory, keep_last=1, best_metric="nll", read_only=True)
    with contextlib.closing(checkpoints):
        try:
            return checkpoints.restore_params(steps[-1], like)
        except UserError as error:
            raise UserError(
                f"{directory}, with what the run began with, is damaged; put back a copy of it, or "
                "start again in another --workdir"
            ) from error


def _what_is_shared(config: Experiment) -> dict[str, Any]:
    architecture, fields = experiment.architecture(config), experiment.flat(config.to_dict())
    del architecture["model.dtype"]
    names = ["tokenizer.joint", "tokenizer.model_type", "tokenizer.vocab_size", "data.is_tokenized"]
    if not config.tokenizer.joint:  # its vocabularies are not to change places
        names += ["data.source_language", "data.target_language"]
    return architecture | {name: fields[name] for name in names}
