"""The trained model whose parameters a new run begins with: training.init_from."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer import experiment, ledger, provenance, trained
from transformer.errors import UserError
from transformer.experiment import Experiment
from transformer.model import Params
from transformer.tokenizer import Tokenizers
from transformer.trained import TrainedModel


def load(config: Experiment, tokenizers: Tokenizers | None = None) -> TrainedModel | None:
    """The model that training.init_from names: of a work directory its best checkpoint.

    Raises UserError if it cannot be had, or is of another architecture (dropout and the type of
    activations may differ), or has not these tokenizers, if they are given.
    """
    if config.training.init_from is None:
        return None
    directory = Path(config.training.init_from).expanduser()
    try:
        model = trained.restore(directory, None, None)
    except UserError as error:
        raise UserError(f"training.init_from: {error}") from error
    found, expected = _architecture(model.config), _architecture(config)
    for name, value in expected.items():
        if found[name] != value:
            raise UserError(
                f"training.init_from: {name} is {found[name]!r} in {directory} and {value!r} in "
                "the run to begin; give both the same"
            )
    if tokenizers and model.tokenizers.sha256 != tokenizers.sha256:
        raise UserError(
            f"training.init_from: {directory} has another tokenizer than this run, which began "
            "with what was there before; put that back, or begin in another --workdir"
        )
    return model


def laid_out(params: Params, like: Params) -> Params:
    """Parameters that each process has whole, as new arrays laid out as the shapes of `like`."""

    def lay_out(array: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
        value = np.asarray(array)
        return jax.make_array_from_callback(value.shape, like.sharding, lambda part: value[part])

    return jax.tree.map(lay_out, params, like)


def origin(model: TrainedModel) -> dict[str, Any]:
    """What WORKDIR/starts.jsonl says of it: which parameters of which run they are."""
    known = ledger.run_of(model) if provenance.starts(model.workdir) else {}
    return {**known, "checkpoint": model.checkpoint, "checkpoint_steps": model.steps}


def _architecture(config: Experiment) -> dict[str, Any]:
    fields = experiment.architecture(config)
    del fields["model.dtype"]
    return fields | {"tokenizer.joint": config.tokenizer.joint}
