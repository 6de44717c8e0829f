"""A trained Transformer as a model for CTranslate2, an engine for deployment.

The export fills in CTranslate2's own specification; its converter writes the files.
docs/exporting.md shows how to use them.
"""

from pathlib import Path
from typing import Any

import numpy as np

from transformer.data.m2m_vocabulary import SENTENCEPIECE, M2MTokenizer
from transformer.data.vocabulary import BOS, EOS, UNK
from transformer.decoding.config import DecodingConfig
from transformer.exports.folder import unique_pieces
from transformer.exports.options import NOT_AT_INFERENCE, OF_THE_CALL, check_known, expect
from transformer.models.encoder_decoder import SHARE_EMBEDDINGS
from transformer.models.functional import Params
from transformer.models.positions import ENCODINGS, KINDS
from transformer.models.transformer import TransformerConfig
from transformer.runs.restore import TrainedModel
from transformer.system.files import write_json
from transformer.system.packages import optional_module

# The size of the position table. CTranslate2 cuts sources at 1,024 tokens unless told otherwise.
NUM_POSITIONS = 2048
SYSTEM = "CTranslate2"
SEARCH = "translate_batch.json"
KNOWN = (
    *("model.positions", "model.max_distance", "model.feed_forward", "model.feed_forward_bias"),
    *("model.num_key_value_heads", "model.output_bias", "model.scale_outputs"),
    "model.starts_with_eos",
    *("decoding.no_repeat_ngram", "decoding.repetition_penalty"),
    *("decoding.min_length", "decoding.max_length"),
    *("decoding.temperature", "decoding.top_k", "decoding.top_p"),
)
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELUTanh", "swish": "SWISH"}
_GATES = {"glu": "Sigmoid", "reglu": "RELU", "geglu": "GELUTanh", "swiglu": "SWISH"}
# The arguments of its stacks for our positions. Its encoders have no ALiBi.
_POSITIONS = {
    **{kind: {} for kind in ("sinusoidal", "fairseq", "learned", "none")},
    "rotary": {"rotary_dim": 0},  # all channels
    **{kind: {"relative_position": True} for kind in ("relative", "relative_keys")},
    "t5": {"relative_attention_bias": True},
}


def check(config: TransformerConfig) -> None:
    """Raises UserError for a model that CTranslate2 cannot compute."""
    expected = {
        "family": ("transformer",),
        "norm": ("post", "pre"),
        "normalization": ("layer_norm", "rms_norm"),
        "positions": tuple(_POSITIONS),
        "activation": tuple(_ACTIVATIONS),
        "feed_forward": ("plain", *_GATES),
        "share_embeddings": SHARE_EMBEDDINGS,
        "words_per_position": (1,),
    }
    expect(config, SYSTEM, expected)


def write(model: TrainedModel, folder: Path, quantization: str) -> None:
    """Writes CTranslate2's files for `model` into `folder`, which must exist.

    Raises UserError for a model that CTranslate2 cannot run, and without the package.
    """
    tokenizers = model.task.tokenizers
    source, target = (unique_pieces(tokenizer) for tokenizer in tokenizers)
    check_known(model, SYSTEM, KNOWN, NOT_AT_INFERENCE, OF_THE_CALL)
    write_model(model.params, model.config.model, source, target, folder, quantization)
    write_json(folder / SEARCH, search(model.task.translator.config))
    tokenizers.save(folder)
    if isinstance(tokenizers.source, M2MTokenizer):  # whose own file SentencePiece cannot read
        (folder / SENTENCEPIECE).write_bytes(tokenizers.source.sentencepiece_model)


def search(config: DecodingConfig) -> dict[str, Any]:
    """The arguments of translate_batch nearest to our search."""
    # Its length penalty is 0 or a power; it has no gnmt form.
    alpha = config.length_penalty if config.length_penalty_form == "power" else 0.0
    found: dict[str, Any] = {
        "beam_size": config.beam_size,
        "length_penalty": alpha,
        "no_repeat_ngram_size": config.no_repeat_ngram,
        "repetition_penalty": config.repetition_penalty,
        # EOS is not counted there. 1, the default, removes EOS's probability at step 1.
        "min_decoding_length": max(config.min_length - 1, 0),
    }
    if config.max_length:
        found["max_decoding_length"] = config.max_length
    if config.temperature:
        found |= {
            "beam_size": 1,
            "sampling_temperature": config.temperature,
            "sampling_topk": config.top_k,
            "sampling_topp": config.top_p,
        }
    return found


def write_model(
    params: Params,
    config: TransformerConfig,
    source: list[str],
    target: list[str],
    folder: Path,
    quantization: str,
) -> None:
    """Writes all files but the tokenizers', whose pieces are given."""
    specs = optional_module("ctranslate2", "exports").specs
    check(config)
    is_gated = config.feed_forward != "plain"
    function = _GATES[config.feed_forward] if is_gated else _ACTIVATIONS[config.activation]
    options = {
        "num_heads": config.num_heads,
        "num_heads_kv": config.num_key_value_heads or None,
        "pre_norm": config.norm == "pre",
        "activation": getattr(specs.Activation, function),
        "ffn_glu": is_gated,
        "rms_norm": config.normalization == "rms_norm",
        **_POSITIONS[config.positions],
    }
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.num_encoder_layers, **options),
        specs.TransformerDecoderSpec(config.num_decoder_layers, **options),
    )
    _fill(spec, params, config)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.config.bos_token = target[BOS]
    spec.config.decoder_start_token = target[EOS if config.starts_with_eos else BOS]
    spec.config.eos_token = target[EOS]
    spec.config.unk_token = target[UNK]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def _fill(spec: Any, params: Params, config: TransformerConfig) -> None:
    target_VD = params["target_embedding"]["table_VD"]
    source = "target_embedding" if config.share_embeddings == "all" else "source_embedding"
    output = "output_embedding" if config.share_embeddings == "none" else "target_embedding"
    source_VD, output_VD = params[source]["table_VD"], params[output]["table_VD"]
    spec.encoder.embeddings[0].weight = _array(source_VD)
    spec.decoder.embeddings.weight = _array(target_VD)
    spec.decoder.projection.weight = _array(output_VD)
    if config.output_bias:
        spec.decoder.projection.bias = _array(params["output_bias_V"])
    if config.scale_outputs:
        spec.decoder.scale_outputs = np.float32(config.d_model**-0.5)
    for name, side in (("source", spec.encoder), ("target", spec.decoder)):
        side.scale_embeddings = config.scale_embeddings
        if hasattr(side, "position_encodings"):
            side.position_encodings.encodings = _positions(params, name, config)
    if config.norm == "pre":
        _norm(spec.encoder.layer_norm, params["encoder_norm"])
        _norm(spec.decoder.layer_norm, params["decoder_norm"])

    for number, layer in enumerate(spec.encoder.layer):
        ours = params["encoder_layers"][number]
        _attention(layer.self_attention, ours, "self_attention", ["query key value", "output"])
        _distances(layer.self_attention, params["encoder_layers"], number, config)
        _feed_forward(layer.ffn, ours)
    for number, layer in enumerate(spec.decoder.layer):
        ours = params["decoder_layers"][number]
        _attention(layer.self_attention, ours, "self_attention", ["query key value", "output"])
        _distances(layer.self_attention, params["decoder_layers"], number, config)
        _attention(layer.attention, ours, "cross_attention", ["query", "key value", "output"])
        _feed_forward(layer.ffn, ours)


def _positions(params: Params, name: str, config: TransformerConfig) -> np.ndarray:
    """The encodings of NUM_POSITIONS positions; CTranslate2's own sinusoids differ."""
    positions = np.arange(NUM_POSITIONS)
    if encode := ENCODINGS.get(config.positions):
        return _array(encode(positions, config.d_model))
    if config.positions != "learned":
        return np.zeros((NUM_POSITIONS, config.d_model), np.float32)
    table_PD = _array(params[f"{name}_positions"])
    return table_PD[np.minimum(positions, config.max_positions - 1)]


def _distances(spec: Any, layers: Params, number: int, config: TransformerConfig) -> None:
    """Fills in what self-attention adds by distance, if it does."""
    if hasattr(spec, "relative_position_keys"):
        ours = layers[number]["self_attention"]["positions"]
        spec.relative_position_keys = keys = _array(ours["key_RK"])
        has_values = config.positions == "relative"
        spec.relative_position_values = _array(ours["value_RU"]) if has_values else 0 * keys
    if hasattr(spec, "relative_attention_bias"):  # one for all layers
        ours = layers[0]["self_attention"]["positions"]
        spec.relative_attention_bias = _array(ours["bias_RH"])
        furthest = config.max_distance or KINDS["t5"].max_distance
        spec.relative_attention_max_distance = np.int32(furthest)


def _attention(spec: Any, layer: Params, name: str, groups: list[str]) -> None:
    """Fills one linear layer of `spec` from each group of ours, fused."""
    for linear, group in zip(spec.linear, groups, strict=True):
        _linear(linear, *(layer[name][part] for part in group.split()))
    _norm(spec.layer_norm, layer[f"{name}_norm"]["norm"])


def _feed_forward(spec: Any, layer: Params) -> None:
    ours = layer["feed_forward"]
    if "gate" in ours:
        _linear(spec.linear_0_noact, ours["hidden"])
    _linear(spec.linear_0, ours["gate" if "gate" in ours else "hidden"])
    _linear(spec.linear_1, ours["output"])
    _norm(spec.layer_norm, layer["feed_forward_norm"]["norm"])


def _linear(spec: Any, *parts: Params) -> None:
    spec.weight = np.concatenate([_array(part["kernel"]).T for part in parts])
    if "bias" in parts[0]:
        spec.bias = np.concatenate([_array(part["bias"]) for part in parts])


def _norm(spec: Any, norm: Params) -> None:
    spec.gamma = _array(norm["scale"])
    if "bias" in norm:
        spec.beta = _array(norm["bias"])


def _array(x: Any) -> np.ndarray:
    return np.array(x, np.float32, order="C")  # a copy, since quantising overwrites it
