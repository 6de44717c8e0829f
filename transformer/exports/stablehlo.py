"""Searches as pure JAX programs (`jax.export`, StableHLO), with the parameters beside them.

docs/exporting.md has the ten lines that run them. They need none of our code.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from transformer.data.vocabulary import BOS, EOS, PAD
from transformer.decoding.config import DecodingConfig
from transformer.decoding.inputs import SearchInputs
from transformer.decoding.translation import Translator
from transformer.exports.options import check_known
from transformer.models.family import build_model
from transformer.runs.restore import TrainedModel
from transformer.system.files import write_json
from transformer.system.packages import optional_module
from transformer.tasks.pair_training import sizes_of

PLATFORMS = ("cpu", "cuda", "tpu")
# Fields that a program of a search follows; of the model it follows all.
KNOWN = (
    *("decoding.length_penalty_form", "decoding.coverage_penalty", "decoding.no_repeat_ngram"),
    *("decoding.repetition_penalty", "decoding.min_length", "decoding.min_length_ratio"),
    *("decoding.max_length", "decoding.max_length_ratio"),
    *("decoding.beam_groups", "decoding.diversity"),
)


def default_widths(model: TrainedModel) -> list[int]:
    """Source lengths for sentences; for documents, the length to which the task cuts them."""
    longest = model.task.translator.source_cut or 64
    return [-(-longest // part) for part in (4, 2, 1)]


def write(model: TrainedModel, folder: Path, widths: Sequence[int]) -> None:
    """Writes greedy-<width>.bin and beam-<width>.bin, parameters.npz, about.json, the tokenizer.

    A program takes the parameters, by name, and source tokens [B, width], int32: each row ends in
    EOS and then PAD. It returns the best output's tokens [B, L], which end in EOS and then PAD, and
    its score [B]. B is any number. The decoding section sets the lengths of outputs.
    """
    optional_module("flatbuffers", "exports")  # jax.export needs it
    tokenizers, mesh = model.task.tokenizers, model.task.translator.mesh
    own = model.task.translator.config
    of_model = [f"model.{field.name}" for field in dataclasses.fields(model.config.model)]
    check_known(model, "a program of JAX", of_model, KNOWN)
    leaves, structure = jax.tree.flatten_with_path((model.params, model.extra))
    arrays = {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(x) for path, x in leaves
    }
    names = list(arrays)
    functional = build_model(model.config.model, sizes_of(model.config, tokenizers))

    def translate(arrays, src_BS, *, translator):
        decoding = translator.config
        variables = jax.tree.unflatten(structure, [arrays[name] for name in names])
        inputs = lengths_of_outputs(decoding, src_BS)
        if language := tokenizers.target.beginning:
            shape = src_BS.shape[0], len(language)
            inputs = inputs._replace(prefix_BP=jnp.broadcast_to(jnp.array([language]), shape))
        beam_size = translator.config.beam_size
        found = translator.find(variables, src_BS, inputs, beam_size=beam_size, nbest=1)
        return found.tokens_BML[:, 0], found.scores_BM[:, 0]

    (batch,) = export.symbolic_shape("batch")
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
    one = dataclasses.replace(own, beam_size=1, beam_groups=1, diversity=0.0)
    greedy, beam = (Translator(functional, tokenizers, x, mesh) for x in (one, own))
    for name, search in {"greedy": greedy, "beam": beam}.items():
        for width in widths:
            jitted = jax.jit(functools.partial(translate, translator=search))
            src_BS = jax.ShapeDtypeStruct((batch, width), jnp.int32)
            program = export.export(jitted, platforms=PLATFORMS)(abstract, src_BS)
            (folder / f"{name}-{width}.bin").write_bytes(program.serialize())
    np.savez(folder / "parameters.npz", **arrays)
    about = {
        "beam_size": own.beam_size,
        "widths": list(widths),
        "pad": PAD,
        "bos": BOS,
        "eos": EOS,
        "jax": jax.__version__,
    }
    if language := tokenizers.source.beginning:
        about["source_begins_with"] = language
    write_json(folder / "about.json", about)
    tokenizers.save(folder)


def lengths_of_outputs(config: DecodingConfig, src_BS: jax.Array) -> SearchInputs:
    """The decoding section's output lengths, for sources that end in EOS and then PAD.

    They are looked up in tables of all lengths: a device would compute the ratios in binary
    fractions.
    """
    length_B = jnp.sum(src_BS != PAD, axis=1) - 1
    tables = [list(map(of, range(src_BS.shape[1]))) for of in (config.longest, config.shortest)]
    return SearchInputs(*(jnp.array(table_S, jnp.int32)[length_B] for table_S in tables))
