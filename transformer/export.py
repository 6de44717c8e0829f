"""A trained model without its training: one set of parameters, to keep or to give away."""

import os
import shutil
from pathlib import Path

from transformer import experiment
from transformer.checkpoint import Checkpoints
from transformer.errors import UserError
from transformer.files import folder_allows
from transformer.trained import TrainedModel

HISTORY = "starts.jsonl", "metrics.jsonl"


def check_can_be_written(directory: Path) -> None:
    """Raises UserError unless `directory` is new, in a folder that can be written to."""
    if directory.exists() or not folder_allows(directory):
        raise UserError(f"--export={directory} cannot be made, or is there; name a new folder")


def export(model: TrainedModel, directory: Path) -> None:
    """Writes a work directory that holds the parameters of `model`, and no others.

    It can be evaluated, translated with and verified as the run itself; it cannot be trained on.
    It is whole, or it is not there.
    """
    check_can_be_written(directory)
    temporary = directory.with_name(f"{directory.name}.{os.getpid()}.tmp")
    step, training = model.steps[-1], model.config.training
    try:
        experiment.save(temporary, model.config)
        model.tokenizers.save(temporary)
        for name in HISTORY:
            if (model.workdir / name).exists():
                shutil.copyfile(model.workdir / name, temporary / name)
        checkpoints = Checkpoints(temporary, keep_last=1, best_metric=training.best_metric)
        checkpoints.save_params(
            step,
            model.params,
            exported_as={
                "checkpoint": model.checkpoint,
                "steps": model.steps,
                "last_step": model.last_step,
                "stopped_early": model.stopped_early,
            },
        )
        checkpoints.close()
        temporary.rename(directory)
    except OSError as error:
        raise UserError(f"--export={directory} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
