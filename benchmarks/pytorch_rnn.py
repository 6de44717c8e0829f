"""The same RNN in PyTorch, written in the usual way.

nn.LSTM or nn.GRU runs whole layers, and nn.LSTMCell or nn.GRUCell each step of a decoder whose loop
has an attention. What the memory needs for the scores is computed once a sentence, and the readout
and the softmax layer once for all steps, where they can be.
"""

import numpy as np
import torch
from torch import nn

from benchmarks.pytorch_training import fill
from transformer.models.functional import Params
from transformer.models.rnn.rnn_config import READOUTS, RNNConfig
from transformer.system.errors import UserError

LAYERS = {"gru": (nn.GRU, nn.GRUCell), "lstm": (nn.LSTM, nn.LSTMCell)}


def build(config: RNNConfig, vocab_size: int, max_length: int) -> nn.Module:
    del max_length  # it has no positions
    return PyTorchRNN(config, vocab_size)


class PyTorchRNN(nn.Module):
    """Source and target ids in, logits out."""

    def __init__(self, config: RNNConfig, vocab_size: int):
        super().__init__()
        c = self.config = config
        if c.cell not in LAYERS or c.gate_biases == 1:
            raise UserError("PyTorch has model.cell='gru' and 'lstm', and gate_biases 0 and 2")
        if c.attention == "fixed" or c.attention_window or c.readout == "concat":
            raise UserError("versus_pytorch has no fixed or local attention, and no readout concat")
        E, H, U = c.embedding_size, c.hidden_size, c.annotation_size
        layer, cell = LAYERS[c.cell]
        bias = c.gate_biases == 2
        self.target_embedding = nn.Embedding(vocab_size, E)
        self.source_embedding = self.target_embedding
        if c.share_embeddings != "all":
            self.source_embedding = nn.Embedding(vocab_size, E)
        self.output = nn.Linear(c.output_size, vocab_size, bias=c.output_bias)
        if c.share_embeddings != "none":
            self.output.weight = self.target_embedding.weight
        self.encoder = layer(
            E,
            H,
            c.num_layers,
            bias=bias,
            batch_first=True,
            dropout=c.layer_dropout,
            bidirectional=c.encoder == "bidirectional",
        )
        self.in_loop = c.attends and (c.attend != "current" or c.input_feeding)
        if not self.in_loop:
            self.decoder = layer(E, H, c.num_layers, bias, True, c.layer_dropout)
        else:
            first = E + U * (c.attend == "previous") + c.readout_size * c.input_feeding
            sizes = [first, *[H] * (c.num_layers - 1), *[U] * (c.attend == "between")]
            self.cells = nn.ModuleList([cell(size, H, bias) for size in sizes])
        if c.initial_state != "copy":
            self.initial = nn.Linear(c.summary_size, self.decoder_states * H)
        if c.attention == "additive":
            self.query = nn.Linear(H, c.attention_size, bias=False)
            self.key = nn.Linear(U, c.attention_size, bias=c.attention_bias)
            self.energy = nn.Linear(c.attention_size, 1, bias=False)
        elif c.attention == "general":
            self.key = nn.Linear(U, H, bias=False)
        readout = READOUTS[c.readout]
        if readout.activation:
            size = sum(c.part_sizes[part] for part in readout.parts)
            self.readout = nn.Linear(size, readout.inputs * c.readout_size, bias=c.readout_bias)

    @property
    def decoder_states(self) -> int:
        return self.config.num_layers * (2 if self.config.cell == "lstm" else 1)

    def forward(
        self, src_BS: torch.Tensor, tgt_in_BT: torch.Tensor, src_padding_BS: torch.Tensor
    ) -> torch.Tensor:
        """`src_padding` is True where the source has no token; rows of the benchmark have none."""
        c, drop = self.config, nn.functional.dropout
        if c.encoder == "reversed":
            src_BS, src_padding_BS = src_BS.flip(1), src_padding_BS.flip(1)
        x_BSE = drop(self.source_embedding(src_BS), c.embedding_dropout, self.training)
        memory_BSU, states = self.encoder(x_BSE)
        states = states if isinstance(states, tuple) else (states,)
        last_BU = torch.cat([*states[0][-2:]], dim=1)
        memory_BSU = drop(memory_BSU, c.memory_dropout, self.training)
        if c.initial_state != "copy":
            summary = {"backward": states[0][-1], "both": last_BU, "mean": memory_BSU.mean(1)}
            parts = torch.tanh(self.initial(summary[c.initial_state])).chunk(
                self.decoder_states, dim=1
            )
            count = len(states)
            states = tuple(torch.stack(parts[i::count]) for i in range(count))

        y_BTE = drop(self.target_embedding(tgt_in_BT), c.embedding_dropout, self.training)
        key_BSK = memory_BSU if c.attention in ("none", "dot") else self.key(memory_BSU)
        attend = lambda s_BMH: self._attend(s_BMH, key_BSK, memory_BSU, src_padding_BS)  # noqa: E731
        if self.in_loop:
            readout_BTR = self._step_by_step(y_BTE, states, attend)
        else:
            s_BTH, _ = self.decoder(y_BTE, states if c.cell == "lstm" else states[0])
            context_BTU = attend(s_BTH) if c.attends else None
            previous_BTH = torch.cat([states[0][-1][:, None], s_BTH[:, :-1]], dim=1)
            readout_BTR = self._readout(s_BTH, previous_BTH, y_BTE, context_BTU)
        return self.output(drop(readout_BTR, c.output_dropout, self.training))

    def _attend(self, s_BMH, key_BSK, memory_BSU, padding_BS):
        if self.config.attention == "additive":
            hidden_BMSK = torch.tanh(self.query(s_BMH)[:, :, None] + key_BSK[:, None])
            scores_BMS = self.energy(hidden_BMSK)[..., 0]
        else:
            scores_BMS = s_BMH @ key_BSK.mT
        scores_BMS = scores_BMS.masked_fill(padding_BS[:, None], -1e9)
        return torch.softmax(scores_BMS.float(), dim=-1).to(memory_BSU.dtype) @ memory_BSU

    def _step_by_step(self, y_BTE, states, attend):
        c = self.config
        layers = list(zip(*states, strict=True))  # of each layer, h alone or (h, c)
        feed_BR = y_BTE.new_zeros(len(y_BTE), c.readout_size)
        outputs, previous, contexts, feeds = [], [], [], []
        for x_BI in y_BTE.unbind(1):
            previous.append(layers[-1][0])
            if c.attend == "previous":
                context_BU = attend(layers[-1][0][:, None])[:, 0]
                x_BI = torch.cat([x_BI, context_BU], dim=1)
            if c.input_feeding:
                x_BI = torch.cat([x_BI, feed_BR], dim=1)
            if c.attend == "between":
                layers = [self._cell(0, x_BI, layers[0])]
                context_BU = attend(layers[0][0][:, None])[:, 0]
                layers = [self._cell(1, context_BU, layers[0])]
            else:
                for i, state in enumerate(layers):
                    layers[i] = self._cell(i, x_BI, state)
                    x_BI = nn.functional.dropout(layers[i][0], c.layer_dropout, self.training)
            outputs.append(layers[-1][0])
            if c.attend == "current":
                context_BU = attend(layers[-1][0][:, None])[:, 0]
            contexts.append(context_BU)
            if c.input_feeding:
                feed_BR = self._readout(layers[-1][0], previous[-1], x_BI, context_BU)
                feeds.append(feed_BR)
        if c.input_feeding:
            return torch.stack(feeds, dim=1)
        stacked = [torch.stack(x, dim=1) for x in (outputs, previous, contexts)]
        return self._readout(stacked[0], stacked[1], y_BTE, stacked[2])

    def _cell(self, i, x_BI, state):
        new = self.cells[i](x_BI, state if self.config.cell == "lstm" else state[0])
        return new if self.config.cell == "lstm" else (new,)

    def _readout(self, state, previous, word, context):
        readout = READOUTS[self.config.readout]
        parts = {"state": state, "previous": previous, "word": word, "context": context}
        if not readout.activation:
            return state
        x = self.readout(torch.cat([parts[part] for part in readout.parts], dim=-1))
        return torch.maximum(*x.chunk(2, dim=-1)) if readout.inputs == 2 else torch.tanh(x)


@torch.no_grad()
def load(model: PyTorchRNN, params: Params) -> None:
    """Gives the model our parameters."""
    c = model.config
    # Our gates: GRU update, reset, candidate; LSTM input, forget, output, candidate.
    order = (1, 0, 2) if c.cell == "gru" else (0, 1, 3, 2)

    def gates(x):
        parts = np.split(np.asarray(x), len(order), axis=-1)
        parts = [parts[i] for i in order]
        return np.concatenate(parts, axis=-1).T

    def fill_cell(get, ours, more=()):
        inputs = np.concatenate([np.asarray(ours["input_IG"]), *map(np.asarray, more)])
        fill(get("weight_ih"), gates(inputs))
        fill(get("weight_hh"), gates(ours["state_HG"]))
        if c.gate_biases:
            fill(get("bias_ih"), gates(ours["bias_G"]))
            fill(get("bias_hh"), gates(ours["state_bias_G"]))

    def of_layer(module, i, suffix=""):
        return lambda name: getattr(module, f"{name}_l{i}{suffix}")

    fill(model.target_embedding.weight, params["target_embedding_VE"])
    if c.share_embeddings != "all":
        fill(model.source_embedding.weight, params["source_embedding_VE"])
    if c.share_embeddings == "none":
        fill(model.output.weight, params["output_VR"])
    if c.output_bias:
        fill(model.output.bias, params["output_bias_V"])
    directions = [("encoder_forward", ""), ("encoder_backward", "_reverse")]
    if c.encoder == "reversed":
        directions = [("encoder_backward", "")]
    for name, suffix in directions:
        for i in range(c.num_layers if name in params else 0):
            fill_cell(of_layer(model.encoder, i, suffix), params[name][i])
    ours = params["decoder"]
    for i, cell in ours["cells"].items():
        more = [ours[name] for name in ("context_UG", "feed_RG") if i == 0 and name in ours]
        if model.in_loop:
            fill_cell(lambda name, i=i: getattr(model.cells[i], name), cell, more)
        else:
            fill_cell(of_layer(model.decoder, i), cell, more)
    if c.initial_state != "copy":
        fill(model.initial.weight, np.asarray(ours["initial_XI"]).T)
        fill(model.initial.bias, ours["initial_bias_I"])
    for name, table in ours.get("alignment", {}).items():
        if name == "key_bias_K":
            fill(model.key.bias, table)
        else:
            module = getattr(model, name.split("_")[0])
            fill(module.weight, np.atleast_2d(np.asarray(table).T))
    if "readout" in ours:
        parts = READOUTS[c.readout].parts
        tables = [np.asarray(ours["readout"][part]) for part in parts]
        fill(model.readout.weight, np.concatenate(tables).T)
        if c.readout_bias:
            fill(model.readout.bias, ours["readout_bias_O"])
