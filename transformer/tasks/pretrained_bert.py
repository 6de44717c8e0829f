"""A BERT model in the format of Hugging Face's hub.

It is a folder with config.json, model.safetensors and vocab.txt. A run can begin with it
(training.init_from).
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer.data.hub_files import ADVICE, WEIGHTS, HubConfig, HubWeights
from transformer.data.wordpiece import WordPiece
from transformer.models.bert import bert_weights
from transformer.models.bert.bert import BertConfig
from transformer.models.family import Sizes, build_model
from transformer.models.functional import FunctionalModel, Params
from transformer.system.errors import UserError
from transformer.tasks.task import Pretrained, check_hub_family, with_architecture

# Fields of config.json to ignore, besides those common to all models there.
IRRELEVANT = {
    "vocab_size": "the weights say it",
    **dict.fromkeys(
        (
            "directionality",
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
        ),
        "of Google's code; the library does not read it",
    ),
}
# Tensors that are computed, or copies of others.
COPIES = "*embeddings.position_ids", "cls.predictions.decoder.*"


class HubTask(NamedTuple):
    """The parts of a model without a task."""

    model: FunctionalModel
    tokenizer: WordPiece
    classes: list[str] | None


def read(folder: Path, base: Any) -> Pretrained:
    """The model of a folder; everything but its sizes and vocabulary comes from `base`, a Config.

    Its head is the one in the weights file. Raises UserError for a model that ours cannot
    represent.
    """
    check_hub_family(folder, base, "bert")
    theirs = HubConfig.read(folder / "config.json", ADVICE)
    weights = HubWeights(folder, "AutoModel", "bert")
    model_config = _model_config(theirs, weights, base.model)
    tokenizer = WordPiece.load(folder)
    name = "embeddings.word_embeddings.weight"
    rows = weights.rows(name) or weights.rows(f"bert.{name}")
    if rows != tokenizer.vocab_size:
        raise UserError(
            f"{folder} has a vocabulary of {tokenizer.vocab_size} pieces, and {WEIGHTS} has "
            f"embeddings of {rows}; take both files from one model"
        )
    classes = weights.rows("classifier.weight") or 1
    sizes = Sizes(rows, classes, False, 1, 1)
    model = build_model(model_config, sizes)
    theirs.check(IRRELEVANT)
    config = dataclasses.replace(
        base,
        model=model_config,
        tokenizer=dataclasses.replace(
            base.tokenizer, vocab_size=tokenizer.vocab_size, lowercase=tokenizer.lowercase
        ),
    )
    task = HubTask(model, tokenizer, _classes(theirs, classes))
    abstract = model.abstract_params()
    return Pretrained(config, task, functools.partial(_params, abstract, weights, model_config))


def _params(abstract: Params, weights: HubWeights, config: BertConfig) -> Params:
    params = bert_weights.to_ours(weights, config, f"{weights.path}")
    found, expected = (jax.tree.map(lambda x: x.shape, tree) for tree in (params, abstract))
    if found != expected:
        raise UserError(f"{weights.path} does not fit the config.json beside it")
    weights.check(COPIES if config.head != "masked_lm" else (*COPIES, "bert.pooler.*"))
    return params


def _classes(theirs: HubConfig, number: int) -> list[str] | None:
    """The names of the classes; the hub's default names where config.json has none."""
    names = theirs.left().get("id2label")
    names = names if isinstance(names, dict) else {}
    found = [str(names.get(str(i), f"LABEL_{i}")) for i in range(number)]
    return found if number > 1 else None


def _model_config(theirs: HubConfig, weights: HubWeights, base: BertConfig) -> BertConfig:
    if (kind := theirs.take("model_type", str)) != "bert":
        raise UserError(f"{theirs.path} has model_type {kind!r}; expected 'bert'")
    activations = {theirs: ours for ours, theirs in bert_weights.ACTIVATIONS.items()}
    activations |= {"gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu", "swish": "swish"}
    activation = theirs.take("hidden_act", str, "gelu")
    if activation not in activations:
        raise UserError(
            f"{theirs.path}: hidden_act is {activation!r}; ours has "
            f"{', '.join(sorted(activations))}"
        )
    for field, kind, expected in (
        ("position_embedding_type", str, "absolute"),
        ("is_decoder", bool, False),
        ("tie_word_embeddings", bool, True),
    ):
        if (found := theirs.take(field, kind, expected)) != expected:
            raise UserError(f"{theirs.path}: {field} is {found!r}; ours has {expected!r} alone")
    fields = {
        "num_layers": theirs.take("num_hidden_layers", int),
        "d_model": theirs.take("hidden_size", int),
        "d_ff": theirs.take("intermediate_size", int),
        "num_heads": theirs.take("num_attention_heads", int),
        "d_k": 0,
        "d_v": 0,
        "max_positions": theirs.take("max_position_embeddings", int),
        "num_token_types": theirs.take("type_vocab_size", int),
        "attention_bias": True,
        "activation": activations[activation],
        "norm": "post",
        "positions": "learned",
        "normalization": "layer_norm",
        "norm_epsilon": theirs.take("layer_norm_eps", float, 1e-12),
        "head": bert_weights.head_of(weights),
    }
    return with_architecture(base, fields)
