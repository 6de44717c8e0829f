"""A Marian or M2M100 model (NLLB-200 is one) in the format of Hugging Face's hub.

It is a folder with config.json, the weights in safetensors, and the files of its tokenizer. A run
can begin with it (training.init_from).
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.data import m2m_vocabulary, marian_vocabulary
from transformer.data.hub_files import ADVICE, HubConfig, HubWeights, check_ids
from transformer.data.marian_vocabulary import MarianTokenizer
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import BOS, EOS, PAD
from transformer.models.family import build_model
from transformer.models.functional import Params, at, put
from transformer.models.marian_weights import (
    ACTIVATIONS,
    COPIES,
    EPSILON,
    is_m2m100,
    modules,
    our_channels,
    tables,
)
from transformer.models.transformer import TransformerConfig
from transformer.system.errors import UserError
from transformer.system.paths import cannot_read
from transformer.system.reading import read_plain
from transformer.system.sharding import data_mesh
from transformer.tasks.pair_training import sizes_of
from transformer.tasks.task import Pretrained, check_hub_family, with_architecture

# The library's classes, by the model_type of config.json.
CLASSES = {"marian": "MarianMTModel", "m2m_100": "M2M100ForConditionalGeneration"}
# Fields of config.json to ignore, besides those common to all models there.
IRRELEVANT = {
    "max_position_embeddings": "of a table that is computed",
    "extra_pos_embeddings": "of learned positions, in older files",
    "num_hidden_layers": "another name of encoder_layers",
}
# Where BOS is a copy of Marian's padding, our padding gets this bias instead of its own: nearly
# minus infinity to a softmax, and small enough not to show in a smoothed loss.
NEVER = -100.0


def read(folder: Path, base: Any, kind: Callable[..., Any]) -> Pretrained:
    """The model of a folder; all but its sizes and vocabulary comes from `base`, a Config.

    kind: the class of the task. Raises UserError for a model that ours cannot represent.
    """
    check_hub_family(folder, base, "transformer")
    theirs = HubConfig.read(folder / "config.json", ADVICE)
    if (model_type := theirs.take("model_type", str, None)) not in CLASSES:
        raise UserError(
            f"{theirs.path} has model_type {model_type!r}; expected "
            f"{' or '.join(map(repr, CLASSES))}"
        )
    weights = HubWeights(folder, CLASSES[model_type], "exports")
    read_vocabularies = _of_marian if model_type == "marian" else _of_m2m100
    tokenizers, orders, sizes, fields = read_vocabularies(theirs, folder)
    model_config = _model_config(theirs, base.model, fields)
    theirs.check(IRRELEVANT)
    tokenizer = dataclasses.replace(
        base.tokenizer, joint=tokenizers.joint, vocab_size=tokenizers.target.vocab_size
    )
    config = dataclasses.replace(base, model=model_config, tokenizer=tokenizer)
    model = build_model(model_config, sizes_of(config, tokenizers))
    task = kind(config.data, tokenizers, model, config.decoding, data_mesh())
    parts = model.abstract_params(), weights, model_config, orders, sizes
    return Pretrained(config, task, functools.partial(_params, *parts))


def _model_config(
    theirs: HubConfig, base: TransformerConfig, fields: dict[str, Any]
) -> TransformerConfig:
    """fields: those that depend on the kind of model."""
    activations = {"silu": "swish"} | {value: key for key, value in ACTIVATIONS.items()}
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
    fields |= {
        "num_encoder_layers": sizes["layers"][0],
        "num_decoder_layers": sizes["layers"][1],
        "d_model": theirs.take("d_model", int),
        "d_ff": sizes["ffn_dim"][0],
        "num_heads": sizes["attention_heads"][0],
        "d_k": 0,
        "d_v": 0,
        "attention_bias": True,
        "activation": activations[activation],
        "normalization": "layer_norm",
        "norm_epsilon": EPSILON,
        "scale_embeddings": theirs.take("scale_embedding", bool),
    }
    return with_architecture(base, fields)


# Tokenizers; for each side their ids in our order, and the rows of their table; fields of the model
# section.
Vocabularies = tuple[Tokenizers, list[np.ndarray], tuple[int, int], dict[str, Any]]


def _of_m2m100(theirs: HubConfig, folder: Path) -> Vocabularies:
    size = theirs.take("vocab_size", int)
    if not theirs.take("tie_word_embeddings", bool, True):
        raise UserError(f"{theirs.path}: tie_word_embeddings is False; ours are tied there")
    tokenizer, order = m2m_vocabulary.read(folder, size)
    start, padding = (
        theirs.take(f"{x}_token_id", int, default)
        for x, default in (("decoder_start", None), ("pad", 1))
    )
    # Positions there are counted from the id of padding on.
    for name, found, expected in (
        ("decoder_start_token_id", start, order[EOS]),
        ("pad_token_id", padding, 1),
        ("pad_token_id", padding, order[PAD]),
    ):
        if found != expected:
            raise UserError(f"{theirs.path}: {name} is {found}; ours has {expected} there")
    fields = {"norm": "pre", "positions": "fairseq", "starts_with_eos": True}
    fields["share_embeddings"] = "all"
    return Tokenizers(tokenizer, tokenizer), [order, order], (size, size), fields


def _of_marian(theirs: HubConfig, folder: Path) -> Vocabularies:
    if not theirs.take("static_position_embeddings", bool, True):
        raise UserError(
            f"{theirs.path}: static_position_embeddings is False; ours has sinusoids there"
        )
    shared = theirs.take("share_encoder_decoder_embeddings", bool, True)
    tied = theirs.take("tie_word_embeddings", bool, True)
    if shared and not tied:
        raise UserError(f"{theirs.path}: embeddings are shared, and the output layer is not tied")
    share = "all" if shared else "decoder" if tied else "none"
    fields = {"norm": "post", "positions": "sinusoidal", "share_embeddings": share}
    start, source_size = (theirs.take(x, int) for x in ("decoder_start_token_id", "vocab_size"))
    if not 0 <= start < source_size:
        raise UserError(f"{theirs.path}: decoder_start_token_id is {start}; expected an id")
    files = ["vocab.json", "vocab.json" if shared else "target_vocab.json"]
    if not shared and not (folder / files[1]).exists():
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
        bos = start if side == "target" or shared else ids.get("<s>", ids["<pad>"])
        special = [ids["<pad>"], bos, ids["</s>"], ids["<unk>"]]
        order = [*special, *(i for i in range(size) if i not in special)]
        names = [pieces[i] for i in order]
        if special.count(bos) > 1:  # it begins a target and is also used otherwise
            names[BOS] = "<s>" if "<s>" not in ids else "<s> of Marian"
        try:
            model_bytes = read_plain(folder / f"{side}.spm", None)
        except OSError as error:
            raise cannot_read(folder / f"{side}.spm", error) from error
        model_bytes = marian_vocabulary.to_bytes(names, model_bytes)
        tokenizers.append(MarianTokenizer(model_bytes, folder / f"{side}.spm"))
        orders.append(np.array(order))
    if tokenizers[0].model_bytes == tokenizers[1].model_bytes:
        tokenizers[1] = tokenizers[0]
    return Tokenizers(*tokenizers), orders, sizes, fields | {"output_bias": True}


def _params(
    abstract: Params,
    weights: HubWeights,
    config: TransformerConfig,
    orders: list[np.ndarray],
    sizes: tuple[int, int],
) -> Params:
    """Our parameters, float32, from their weights."""
    is_marian = not is_m2m100(config)
    theirs = np.argsort(our_channels(config))  # their channel for each of ours
    params: dict[str, Any] = {}
    padding_is_start = is_marian and orders[1][PAD] == orders[1][BOS]
    # The largest first: memory briefly holds a second copy of each (a third by jnp.asarray).
    for ours, names in tables(config).items():
        side = ours != "source_embedding"
        name = next((name for name in names if name in weights), names[0])
        table_VD = weights.take(name, (sizes[side], config.d_model), orders[side])
        table_VD = table_VD[:, theirs] if is_marian else table_VD
        if padding_is_start:
            table_VD[PAD] = 0
        params[ours] = {"table_VD": jax.device_put(table_VD)}
        del table_VD
    if is_marian:
        bias_V = weights.take("final_logits_bias", (1, sizes[1]))[0][orders[1]]
        if padding_is_start:
            bias_V[PAD] = NEVER
        params["output_bias_V"] = jax.device_put(bias_V)
    for module in modules(config):
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
        put(params, module.path, jax.device_put(ours))
    weights.check(COPIES)
    return params
