"""A trained model, restored from its work directory and ready to translate."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from transformer import experiment
from transformer.checkpoint import Checkpoints
from transformer.errors import UserError
from transformer.experiment import Experiment
from transformer.model import Params, transformer
from transformer.sharding import data_mesh, replicated
from transformer.tokenizer import Tokenizers
from transformer.translation import Translator

CHECKPOINTS = ("last", "best", "average")


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    config: Experiment  # as in WORKDIR/config.json
    tokenizers: Tokenizers
    steps: list[int]  # of the checkpoint, or of those averaged
    params: Params
    translator: Translator

    def provenance(self) -> dict[str, Any]:
        """What produced a translation, for scores.json."""
        decoding = self.translator.config
        return {
            "checkpoint_steps": self.steps,
            "beam_size": decoding.beam_size,
            "length_penalty": {"name": "gnmt", "alpha": decoding.length_penalty},
            "max_extra_length": decoding.max_extra_length,
            "config_sha256": self.config.sha256,
            "tokenizer_sha256": [t.sha256 for t in dict.fromkeys(self.tokenizers)],
        }


def restore(workdir: Path, checkpoint: str, average_last: int, **decoding: Any) -> TrainedModel:
    """Restores the 'last' or 'best' checkpoint, or the 'average' of the last few.

    `decoding` takes the place of the config's fields of that name where it is not None.
    """
    config = experiment.load(workdir)
    given = {name: value for name, value in decoding.items() if value is not None}
    decoding_config = dataclasses.replace(config.decoding, **given)
    tokenizers = Tokenizers.load(workdir)
    model = transformer(config.model, *(tokenizer.vocab_size for tokenizer in tokenizers))

    mesh = data_mesh()
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh)),
        model.abstract_params(),
    )
    no_checkpoint = UserError(f"{workdir} has no checkpoint yet; train on, then try again")
    if not (workdir / "checkpoints").is_dir():
        raise no_checkpoint
    training = config.training
    checkpoints = Checkpoints(
        workdir, keep_last=training.keep_last, best_metric=training.best_metric, read_only=True
    )
    if not (steps := checkpoints.steps()):
        raise no_checkpoint
    if checkpoint == "average":
        steps = checkpoints.scheduled_steps()
        last = min(len(steps), training.keep_last)  # there may be an older, better one
        if average_last > last:
            raise UserError(
                f"--average_last={average_last} is more than the last {last} checkpoints of "
                f"{workdir}; lower it, or train with a larger training.keep_last"
            )
        steps = steps[-average_last:]
    else:
        steps = [steps[-1] if checkpoint == "last" else checkpoints.best_step()]
    params = checkpoints.average_params(steps, like)
    checkpoints.close()
    translator = Translator(model, tokenizers, decoding_config, mesh)
    return TrainedModel(config, tokenizers, steps, params, translator)
