"""Imports a Marian model of Hugging Face's Transformers library as a work directory of ours."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data import marian_vocabulary as vocabularies
from transformer.data.hub_files import ADVICE, HubConfig, HubWeights, check_ids
from transformer.data.marian_vocabulary import MarianTokenizer
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import BOS, PAD
from transformer.exports import marian
from transformer.models.family import build_model
from transformer.models.functional import Params, at, put
from transformer.models.transformer import TransformerConfig
from transformer.runs.restore import Chosen, TrainedModel
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.paths import cannot_read
from transformer.system.reading import read_plain
from transformer.system.sharding import data_mesh
from transformer.tasks.seq2seq import Seq2Seq, sizes_of

# Fields of config.json to ignore, besides those common to all models there.
IRRELEVANT = {
    "max_position_embeddings": "of a table that is computed",
    "extra_pos_embeddings": "of learned positions, in older files",
    "num_hidden_layers": "another name of encoder_layers",
}
# Tensors that are computed, or copies of others.
COPIES = (
    "lm_head.weight",
    "model.shared.weight",
    "model.*.embed_tokens.weight",
    "model.*.embed_positions.weight",
)
# Where BOS is a copy of their padding, our padding gets this bias instead of its own: nearly minus
# infinity to a softmax, and small enough not to show in a smoothed loss.
NEVER = -100.0


def read(folder: Path, base: Config) -> TrainedModel:
    """The model of a folder; all but its model and tokenizer sections come from `base`.

    Raises UserError if the folder holds no model, or one that ours cannot represent.
    """
    if base.model.family != "transformer":
        raise UserError(
            f"model.family is {base.model.family!r}, and Marian models are of 'transformer'; give "
            "a config such as configs/opus_mt.py"
        )
    theirs = HubConfig.read(folder / "config.json", ADVICE)
    weights = HubWeights(folder, "MarianMTModel", "exports")
    model_config = _model_config(theirs, base.model)
    tokenizers, orders = _vocabularies(theirs, folder)
    tokenizer = dataclasses.replace(
        base.tokenizer, joint=tokenizers.joint, vocab_size=tokenizers.target.vocab_size
    )
    config = dataclasses.replace(base, model=model_config, tokenizer=tokenizer)
    model = build_model(model_config, sizes_of(config, tokenizers))
    params = _params(model.abstract_params(), weights, model_config, orders)
    theirs.check(IRRELEVANT)
    weights.check(COPIES)
    task = Seq2Seq(config.data, tokenizers, model, config.decoding, data_mesh())
    return TrainedModel(folder, config, task, Chosen("last", [0], 0, False), params, {})


def _model_config(theirs: HubConfig, base: TransformerConfig) -> TransformerConfig:
    if (kind := theirs.take("model_type", str, None)) != "marian":
        raise UserError(f"{theirs.path} has model_type {kind!r}; expected 'marian'")
    activations = {"silu": "swish"} | {value: key for key, value in marian.ACTIVATIONS.items()}
    sizes = {
        name: [theirs.take(f"{side}_{name}", int) for side in ("encoder", "decoder")]
        for name in ("attention_heads", "ffn_dim", "layers")
    }
    for name in ("attention_heads", "ffn_dim"):
        if len(set(sizes[name])) > 1:
            raise UserError(
                f"{theirs.path}: encoder_{name} and decoder_{name} differ; ours are one"
            )
    if (activation := theirs.take("activation_function", str)) not in activations:
        raise UserError(
            f"{theirs.path}: activation_function is {activation!r}; ours has "
            f"{', '.join(activations)}"
        )
    if not theirs.take("static_position_embeddings", bool, True):
        raise UserError(
            f"{theirs.path}: static_position_embeddings is False; ours has sinusoids there"
        )
    shared = theirs.take("share_encoder_decoder_embeddings", bool, True)
    tied = theirs.take("tie_word_embeddings", bool, True)
    if shared and not tied:
        raise UserError(f"{theirs.path}: embeddings are shared, and the output layer is not tied")
    return dataclasses.replace(
        base,
        num_encoder_layers=sizes["layers"][0],
        num_decoder_layers=sizes["layers"][1],
        d_model=theirs.take("d_model", int),
        d_ff=sizes["ffn_dim"][0],
        num_heads=sizes["attention_heads"][0],
        d_k=0,
        d_v=0,
        attention_bias=True,
        activation=activations[activation],
        norm="post",
        normalization="layer_norm",
        norm_epsilon=marian.EPSILON,
        positions="sinusoidal",
        share_embeddings="all" if shared else "decoder" if tied else "none",
        scale_embeddings=theirs.take("scale_embedding", bool),
        output_bias=True,
    )


def _vocabularies(theirs: HubConfig, folder: Path) -> tuple[Tokenizers, list[np.ndarray]]:
    """The tokenizers, and for each side their ids in our order."""
    start, source_size = (theirs.take(x, int) for x in ("decoder_start_token_id", "vocab_size"))
    has_two = not theirs.take("share_encoder_decoder_embeddings", bool, True)
    if not 0 <= start < source_size:
        raise UserError(f"{theirs.path}: decoder_start_token_id is {start}; expected an id")
    files = ["vocab.json", "target_vocab.json" if has_two else "vocab.json"]
    if has_two and not (folder / files[1]).exists():
        files[1] = "vocab.json"  # two embedding tables, one vocabulary
    sizes = source_size, theirs.take("decoder_vocab_size", int, None) or source_size
    tokenizers, orders = [], []
    for side, file, size in zip(("source", "target"), files, sizes, strict=True):
        ids = HubConfig.read(folder / file, ADVICE).left()
        check_ids(folder / file, ids, size)
        for piece in ("<pad>", "</s>", "<unk>"):
            if piece not in ids:
                raise UserError(f"{folder / file} has no piece {piece}")
        pieces = sorted(ids, key=ids.__getitem__)
        # A source has no BOS. A separate source vocabulary uses <s> there, or its padding.
        bos = ids.get("<s>", ids["<pad>"]) if side == "source" and has_two else start
        special = [ids["<pad>"], bos, ids["</s>"], ids["<unk>"]]
        order = [*special, *(i for i in range(size) if i not in special)]
        names = [pieces[i] for i in order]
        if special.count(bos) > 1:  # it begins a target and is also used otherwise
            names[BOS] = "<s>" if "<s>" not in ids else "<s> of Marian"
        try:
            model_bytes = read_plain(folder / f"{side}.spm", None)
        except OSError as error:
            raise cannot_read(folder / f"{side}.spm", error) from error
        model_bytes = vocabularies.to_bytes(names, model_bytes)
        tokenizers.append(MarianTokenizer(model_bytes, folder / f"{side}.spm"))
        orders.append(np.array(order))
    if tokenizers[0].model_bytes == tokenizers[1].model_bytes:
        tokenizers[1] = tokenizers[0]
    return Tokenizers(*tokenizers), orders


def _params(
    abstract: Params,
    weights: HubWeights,
    config: TransformerConfig,
    orders: list[np.ndarray],
) -> Params:
    """Our parameters, float32, from their weights."""
    theirs = np.argsort(marian.our_channels(config.d_model))  # their channel for each of ours
    source_order, target_order = orders
    params: dict[str, Any] = {}
    padding_is_start = target_order[PAD] == target_order[BOS]
    for name, ours in marian.tables(config).items():
        order = source_order if ours == "source_embedding" else target_order
        table_VD = weights.take(name, (len(order), config.d_model))[:, theirs][order]
        if padding_is_start:
            table_VD[PAD] = 0
        params[ours] = {"table_VD": table_VD}
    bias_V = weights.take("final_logits_bias", (1, len(target_order)))[0][target_order]
    if padding_is_start:
        bias_V[PAD] = NEVER
    params["output_bias_V"] = bias_V
    for module in marian.modules(config):
        expected = at(abstract, module.path)
        shape = expected["kernel" if "kernel" in expected else "scale"].shape[::-1]
        kernel = weights.take(f"{module.name}.weight", shape)
        bias = weights.take(f"{module.name}.bias", shape[:1])
        bias = bias[theirs] if module.writes else bias
        if kernel.ndim == 1:
            ours = {"scale": kernel[theirs], "bias": bias}
        else:
            kernel = kernel[:, theirs] if module.reads else kernel
            ours = {"kernel": (kernel[theirs] if module.writes else kernel).T, "bias": bias}
        put(params, module.path, ours)
    return jax.tree.map(jnp.asarray, params)
