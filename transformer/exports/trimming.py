"""Cuts the vocabulary of an M2M100 or NLLB model to the languages and the pieces of a text."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.m2m_vocabulary import M2MTokenizer
from transformer.data.text_files import read_lines
from transformer.data.tokenizers import Tokenizers
from transformer.models.family import build_model
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh, name_of
from transformer.tasks.pair_training import sizes_of

# The ends of the names of parameters with one row for each piece.
OF_PIECES = "table_VD", "output_bias_V"


def trimmed(model: TrainedModel, languages: Sequence[str], files: Sequence[str]) -> TrainedModel:
    """The model without the pieces that the files do not need; see M2MTokenizer.trimmed.

    Raises UserError for another vocabulary, a language that it lacks, and unreadable files.
    """
    tokenizer = model.task.tokenizers.source.for_language("")
    if not isinstance(tokenizer, M2MTokenizer):
        raise UserError(
            "--languages and --text are for models with the vocabulary of M2M100 or NLLB"
        )
    codes = {tokenizer.for_language(code, "--languages").language for code in languages}
    for field, code in model.config.data.languages.items():
        if tokenizer.for_language(code, f"data.{field}").language not in codes:
            raise UserError(
                f"--languages has no {code}, which data.{field} names; add it, or give "
                f"--config.data.{field}"
            )
    lines = itertools.chain.from_iterable(map(read_lines, files))
    tokenizer, kept = tokenizer.trimmed(codes, lines)
    tokenizers = Tokenizers(tokenizer, tokenizer)
    section = dataclasses.replace(model.config.tokenizer, vocab_size=tokenizer.vocab_size)
    config = dataclasses.replace(model.config, tokenizer=section)
    network = build_model(config.model, sizes_of(config, tokenizers))
    task = type(model.task)(config.data, tokenizers, network, config.decoding, data_mesh())

    def part(path: jax.tree_util.KeyPath, x: Any) -> Any:
        return jnp.asarray(np.asarray(x)[kept]) if name_of(path).endswith(OF_PIECES) else x

    params = jax.tree_util.tree_map_with_path(part, model.params)
    return dataclasses.replace(model, config=config, task=task, params=params)


def table(full: TrainedModel, small: TrainedModel) -> str:
    """The sizes of a model before and after, for people to read."""
    rows = ["vocabulary      pieces     parameters  MB (float32)"]
    for name, model in {"before": full, "after": small}.items():
        pieces = model.task.tokenizers.target.vocab_size
        count = sum(x.size for x in jax.tree.leaves(model.params))
        rows.append(f"{name:10} {pieces:11,} {count:14,} {4e-6 * count:13,.1f}")
    return "\n".join(rows)
