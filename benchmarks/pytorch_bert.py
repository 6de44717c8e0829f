"""BERT's pre-training by Hugging Face Transformers, as it comes: logits of all positions."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.pytorch_training import Loss
from transformer.models.bert.bert import BertConfig


def build(config: BertConfig, vocab_size: int, max_length: int) -> nn.Module:
    del max_length  # of the config
    return transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=vocab_size,
            hidden_size=config.d_model,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.d_ff,
            # The same function as gelu_new, and faster.
            hidden_act={"gelu": "gelu_pytorch_tanh", "gelu_exact": "gelu"}[config.activation],
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.attention_dropout,
            max_position_embeddings=config.max_positions,
        )
    ).train()


def loss_of(model: nn.Module, config: Any, batch: Sequence[torch.Tensor]) -> Loss:
    """batch: as Masked, without its first axis."""
    tokens_BS, types_BS, segments_BS, masked_BP, labels_BP, _, is_random_BC, _ = batch
    given = {
        "input_ids": tokens_BS,
        "token_type_ids": types_BS,
        "attention_mask": segments_BS,
        "labels": torch.full_like(tokens_BS, -100).scatter(1, masked_BP.long(), labels_BP),
        "next_sentence_label": is_random_BC[:, 0],
    }
    given = {name: x.long() for name, x in given.items()}
    return lambda: model(**given).loss
