"""The same Universal Transformer in PyTorch: its layers, each applied again and again.

Without halting, as versus_pytorch.py demands. The layers are those of pytorch_transformer.py.
"""

import math

import torch
from torch import nn

from benchmarks import pytorch_transformer
from benchmarks.pytorch_transformer import PyTorchTransformer
from transformer.models.functional import Params
from transformer.models.universal.universal_steps import UniversalConfig


class PyTorchUniversal(nn.Module):
    """Source and target ids in, logits out; one matrix for embeddings and output."""

    def __init__(self, config: UniversalConfig, vocab_size: int, max_length: int):
        super().__init__()
        self.config = config
        longest = 1 + max(max_length, config.encoder_steps, config.decoder_steps)
        self.layers = PyTorchTransformer(config, vocab_size, longest, num_layers=(1, 1))

    def forward(
        self, src_BS: torch.Tensor, tgt_in_BT: torch.Tensor, src_padding_BS: torch.Tensor
    ) -> torch.Tensor:
        """`src_padding` is True where the source has no token."""
        c, layers = self.config, self.layers
        signal, length = layers.encoding_TD, tgt_in_BT.shape[1]
        transformer = layers.transformer
        x_BSD = self._embed(src_BS)
        for step in range(c.encoder_steps):
            x_BSD = x_BSD + signal[1 : 1 + src_BS.shape[1]] + signal[step + 1]
            x_BSD = transformer.encoder.layers[0](x_BSD, src_key_padding_mask=src_padding_BS)
        y_BTD = self._embed(tgt_in_BT)
        for step in range(c.decoder_steps):
            y_BTD = y_BTD + signal[1 : 1 + length] + signal[step + 1]
            y_BTD = transformer.decoder.layers[0](
                y_BTD,
                x_BSD,
                tgt_mask=layers.causal_TT[:length, :length],
                tgt_is_causal=True,
                memory_key_padding_mask=src_padding_BS,
            )
        return nn.functional.linear(y_BTD, layers.embedding.weight)

    def _embed(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        embedding = self.layers.embedding
        return self.layers.dropout(embedding(tokens_BT) * math.sqrt(embedding.embedding_dim))


build = PyTorchUniversal


def load(model: PyTorchUniversal, params: Params) -> None:
    """Gives the model our parameters."""
    layers = {f"{side}_layers": [params[side]["layer"]] for side in ("encoder", "decoder")}
    pytorch_transformer.load(model.layers, params | layers)
