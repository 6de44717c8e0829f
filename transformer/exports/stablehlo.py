"""Searches as programs of JAX alone (`jax.export`, StableHLO), with the parameters beside them.

docs/exporting.md has the ten lines that run them. They need none of our code.
"""

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from transformer.data.vocabulary import BOS, EOS, PAD
from transformer.decoding.inputs import SearchInputs
from transformer.decoding.translation import Translator
from transformer.exports.folder import optional_module
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError

PLATFORMS = ("cpu", "cuda", "tpu")


def default_widths(model: TrainedModel) -> list[int]:
    """Of sentences; or of documents, which a task cuts to a number of tokens."""
    longest = model.task.translator.source_cut or 64
    return [-(-longest // part) for part in (4, 2, 1)]


def write(model: TrainedModel, folder: Path, widths: Sequence[int]) -> None:
    """Writes greedy-<width>.bin and beam-<width>.bin, parameters.npz, about.json, the tokenizer.

    A program takes the parameters, by name, and source tokens [B, width], int32: each row with EOS
    and then PAD. It returns the best output's tokens [B, L], with EOS and then PAD, and its score
    [B]. B is any number. The lengths of outputs are those of the decoding section.
    """
    optional_module("flatbuffers")  # which jax.export needs
    translator = model.task.translator
    decoding = translator.config
    if decoding.temperature:
        raise UserError("decoding.temperature asks for samples; export a search instead")
    leaves, structure = jax.tree.flatten_with_path((model.params, model.extra))
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    arrays = {name: np.asarray(x) for name, (_, x) in zip(names, leaves, strict=True)}

    def translate(arrays, src_BS, *, translator):
        variables = jax.tree.unflatten(structure, [arrays[name] for name in names])
        length_B = jnp.sum(src_BS != PAD, axis=1) - 1
        inputs = SearchInputs(decoding.longest_of(length_B), decoding.shortest_of(length_B))
        beam_size = translator.config.beam_size
        found = translator.find(variables, src_BS, inputs, beam_size=beam_size, nbest=1)
        return found.tokens_BML[:, 0], found.scores_BM[:, 0]

    (batch,) = export.symbolic_shape("batch")
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
    one = dataclasses.replace(decoding, beam_size=1, beam_groups=1, diversity=0.0)
    greedy = Translator(model.task.model, model.task.tokenizers, one, translator.mesh)
    for name, search in {"greedy": greedy, "beam": translator}.items():
        for width in widths:
            jitted = jax.jit(functools.partial(translate, translator=search))
            src_BS = jax.ShapeDtypeStruct((batch, width), jnp.int32)
            program = export.export(jitted, platforms=PLATFORMS)(abstract, src_BS)
            (folder / f"{name}-{width}.bin").write_bytes(program.serialize())
    np.savez(folder / "parameters.npz", **arrays)
    about = {
        "beam_size": decoding.beam_size,
        "widths": list(widths),
        "pad": PAD,
        "bos": BOS,
        "eos": EOS,
        "jax": jax.__version__,
    }
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")
    model.task.tokenizers.save(folder)
