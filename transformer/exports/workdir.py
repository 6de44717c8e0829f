"""A trained model without its training state: one set of parameters, to keep or to give away."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from transformer.runs import run_config
from transformer.runs.checkpoint_store import CHECKPOINTS, Store
from transformer.runs.integrity import seal, signed
from transformer.runs.provenance import ORIGIN
from transformer.runs.restore import TrainedModel
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.files import (
    folder_allows,
    leftovers_of,
    remove_leftovers,
    temporary_beside,
    write_atomically,
)
from transformer.system.paths import check_no_pattern
from transformer.system.reading import MISSING, open_plain

HISTORY = "starts.jsonl", "metrics.jsonl", ORIGIN


def check_can_be_written(directory: Path) -> None:
    """Raises UserError unless `directory` is new and its parent can be written to."""
    check_no_pattern(directory)
    if os.path.lexists(directory):
        raise UserError(f"--export={directory} is there already; name a new folder")
    if not folder_allows(directory):
        raise UserError(f"--export={directory} cannot be made; name a folder in another place")


def export_chosen(directory: Path, restore: Callable[[], TrainedModel]) -> None:
    """Exports the model that `restore` returns; first checks all that can go wrong."""
    if distributed.job() is not None:
        raise UserError("--export works in one process; start it once, without srun or mpirun")
    check_can_be_written(directory)
    model = restore()
    export(model, directory)
    print(f"written  {directory}, the {model.checkpoint} of {model.workdir}")


def export(model: TrainedModel, directory: Path) -> None:
    """Writes a work directory with one set of parameters, those of `model`.

    It can be evaluated, translated with and verified like the run itself, but not trained further.
    It is written completely or not at all. Raises UserError if it cannot be written.
    """
    check_can_be_written(directory)
    temporary = temporary_beside(directory.with_name(f".{directory.name}"), "export")
    remove_leftovers(leftovers_of(directory.with_name(f".{directory.name}")))
    content = {
        "checkpoint": model.checkpoint,
        "steps": model.steps,
        "last_step": model.last_step,
        "stopped_early": model.stopped_early,
    }
    try:
        run_config.save(temporary, model.config)
        write_atomically(temporary / run_config.EXPORTED, json.dumps(signed(content)) + "\n")
        model.task.save(temporary)
        seal(temporary, run_config.files_of(model.config))
        for name in HISTORY:
            # No links: they may lead to files that a stranger wants.
            with contextlib.suppress(*MISSING, UserError), contextlib.ExitStack() as files:
                source = files.enter_context(open_plain(model.workdir / name, model.workdir))
                (temporary / name).parent.mkdir(exist_ok=True)
                shutil.copyfileobj(source, files.enter_context((temporary / name).open("wb")))
        with contextlib.closing(Store(temporary.absolute() / CHECKPOINTS)) as store:
            store.save_params(model.steps[-1], model.params, model.extra)
        temporary.rename(directory)
    except OSError as error:
        raise UserError(
            f"cannot write {directory}: {error.strerror}; make room for it, or name another place"
        ) from error
    except UserError as error:  # it names the temporary folder, which the user does not know
        raise UserError(str(error).replace(str(temporary), str(directory))) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
