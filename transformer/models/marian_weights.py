"""The names and layouts of weights of Hugging Face's Marian and M2M100 (NLLB-200 is one, too).

Weights there are [out, in]. Marian's positional encodings are all sines and then all cosines, where
ours alternate. So all arrays with an axis of size d_model have its channels in another order.
M2M100's encodings are our `fairseq`, with the same channels.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from transformer.models.functional import Params, Path, at
from transformer.models.transformer import TransformerConfig

# Our name: theirs. Their gelu is the exact one.
ACTIVATIONS = {"swish": "swish", "relu": "relu", "gelu": "gelu_new"}
EPSILON = 1e-5  # of normalisation; another one changes little (docs/exporting.md)
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_SOURCE, _TARGET = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
_OUTPUT = "lm_head.weight"
# Tensors that are computed, or copies of others.
COPIES = "model.*.embed_positions.weight*", "model.shared.weight", _SOURCE, _TARGET, _OUTPUT


class Module(NamedTuple):
    """A linear layer or a normalisation: its name there, and its path in our parameters."""

    name: str
    path: Path
    reads: bool = False  # its input has size d_model
    writes: bool = True  # its output has size d_model


def modules(config: TransformerConfig) -> Iterator[Module]:
    """All modules but the embeddings and the bias of the output layer."""
    for side, layers in (
        ("encoder", config.num_encoder_layers),
        ("decoder", config.num_decoder_layers),
    ):
        attentions = {"self_attention": "self_attn"}
        if side == "decoder":
            attentions["cross_attention"] = "encoder_attn"
        for i in range(layers):
            layer, ours = f"model.{side}.layers.{i}", (f"{side}_layers", i)
            for attention, name in attentions.items():
                for part, projection in _ATTENTION.items():
                    is_output = part == "output"
                    path = *ours, attention, part
                    yield Module(f"{layer}.{name}.{projection}", path, not is_output, is_output)
                yield Module(f"{layer}.{name}_layer_norm", (*ours, f"{attention}_norm", "norm"))
            feed_forward = *ours, "feed_forward"
            yield Module(f"{layer}.fc1", (*feed_forward, "hidden"), reads=True, writes=False)
            yield Module(f"{layer}.fc2", (*feed_forward, "output"))
            yield Module(f"{layer}.final_layer_norm", (*ours, "feed_forward_norm", "norm"))
        if config.norm == "pre":
            yield Module(f"model.{side}.layer_norm", (f"{side}_norm",))


def is_m2m100(config: TransformerConfig) -> bool:
    """True if a model is M2M100's kind there, otherwise Marian's."""
    return config.positions == "fairseq"


def to_theirs(
    params: Params, config: TransformerConfig, order_V: np.ndarray | slice = slice(None)
) -> dict[str, np.ndarray]:
    """Their weights, float32, by name. order_V: our id of each of theirs."""
    channels = our_channels(config)
    found = {}
    for ours, (name, *_) in tables(config).items():
        found[name] = _array(params[ours]["table_VD"])[:, channels][order_V]
    if not is_m2m100(config):
        vocab_size = len(params["target_embedding"]["table_VD"])
        bias_V = params["output_bias_V"] if config.output_bias else np.zeros(vocab_size)
        found["final_logits_bias"] = _array(bias_V)[None]
    for module in modules(config):
        ours = at(params, module.path)
        if "kernel" in ours:
            weight_OI = _array(ours["kernel"]).T
            weight_OI = weight_OI[:, channels] if module.reads else weight_OI
            found[f"{module.name}.weight"] = weight_OI[channels] if module.writes else weight_OI
            bias_O = _array(ours["bias"]) if "bias" in ours else np.zeros(len(weight_OI), "f")
        else:
            found[f"{module.name}.weight"] = _array(ours["scale"])[channels]
            bias_O = _array(ours["bias"])
        found[f"{module.name}.bias"] = bias_O[channels] if module.writes else bias_O
    return {name: np.ascontiguousarray(weight) for name, weight in found.items()}


def our_channels(config: TransformerConfig) -> np.ndarray:
    """The number of our channel for each of theirs."""
    channels = np.arange(config.d_model)
    return channels if is_m2m100(config) else np.concatenate([channels[::2], channels[1::2]])


def tables(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    """The embeddings and the output layer: our name, and theirs; files have some of several."""
    if config.share_embeddings == "all":
        return {"target_embedding": ("model.shared.weight", _SOURCE, _TARGET, _OUTPUT)}
    found = {"source_embedding": (_SOURCE,), "target_embedding": (_TARGET, _OUTPUT)}
    return found | ({"output_embedding": (_OUTPUT,)} if config.share_embeddings == "none" else {})


def _array(x: Any) -> np.ndarray:
    return np.asarray(x, np.float32)
