"""The same Transformer in PyTorch: torch.nn.Transformer where it does, our choices elsewhere.

torch.nn.Transformer differs from the paper, and from ours, in three ways that cost time. Here
they are taken out, so that both compute the same function of as many parameters:

  its norm after the last layer    is left out: post-LN layers end in one already
  biases in attention projections  are left out
  dropout of attention weights and inside feed-forward networks follows the config's two rates

versus_pytorch.py refuses configs for which it would not be the same function.
"""

import functools
import math

import numpy as np
import torch
from torch import nn

from benchmarks.pytorch_training import fill
from transformer.models.functional import Params
from transformer.models.layers import LayerConfig
from transformer.models.transformer import TransformerConfig

ACTIVATIONS = {
    "relu": nn.functional.relu,
    "gelu": functools.partial(nn.functional.gelu, approximate="tanh"),
    "gelu_exact": nn.functional.gelu,
}


def build(config: TransformerConfig, vocab_size: int, max_length: int) -> nn.Module:
    num_layers = config.num_encoder_layers, config.num_decoder_layers
    return PyTorchTransformer(config, vocab_size, max_length, num_layers)


class PyTorchTransformer(nn.Module):
    """Source and target ids in, logits out; one matrix for embeddings and output."""

    def __init__(
        self,
        config: LayerConfig,
        vocab_size: int,
        max_length: int,
        num_layers: tuple[int, int],
    ):
        """num_layers: of encoder and decoder."""
        super().__init__()
        d_model = config.d_model
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.register_buffer("encoding_TD", _sinusoidal_encoding(max_length, d_model))
        self.register_buffer(
            "causal_TT",
            nn.Transformer.generate_square_subsequent_mask(max_length, dtype=torch.bool),
        )
        self.dropout = nn.Dropout(config.dropout)
        encoder = nn.TransformerEncoder(
            _layer(nn.TransformerEncoderLayer, config),
            num_layers[0],
            enable_nested_tensor=False,
        )
        decoder = nn.TransformerDecoder(_layer(nn.TransformerDecoderLayer, config), num_layers[1])
        self.transformer = nn.Transformer(
            d_model,
            config.num_heads,
            custom_encoder=encoder,
            custom_decoder=decoder,
            batch_first=True,
        )

    def forward(
        self, src_BS: torch.Tensor, tgt_in_BT: torch.Tensor, src_padding_BS: torch.Tensor
    ) -> torch.Tensor:
        """`src_padding` is True where the source has no token.

        The target's padding follows its tokens, which so cannot see it: causality is enough,
        and leaves attention its fastest kernel.
        """
        length = tgt_in_BT.shape[1]
        y_BTD = self.transformer(
            self._embed(src_BS),
            self._embed(tgt_in_BT),
            tgt_mask=self.causal_TT[:length, :length],
            tgt_is_causal=True,
            src_key_padding_mask=src_padding_BS,
            memory_key_padding_mask=src_padding_BS,
        )
        return nn.functional.linear(y_BTD, self.embedding.weight)

    def _embed(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.embedding(tokens_BT) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x_BTD + self.encoding_TD[: tokens_BT.shape[1]])


def _layer(kind, config: LayerConfig) -> nn.Module:
    layer = kind(
        config.d_model,
        config.num_heads,
        config.d_ff,
        config.dropout,
        ACTIVATIONS[config.activation],
        layer_norm_eps=config.norm_epsilon,
        batch_first=True,
    )
    layer.dropout = nn.Dropout(config.activation_dropout)
    for name in ("self_attn", "multihead_attn"):
        if hasattr(layer, name):
            attention = nn.MultiheadAttention(
                config.d_model,
                config.num_heads,
                config.attention_dropout,
                bias=False,
                batch_first=True,
            )
            setattr(layer, name, attention)
    return layer


def _sinusoidal_encoding(length: int, d_model: int) -> torch.Tensor:
    """Section 3.5, sines at even places."""
    angle_TF = np.arange(length)[:, None] / 10000 ** (np.arange(0, d_model, 2) / d_model)
    return torch.tensor(np.stack([np.sin(angle_TF), np.cos(angle_TF)], -1).reshape(length, -1),
                        dtype=torch.float32)  # fmt: skip


@torch.no_grad()
def load(model: PyTorchTransformer, params: Params) -> None:
    """Gives the model our parameters."""
    transformer = model.transformer
    fill(model.embedding.weight, params["target_embedding"]["table_VD"])
    for layers, modules in (
        (params["encoder_layers"], transformer.encoder.layers),
        (params["decoder_layers"], transformer.decoder.layers),
    ):
        for number, layer in enumerate(modules):
            ours = layers[number]
            sublayers = [("self_attention", "self_attn")]
            if isinstance(layer, nn.TransformerDecoderLayer):
                sublayers.append(("cross_attention", "multihead_attn"))
            for our_name, their_name in sublayers:
                attention, theirs = ours[our_name], getattr(layer, their_name)
                kernels = [attention[x]["kernel"] for x in ("query", "key", "value")]
                fill(theirs.in_proj_weight, np.concatenate(kernels, axis=1).T)
                fill(theirs.out_proj.weight, attention["output"]["kernel"].T)
            for our_name, theirs in (("hidden", layer.linear1), ("output", layer.linear2)):
                fill(theirs.weight, ours["feed_forward"][our_name]["kernel"].T)
                fill(theirs.bias, ours["feed_forward"][our_name]["bias"])
            for i, (our_name, _) in enumerate([*sublayers, ("feed_forward", "")], start=1):
                norm, theirs = ours[f"{our_name}_norm"]["norm"], getattr(layer, f"norm{i}")
                fill(theirs.weight, norm["scale"])
                fill(theirs.bias, norm["bias"])
