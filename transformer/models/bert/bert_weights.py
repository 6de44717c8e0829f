"""The names and layouts of BERT's weights in Hugging Face's Transformers library.

Linear weights there are [out, in]. Normalisations of older files have gamma and beta.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from transformer.models.bert.bert import BertConfig
from transformer.models.functional import Params, Path, at, put
from transformer.system.errors import UserError

# Ours: theirs. Their "gelu" is the exact one.
ACTIVATIONS = {"gelu_exact": "gelu", "gelu": "gelu_new", "relu": "relu", "swish": "silu"}
# The prefix of the encoder's names, which a BertModel does not have.
PREFIX = "bert."
_HEADS = ("cls.", "classifier.")


def modules(config: BertConfig) -> Iterator[tuple[str, Path]]:
    """Linear layers and normalisations: their name there, and the path in our parameters."""
    yield "embeddings.LayerNorm", ("embedding_norm",)
    for i in range(config.num_layers):
        layer, ours = f"encoder.layer.{i}", ("encoder_layers", i)
        for part in ("query", "key", "value"):
            yield f"{layer}.attention.self.{part}", (*ours, "self_attention", part)
        yield f"{layer}.attention.output.dense", (*ours, "self_attention", "output")
        yield f"{layer}.attention.output.LayerNorm", (*ours, "self_attention_norm", "norm")
        yield f"{layer}.intermediate.dense", (*ours, "feed_forward", "hidden")
        yield f"{layer}.output.dense", (*ours, "feed_forward", "output")
        yield f"{layer}.output.LayerNorm", (*ours, "feed_forward_norm", "norm")
    if config.head != "masked_lm":
        yield "pooler.dense", ("pooler",)
    if config.head in ("masked_lm", "pre_training"):
        yield "cls.predictions.transform.dense", ("masked_lm", "hidden")
        yield "cls.predictions.transform.LayerNorm", ("masked_lm", "norm")
    if config.head == "pre_training":
        yield "cls.seq_relationship", ("next_sentence",)
    if config.head == "classification":
        yield "classifier", ("classifier",)


def arrays(config: BertConfig) -> Iterator[tuple[str, Path]]:
    """Arrays outside of these layers: tables, and the bias of the output layer."""
    yield "embeddings.word_embeddings.weight", ("embedding", "table_VD")
    yield "embeddings.position_embeddings.weight", ("positions",)
    yield "embeddings.token_type_embeddings.weight", ("token_types",)
    if config.head in ("masked_lm", "pre_training"):
        yield "cls.predictions.bias", ("masked_lm", "bias_V")


def head_of(names: Mapping[str, Any]) -> str:
    """The head, by our name, that a file of weights with these names has."""
    if "classifier.weight" in names:
        return "classification"
    if "cls.predictions.bias" not in names:
        return "none"
    return "pre_training" if "cls.seq_relationship.weight" in names else "masked_lm"


def to_theirs(params: Params, config: BertConfig) -> dict[str, np.ndarray]:
    """Their weights, float32, by name."""
    prefix = "" if config.head == "none" else PREFIX
    found = {name: _array(at(params, path)) for name, path in arrays(config)}
    for name, path in modules(config):
        ours = at(params, path)
        weight = _array(ours["kernel"]).T if "kernel" in ours else _array(ours["scale"])
        found |= {f"{name}.weight": weight, f"{name}.bias": _array(ours["bias"])}
    return {
        name if name.startswith(_HEADS) else prefix + name: np.ascontiguousarray(weight)
        for name, weight in found.items()
    }


def to_ours(weights: Mapping[str, np.ndarray], config: BertConfig, name: str) -> Params:
    """Our parameters, float32, from their weights; UserError, about `name`, if any is missing."""
    prefix = PREFIX if any(weight.startswith(PREFIX) for weight in weights) else ""

    def weight(*others: str) -> np.ndarray:
        for other in others:
            full = other if other.startswith(_HEADS) else prefix + other
            if full in weights:
                return weights[full]
        raise UserError(f"{name} lacks {others[0]}; take the file from its source again")

    params: dict[str, Any] = {}
    for other, path in arrays(config):
        put(params, path, jax.device_put(weight(other)))
    for other, path in modules(config):
        kernel = weight(f"{other}.weight", f"{other}.gamma")
        ours = {"scale": kernel} if kernel.ndim == 1 else {"kernel": kernel.T}
        ours["bias"] = weight(f"{other}.bias", f"{other}.beta")
        put(params, path, jax.device_put(ours))
    return params


def _array(x: Any) -> np.ndarray:
    return np.asarray(x, np.float32)
