"""A BERT model as Hugging Face's hub has it: a folder with config.json, model.safetensors and
vocab.txt. A run can begin with it (training.init_from)."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.wordpiece import WordPiece
from transformer.models.bert import bert_weights
from transformer.models.bert.bert import BertConfig
from transformer.models.family import Sizes, build_model
from transformer.models.functional import FunctionalModel
from transformer.runs.restore import TrainedModel
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.packages import optional_module

WEIGHTS = "model.safetensors"


class HubTask(NamedTuple):
    """What is known of a model without a task."""

    model: FunctionalModel
    tokenizer: WordPiece


def is_hub_folder(folder: Path) -> bool:
    """Whether a folder has the config.json of a model of the hub, and not that of a run."""
    try:
        return "model_type" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def read(folder: Path, base: Config) -> TrainedModel:
    """The model of a folder; all but its sizes and its vocabulary are those of `base`.

    Its head is what the file of weights has. Raises UserError for a model that ours cannot be.
    """
    if base.model.family != "bert":
        raise UserError(
            f"{folder} holds a model of Hugging Face's, and model.family is {base.model.family!r}; "
            "a run of the family 'bert' can begin with it"
        )
    theirs = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = _weights(folder)
    model_config = _model_config(theirs, weights, base.model, folder / "config.json")
    tokenizer = WordPiece.load(folder)
    name = "embeddings.word_embeddings.weight"
    rows = len(weights[name] if name in weights else weights.get(f"bert.{name}", ()))
    if rows != tokenizer.vocab_size:
        raise UserError(
            f"{folder} has a vocabulary of {tokenizer.vocab_size} pieces, and {WEIGHTS} has "
            f"embeddings of {rows}; take both files from one model"
        )
    classes = len(weights.get("classifier.weight", [0]))
    sizes = Sizes(rows, classes, False, 1, 1)
    model = build_model(model_config, sizes)
    params = bert_weights.to_ours(weights, model_config, f"{folder / WEIGHTS}")
    found, expected = (
        jax.tree.map(lambda x: x.shape, tree) for tree in (params, model.abstract_params())
    )
    if found != expected:
        raise UserError(f"{folder / WEIGHTS} does not fit the config.json beside it")
    config = dataclasses.replace(
        base,
        model=model_config,
        tokenizer=dataclasses.replace(
            base.tokenizer, vocab_size=tokenizer.vocab_size, lowercase=tokenizer.lowercase
        ),
    )
    task = HubTask(model, tokenizer)
    params = jax.tree.map(jnp.asarray, params)
    return TrainedModel(folder, config, task, [0], "last", 0, False, params, {})


def _weights(folder: Path) -> dict[str, np.ndarray]:
    safetensors = optional_module("safetensors.numpy", "requirements-bert.txt")
    path = folder / WEIGHTS
    if not path.exists():
        hint = ""
        if (folder / "pytorch_model.bin").exists():
            hint = (
                "; pytorch_model.bin can run code when it is read, so it is not: convert it with "
                "AutoModel.from_pretrained(folder).save_pretrained(folder), or take a revision "
                "with safetensors"
            )
        raise UserError(f"{folder} has no {WEIGHTS}{hint}")
    try:
        return safetensors.load_file(path)
    except Exception as error:  # of safetensors, which has no public name
        raise UserError(
            f"{path} cannot be read ({error}); take it from its source again"
        ) from error


def _model_config(
    theirs: Mapping[str, Any], weights: Mapping[str, Any], base: BertConfig, path: Path
) -> BertConfig:
    if theirs["model_type"] != "bert":
        raise UserError(f"{path} has model_type {theirs['model_type']!r}; expected 'bert'")
    activations = {theirs: ours for ours, theirs in bert_weights.ACTIVATIONS.items()}
    activations |= {"gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu", "swish": "swish"}
    activation = theirs.get("hidden_act", "gelu")
    if activation not in activations:
        raise UserError(
            f"{path}: hidden_act is {activation!r}; ours has {', '.join(sorted(activations))}"
        )
    for field, expected in (("position_embedding_type", "absolute"), ("is_decoder", False)):
        if (found := theirs.get(field, expected)) != expected:
            raise UserError(f"{path}: {field} is {found!r}; ours has {expected!r} alone")
    try:
        return dataclasses.replace(
            base,
            num_layers=theirs["num_hidden_layers"],
            d_model=theirs["hidden_size"],
            d_ff=theirs["intermediate_size"],
            num_heads=theirs["num_attention_heads"],
            d_k=0,
            d_v=0,
            max_positions=theirs["max_position_embeddings"],
            num_token_types=theirs["type_vocab_size"],
            attention_bias=True,
            activation=activations[activation],
            norm="post",
            normalization="layer_norm",
            norm_epsilon=theirs.get("layer_norm_eps", 1e-12),
            head=bert_weights.head_of(weights),
        )
    except KeyError as error:
        raise UserError(f"{path} lacks {error}; take the file from its source again") from error
    except TypeError as error:
        raise UserError(f"{path} is damaged; take the file from its source again") from error
