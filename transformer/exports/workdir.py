"""A trained model without its training state: one set of parameters, to keep or to give away."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jax

from transformer.exports.folder import check_is_new, new_folder
from transformer.runs import run_config
from transformer.runs.checkpoint_store import CHECKPOINTS, Store
from transformer.runs.integrity import seal, signed
from transformer.runs.provenance import ORIGIN
from transformer.runs.restore import TrainedModel
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.system.paths import check_no_pattern
from transformer.system.reading import MISSING, open_plain

HISTORY = "starts.jsonl", "metrics.jsonl", ORIGIN


def export_chosen(
    directory: Path, restore: Callable[[], TrainedModel], dtype: str = "float32"
) -> None:
    """Exports the model that `restore` returns; first checks all that can go wrong.

    dtype: the precision that parameters keep. They stay float32; what is rounded packs well.
    """
    distributed.refuse_jobs("--export")
    check_no_pattern(directory)
    check_is_new(directory, "export")
    model = restore()
    if dtype != "float32":
        rounded = jax.tree.map(lambda x: x.astype(dtype).astype(x.dtype), model.params)
        model = dataclasses.replace(model, params=rounded)
    export(model, directory)
    print(f"written  {directory}, the {model.chosen.checkpoint} of {model.workdir}")


def export(model: TrainedModel, directory: Path) -> None:
    """Writes a work directory with one set of parameters, those of `model`.

    It can be evaluated, translated with and verified like the run itself, but not trained further.
    It is written completely or not at all. Raises UserError if it cannot be written.
    """
    check_no_pattern(directory)
    content = signed(model.chosen._asdict())
    with new_folder(directory, "export") as temporary:
        run_config.save(temporary, model.config)
        write_atomically(temporary / run_config.EXPORTED, json.dumps(content) + "\n")
        model.task.save(temporary)
        seal(temporary, run_config.files_of(model.config))
        for name in HISTORY:
            # No links: they may lead to files that a stranger wants.
            with contextlib.suppress(*MISSING, UserError), contextlib.ExitStack() as files:
                source = files.enter_context(open_plain(model.workdir / name, model.workdir))
                (temporary / name).parent.mkdir(exist_ok=True)
                shutil.copyfileobj(source, files.enter_context((temporary / name).open("wb")))
        with contextlib.closing(Store(temporary.absolute() / CHECKPOINTS)) as store:
            store.save_params(model.chosen.steps[-1], model.params, model.extra)
        for path in temporary.rglob("commit_success.txt"):
            path.write_text("saved\n")  # not where: the folder may be given away
