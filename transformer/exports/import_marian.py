"""A Marian model of Hugging Face's Transformers library as a work directory of ours.

    python -m transformer.exports.import_marian --folder=opus-mt-en-de --output=models/opus-en-de

The folder is as downloaded from the hub: config.json, model.safetensors, source.spm, target.spm and
vocab.json. The config file (configs/opus_mt.py) gives what the folder does not: data, training and
search. docs/exporting.md has more.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import config_flags

from transformer.data import marian_vocabulary as vocabularies
from transformer.data.marian_vocabulary import MarianTokenizer
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import BOS, PAD
from transformer.exports import marian
from transformer.exports.folder import check_is_new, optional_module
from transformer.exports.workdir import export
from transformer.models.family import build_model
from transformer.models.functional import Params
from transformer.models.transformer import TransformerConfig
from transformer.runs import cli
from transformer.runs.provenance import ROOT
from transformer.runs.restore import TrainedModel
from transformer.runs.run_config import Config
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh
from transformer.tasks.seq2seq import Seq2Seq, sizes_of

# Where BOS is a copy of their padding, our padding gets this bias in place of its own: nearly
# minus infinity to a softmax, and small enough not to show in a smoothed loss.
NEVER = -100.0


def main() -> None:
    if distributed.job() is not None:
        raise UserError("a model is imported in one process; start it without srun or mpirun")
    for flag in (FOLDER, OUTPUT):
        if not flag.value:
            raise UserError(f"--{flag.name} is missing; see the head of {Path(__file__).name}")
    output = Path(os.path.normpath(os.path.expanduser(OUTPUT.value)))
    check_is_new(output)
    base = Config.from_dict(cli.config_of(CONFIG))
    model = read(Path(FOLDER.value).expanduser(), base)
    export(model, output)
    config = model.config
    print(f"written  {output}, with tokenizer.vocab_size={config.tokenizer.vocab_size}")


def read(folder: Path, base: Config) -> TrainedModel:
    """The model of a folder; all but its model and tokenizer sections is that of `base`.

    Raises UserError if the folder holds none, or one that ours cannot be.
    """
    safetensors = optional_module("safetensors.numpy")
    theirs = _read_json(folder / "config.json")
    if not (folder / "model.safetensors").exists():
        hint = ""
        if (folder / "pytorch_model.bin").exists():
            hint = (
                "; pytorch_model.bin can run code when it is read, so it is not: convert it with "
                "MarianMTModel.from_pretrained(folder).save_pretrained(folder), or take the "
                "folder's revision with safetensors from the hub"
            )
        raise UserError(f"{folder} has no model.safetensors{hint}")
    model_config = _model_config(theirs, base.model, folder)
    tokenizers, orders = _vocabularies(theirs, folder)
    tokenizer = dataclasses.replace(
        base.tokenizer, joint=tokenizers.joint, vocab_size=tokenizers.target.vocab_size
    )
    config = dataclasses.replace(base, model=model_config, tokenizer=tokenizer)
    try:
        weights = safetensors.load_file(folder / "model.safetensors")
    except Exception as error:  # of safetensors, which has no public name
        raise UserError(f"{folder}/model.safetensors cannot be read ({error})") from error

    model = build_model(model_config, sizes_of(config, tokenizers))
    params = _params(model.abstract_params(), weights, model_config, orders, folder)
    task = Seq2Seq(config.data, tokenizers, model, config.decoding, data_mesh())
    return TrainedModel(folder, config, task, [0], "last", 0, False, params, {})


def _model_config(
    theirs: Mapping[str, Any], base: TransformerConfig, folder: Path
) -> TransformerConfig:
    path = folder / "config.json"
    if theirs.get("model_type") != "marian":
        raise UserError(f"{path} has model_type {theirs.get('model_type')!r}; expected 'marian'")
    activations = {"silu": "swish"} | {value: key for key, value in marian.ACTIVATIONS.items()}
    try:
        for name in ("attention_heads", "ffn_dim"):
            if theirs[f"encoder_{name}"] != theirs[f"decoder_{name}"]:
                raise UserError(f"{path}: encoder_{name} and decoder_{name} differ; ours are one")
        activation = theirs["activation_function"]
        if activation not in activations:
            raise UserError(
                f"{path}: activation_function is {activation!r}; ours has {', '.join(activations)}"
            )
        shared = theirs.get("share_encoder_decoder_embeddings", True)
        tied = theirs.get("tie_word_embeddings", True)
        if shared and not tied:
            raise UserError(f"{path}: embeddings are shared, and the output layer is not tied")
        return dataclasses.replace(
            base,
            num_encoder_layers=theirs["encoder_layers"],
            num_decoder_layers=theirs["decoder_layers"],
            d_model=theirs["d_model"],
            d_ff=theirs["encoder_ffn_dim"],
            num_heads=theirs["encoder_attention_heads"],
            d_k=0,
            d_v=0,
            attention_bias=True,
            activation=activations[activation],
            norm="post",
            normalization="layer_norm",
            norm_epsilon=marian.EPSILON,
            positions="sinusoidal",
            share_embeddings="all" if shared else "decoder" if tied else "none",
            scale_embeddings=theirs["scale_embedding"],
            output_bias=True,
        )
    except KeyError as error:
        raise UserError(f"{path} lacks {error}; take the file from the hub again") from error


def _vocabularies(theirs: Mapping[str, Any], folder: Path) -> tuple[Tokenizers, list[np.ndarray]]:
    """The tokenizers, and for each side their ids in the order of ours."""
    start = theirs.get("decoder_start_token_id")
    has_two = not theirs.get("share_encoder_decoder_embeddings", True)
    if not isinstance(start, int) or not 0 <= start < theirs.get("vocab_size", 0):
        raise UserError(
            f"{folder}/config.json: decoder_start_token_id is {start!r}; expected an id"
        )
    files = ["vocab.json", "target_vocab.json" if has_two else "vocab.json"]
    if has_two and not (folder / files[1]).exists():
        files[1] = "vocab.json"  # two tables of embeddings, one vocabulary
    sizes = theirs.get("vocab_size"), theirs.get("decoder_vocab_size") or theirs.get("vocab_size")
    tokenizers, orders = [], []
    for side, file, size in zip(("source", "target"), files, sizes, strict=True):
        ids = _read_json(folder / file)
        if sorted(ids.values()) != list(range(len(ids))) or len(ids) != size:
            raise UserError(f"{folder / file} holds {len(ids)} pieces; expected ids below {size}")
        for piece in ("<pad>", "</s>", "<unk>"):
            if piece not in ids:
                raise UserError(f"{folder / file} has no piece {piece}")
        pieces = sorted(ids, key=ids.__getitem__)
        # A source has no start. A vocabulary of its own fills the place with <s>, or its padding.
        bos = ids.get("<s>", ids["<pad>"]) if side == "source" and has_two else start
        special = [ids["<pad>"], bos, ids["</s>"], ids["<unk>"]]
        order = [*special, *(i for i in range(size) if i not in special)]
        names = [pieces[i] for i in order]
        if special.count(bos) > 1:  # it begins a target and has another use, too
            names[BOS] = "<s>" if "<s>" not in ids else "<s> of Marian"
        try:
            model_bytes = (folder / f"{side}.spm").read_bytes()
        except OSError as error:
            raise UserError(f"cannot read {folder}/{side}.spm: {error.strerror}") from error
        model_bytes = vocabularies.to_bytes(names, model_bytes)
        tokenizers.append(MarianTokenizer(model_bytes, folder / f"{side}.spm"))
        orders.append(np.array(order))
    if tokenizers[0].model_bytes == tokenizers[1].model_bytes:
        tokenizers[1] = tokenizers[0]
    return Tokenizers(*tokenizers), orders


def _params(
    abstract: Params,
    weights: dict[str, np.ndarray],
    config: TransformerConfig,
    orders: list[np.ndarray],
    folder: Path,
) -> Params:
    """Our parameters, float32, from their weights."""
    theirs = np.argsort(marian.our_channels(config.d_model))  # for each of our channels
    source_order, target_order = orders

    def weight(name: str) -> np.ndarray:
        if name not in weights:
            raise UserError(f"{folder}/model.safetensors lacks {name}; take it from the hub again")
        return weights[name].astype(np.float32)

    params: dict[str, Any] = {}
    padding_is_start = target_order[PAD] == target_order[BOS]
    for name, ours in marian.tables(config).items():
        order = source_order if ours == "source_embedding" else target_order
        table_VD = weight(name)[:, theirs][order]
        if padding_is_start:
            table_VD[PAD] = 0
        params[ours] = {"table_VD": table_VD}
    bias_V = weight("final_logits_bias")[0][target_order]
    if padding_is_start:
        bias_V[PAD] = NEVER
    params["output_bias_V"] = bias_V
    for module in marian.modules(config):
        kernel, bias = weight(f"{module.name}.weight"), weight(f"{module.name}.bias")
        bias = bias[theirs] if module.writes else bias
        if kernel.ndim == 1:
            ours = {"scale": kernel[theirs], "bias": bias}
        else:
            kernel = kernel[:, theirs] if module.reads else kernel
            ours = {"kernel": (kernel[theirs] if module.writes else kernel).T, "bias": bias}
        place = params
        for key in module.path[:-1]:
            place = place.setdefault(key, {})
        place[module.path[-1]] = ours
    found, expected = (jax.tree.map(lambda x: x.shape, tree) for tree in (params, abstract))
    if found != expected:
        raise UserError(f"{folder}/model.safetensors does not fit its config.json")
    return jax.tree.map(jnp.asarray, params)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no JSON object")
        return content
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; give a folder as the hub has it"
        ) from error
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); take it from the hub again") from error


if __name__ == "__main__":
    CONFIG = config_flags.DEFINE_config_file(
        "config", None, "The config file (default: configs/opus_mt.py)."
    )
    FOLDER = flags.DEFINE_string("folder", None, "The folder of the Marian model.")
    OUTPUT = flags.DEFINE_string("output", None, "The work directory to make.")
    cli.run(main, default_config=ROOT / "configs" / "opus_mt.py")
