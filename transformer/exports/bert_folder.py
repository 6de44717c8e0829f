"""A BERT model as a folder of Hugging Face's Transformers library.

The folder has config.json, model.safetensors, vocab.txt and tokenizer.json.
"""

from pathlib import Path
from typing import Any

from transformer.exports.options import NOT_AT_INFERENCE, check_known, expect
from transformer.models.bert import bert_weights
from transformer.models.bert.bert import INITIAL_STDDEV, BertConfig
from transformer.runs.restore import TrainedModel
from transformer.system.files import write_json
from transformer.system.packages import optional_module

ARCHITECTURES = {
    "none": "BertModel",
    "masked_lm": "BertForMaskedLM",
    "pre_training": "BertForPreTraining",
    "classification": "BertForSequenceClassification",
}


SYSTEM = "Hugging Face's BERT"


def check(config: BertConfig) -> None:
    """Raises UserError for a model that Hugging Face's BERT cannot represent."""
    expected = {
        "family": ("bert",),
        "norm": ("post",),
        "normalization": ("layer_norm",),
        "attention_bias": (True,),
        "feed_forward_bias": (True,),
        "positions": ("learned",),
        "activation": tuple(bert_weights.ACTIVATIONS),
        "head": tuple(ARCHITECTURES),
    }
    expect(config, SYSTEM, expected)


def write(model: TrainedModel, folder: Path) -> None:
    """Writes the files. Raises UserError for a model that Hugging Face's BERT cannot represent."""
    config: BertConfig = model.config.model
    check(config)
    check_known(model, SYSTEM, NOT_AT_INFERENCE)
    safetensors = optional_module("safetensors.numpy", "bert")
    weights = bert_weights.to_theirs(model.params, config)
    model.task.tokenizer.save(folder)
    safetensors.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    write_json(folder / "config.json", _config(model, config))


def _config(model: TrainedModel, config: BertConfig) -> dict[str, Any]:
    content = {
        "model_type": "bert",
        "architectures": [ARCHITECTURES[config.head]],
        "dtype": "float32",
        "vocab_size": model.task.tokenizer.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.d_ff,
        "hidden_act": bert_weights.ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_positions,
        "type_vocab_size": config.num_token_types,
        "initializer_range": INITIAL_STDDEV,
        "layer_norm_eps": config.norm_epsilon,
        "pad_token_id": 0,
    }
    if config.head == "classification":
        labels = model.task.labels
        content |= {
            "id2label": {str(i): label for i, label in enumerate(labels)},
            "label2id": {label: i for i, label in enumerate(labels)},
        }
        if model.task.is_regression:
            content["problem_type"] = "regression"
    return content
