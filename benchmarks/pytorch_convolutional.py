"""The same ConvS2S in PyTorch: nn.Conv1d and nn.Linear with weight normalisation, bmm to attend."""

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from benchmarks.pytorch_training import fill
from transformer.models.convolutional.convolutional_blocks import HALF, ConvolutionalConfig
from transformer.models.functional import Params


def build(config: ConvolutionalConfig, vocab_size: int, max_length: int) -> nn.Module:
    del max_length  # of the config
    return PyTorchConvolutional(config, vocab_size)


class PyTorchConvolutional(nn.Module):
    """Source and target ids in, logits out."""

    def __init__(self, config: ConvolutionalConfig, vocab_size: int):
        super().__init__()
        c = self.config = config
        self.encoder = Side(c, vocab_size, c.encoder, c.embedding_size, causal=False)
        self.decoder = Side(c, vocab_size, c.decoder, c.output_size, causal=True)
        blocks = c.decoder[:1] if c.share_attention else c.decoder
        self.queries = nn.ModuleList([_linear(c, b.channels, c.embedding_size) for b in blocks])
        self.outputs = nn.ModuleList([_linear(c, c.embedding_size, b.channels) for b in blocks])
        self.logits = _linear(c, c.output_size, vocab_size)

    def forward(
        self, src_BS: torch.Tensor, tgt_in_BT: torch.Tensor, src_padding_BS: torch.Tensor
    ) -> torch.Tensor:
        """`src_padding` is True where the source has no token."""
        e_BSE = self.encoder.embed(src_BS)
        z_BSE = self.encoder(e_BSE, src_padding_BS)
        z_BSE = _ScaledGradient.apply(z_BSE, 0.5 / len(self.decoder.convolutions))
        values_BSE = (z_BSE + e_BSE) * HALF
        length_B11 = (~src_padding_BS).sum(1)[:, None, None]
        g_BTE = self.decoder.embed(tgt_in_BT)

        def attend(number, h_BTC):
            i = 0 if self.config.share_attention else number
            query_BTE = (self.queries[i](h_BTC) + g_BTE) * HALF
            scores_BTS = torch.bmm(query_BTE, z_BSE.mT)
            scores_BTS = scores_BTS.masked_fill(src_padding_BS[:, None], -1e9)
            weights_BTS = torch.softmax(scores_BTS, dim=-1)
            context_BTE = torch.bmm(weights_BTS, values_BSE) * length_B11.sqrt()
            return (self.outputs[i](context_BTE) + h_BTC) * HALF

        y_BTO = self.decoder(g_BTE, None, attend)
        return self.logits(nn.functional.dropout(y_BTO, self.config.dropout, self.training))


class Side(nn.Module):
    """Embeddings and blocks of the encoder or of the decoder."""

    def __init__(self, c: ConvolutionalConfig, vocab_size: int, blocks, d_out: int, causal: bool):
        super().__init__()
        self.dropout, self.causal = c.dropout, causal
        self.embedding = nn.Embedding(vocab_size, c.embedding_size)
        self.positions = nn.Embedding(c.max_positions, c.embedding_size)
        self.input = _linear(c, c.embedding_size, blocks[0].channels)
        self.convolutions, self.residuals = nn.ModuleList(), nn.ModuleList()
        size = blocks[0].channels
        for channels, width in blocks:
            padding = width - 1 if causal else width // 2
            convolution = nn.Conv1d(size, 2 * channels, width, padding=padding)
            self.convolutions.append(_normalized(c, convolution))
            same = size == channels
            self.residuals.append(nn.Identity() if same else _linear(c, size, channels))
            size = channels
        self.output = _linear(c, size, d_out)

    def embed(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        places_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        places_T = places_T.clamp(max=self.positions.num_embeddings - 1)
        x_BTE = self.embedding(tokens_BT) + self.positions(places_T)
        return nn.functional.dropout(x_BTE, self.dropout, self.training)

    def forward(self, e_BTE, padding_BT, attend=None):
        x_BTC, length = self.input(e_BTE), e_BTE.shape[1]
        layers = zip(self.convolutions, self.residuals, strict=True)
        for number, (convolution, residual) in enumerate(layers):
            y_BTC = x_BTC
            if padding_BT is not None:
                y_BTC = y_BTC.masked_fill(padding_BT[..., None], 0)
            y_BTC = nn.functional.dropout(y_BTC, self.dropout, self.training)
            y_BTC = convolution(y_BTC.mT)[:, :, :length].mT
            y_BTC = nn.functional.glu(y_BTC, dim=-1)
            if attend is not None:
                y_BTC = attend(number, y_BTC)
            x_BTC = (y_BTC + residual(x_BTC)) * HALF
        return self.output(x_BTC)


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


def _linear(c: ConvolutionalConfig, d_in: int, d_out: int) -> nn.Module:
    return _normalized(c, nn.Linear(d_in, d_out))


def _normalized(c: ConvolutionalConfig, module: nn.Module) -> nn.Module:
    return weight_norm(module) if c.weight_normalization else module


@torch.no_grad()
def load(model: PyTorchConvolutional, params: Params) -> None:
    """Gives the model our parameters."""

    def fill_layer(module, ours, width=1):
        v_XO = np.asarray(ours["direction_XO"])
        weight = v_XO.T
        if isinstance(module, nn.Conv1d):
            weight = v_XO.reshape(width, -1, v_XO.shape[1]).transpose(2, 1, 0)
        if "length_O" in ours:
            found = module.parametrizations.weight
            fill(found.original0, ours["length_O"].reshape(found.original0.shape))
            fill(found.original1, weight)
        else:
            fill(module.weight, weight)
        fill(module.bias, ours["bias_O"])

    for name in ("encoder", "decoder"):
        side, ours = getattr(model, name), params[name]
        fill(side.embedding.weight, ours["embedding_VE"])
        fill(side.positions.weight, ours["positions_PE"])
        fill_layer(side.input, ours["input"])
        fill_layer(side.output, ours["output"])
        for i, block in ours["blocks"].items():
            convolution = side.convolutions[i]
            fill_layer(convolution, block["convolution"], convolution.kernel_size[0])
            if "residual" in block:
                fill_layer(side.residuals[i], block["residual"])
    for i, attention in params["attentions"].items():
        fill_layer(model.queries[i], attention["query"])
        fill_layer(model.outputs[i], attention["output"])
    fill_layer(model.logits, params["logits"])
