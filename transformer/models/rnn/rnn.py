"""RNN encoder-decoders: without attention, and with Bahdanau's, Luong's and the conditional GRU's.

The papers, by the names of their presets in configs/:

    rnn_sutskever    Sutskever et al. 2014 (arXiv 1409.3215): deep LSTM, source reversed
    rnn_bahdanau     Bahdanau et al. 2015 (arXiv 1409.0473): attention before the state
    rnn_luong        Luong et al. 2015 (arXiv 1508.04025): attention after it, input feeding
    rnn_conditional  dl4mt, Nematus, nmtpytorch: the conditional GRU, attention between two GRUs;
                     nmtpy's is multi30k_conditional

The encoder and the whole model are here; the decoder is in rnn_decoder.py, the cells in
recurrence.py, the attention in alignment.py. Letters of this file besides theirs: E word embedding,
U an annotation (the encoder's output at a token), X a summary of the source, R the readout.
Matrices act from the right (x W).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

from transformer.models.attention import Mask
from transformer.models.cache import attention_to_see
from transformer.models.encoder_decoder import (
    Decoded,
    EncoderDecoder,
    check_shared,
    segments_or_one,
)
from transformer.models.family import Family, Sizes
from transformer.models.loss import OutputLayer
from transformer.models.numerics import dropout, multiply
from transformer.models.rnn.recurrence import CELLS, INITIALIZATIONS, run_cell
from transformer.models.rnn.rnn_config import READOUTS, RNNConfig
from transformer.models.rnn.rnn_decoder import Decoder, Source
from transformer.system.errors import UserError


class Memory(NamedTuple):
    """The source as the decoder needs it, computed once per sentence."""

    annotations_BSU: jax.Array
    keys_BSK: jax.Array | None  # of the annotations, for scores
    # The sources of the decoder's first state: at the first and at the last token of a sentence,
    # and of all tokens. Each [B, S, X], or None.
    at_first_BSX: jax.Array | None
    at_last_BSX: jax.Array | None
    mean_of_BSX: jax.Array | None


class RNN(EncoderDecoder):
    """An encoder-decoder built as its config says.

    The tokens of a sentence must follow each other without padding between them.
    """

    def __init__(self, config: RNNConfig, sizes: Sizes, *, rngs: nnx.Rngs):
        c = self.config = config
        self.dtype, self.attends = jnp.dtype(c.dtype), c.attends
        E, H, U = c.embedding_size, c.hidden_size, c.annotation_size
        init = INITIALIZATIONS[c.initialization]

        def cells():
            options = {"initialization": init, "dtype": self.dtype, "rngs": rngs}
            sizes_in = (E, *[U] * (c.num_layers - 1))
            make = CELLS[c.cell]
            return nnx.List([make(size, H, biases=c.gate_biases, **options) for size in sizes_in])

        self.target_embedding_VE = init.matrix("embedding", (sizes.target_vocab, E), rngs)
        if c.share_embeddings != "all":
            self.source_embedding_VE = init.matrix("embedding", (sizes.source_vocab, E), rngs)
        if c.encoder != "reversed":
            self.encoder_forward = cells()
        if c.encoder != "forward":
            self.encoder_backward = cells()
        self.decoder = Decoder(c, rngs)
        if c.share_embeddings == "none":
            self.output_VR = init.matrix("other", (sizes.target_vocab, c.output_size), rngs)
        if c.output_bias:
            self.output_bias_V = init.vector(sizes.target_vocab, rngs)

    def attention_maps(self, weights: jax.Array) -> dict[str, list[jax.Array]]:
        return {"cross": [weights[:, None]]}

    # --- Encoder ---

    def encode(self, src_BS, src_segments_BS=None, rngs=None) -> Memory:
        """All layers over the whole source. "reversed" reads it from its end."""
        c = self.config
        segments_BS = segments_or_one(src_BS, src_segments_BS)
        shared = c.share_embeddings == "all"
        table_VE = self.target_embedding_VE if shared else self.source_embedding_VE
        x_BSU = dropout(table_VE[...][src_BS], c.embedding_dropout, rngs)
        states = []
        for layer in range(c.num_layers):
            if layer:
                x_BSU = dropout(x_BSU, c.layer_dropout, rngs)
            of_layer = []
            if c.encoder != "reversed":
                of_layer.append(run_cell(self.encoder_forward[layer], x_BSU, _starts(segments_BS)))
            if c.encoder != "forward":
                cell, ends_BS = self.encoder_backward[layer], _ends(segments_BS)
                of_layer.append(run_cell(cell, x_BSU, ends_BS, reverse=True))
            states += of_layer
            x_BSU = jnp.concatenate([state[0] for state in of_layer], axis=-1)

        annotations_BSU = dropout(x_BSU, c.memory_dropout, rngs)
        keys_BSK = self.decoder.alignment.keys(annotations_BSU) if c.attends else None
        first = last = mean = None
        if c.initial_state == "copy":
            whole = jnp.concatenate([part for state in states for part in state], axis=-1)
            first, last = (whole, None) if c.encoder == "reversed" else (None, whole)
        elif c.initial_state == "mean":
            mean = annotations_BSU
        else:
            first = of_layer[1][0]
            last = of_layer[0][0] if c.initial_state == "both" else None
        return Memory(annotations_BSU, keys_BSK, first, last, mean)

    def _source(self, memory: Memory, mask_BTS: jax.Array, segments_BS: jax.Array) -> Source:
        """The memory with a summary for each target position."""

        def pick(which_BTS, x_BSX):
            return multiply("BTS,BSX->BTX", which_BTS.astype(self.dtype), x_BSX, self.dtype)

        parts = []
        if memory.at_last_BSX is not None:
            parts.append(pick(mask_BTS & _ends(segments_BS)[:, None], memory.at_last_BSX))
        if memory.at_first_BSX is not None:
            parts.append(pick(mask_BTS & _starts(segments_BS)[:, None], memory.at_first_BSX))
        if memory.mean_of_BSX is not None:
            count_BT1 = jnp.maximum(1, jnp.sum(mask_BTS, axis=-1, keepdims=True))
            parts.append(pick(mask_BTS, memory.mean_of_BSX) / count_BT1)
        summary_BTX = jnp.concatenate(parts, axis=-1)
        return Source(memory.annotations_BSU, memory.keys_BSK, summary_BTX)

    def decode(
        self, src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT, rngs, return_weights=False
    ) -> Decoded:
        """The readout [B, T, R]; always returns weights [B, T, S], or None without attention."""
        c = self.config
        src_segments_BS = segments_or_one(src_BS, src_segments_BS)
        tgt_segments_BT = segments_or_one(tgt_in_BT, tgt_segments_BT)
        memory = self.encode(src_BS, src_segments_BS, rngs)
        mask_BTS = Mask(tgt_segments_BT, src_segments_BS).dense()
        source = self._source(memory, mask_BTS, src_segments_BS)
        y_BTE = dropout(self.target_embedding_VE[...][tgt_in_BT], c.embedding_dropout, rngs)
        starts_BT = _starts(tgt_segments_BT)
        readout_BTR, weights_BTS = self.decoder(y_BTE, starts_BT, source, mask_BTS, rngs)
        return Decoded(dropout(readout_BTR, c.output_dropout, rngs), weights_BTS)

    def output_layer(self) -> OutputLayer:
        c = self.config
        table = self.output_VR if c.share_embeddings == "none" else self.target_embedding_VE
        bias_V = self.output_bias_V[...] if c.output_bias else None
        return OutputLayer(table[...], bias_V, self.dtype)

    # --- Search ---

    def init_cache(self, memory, src_BS, num_hypotheses, max_length):
        """A hypothesis has states, whose size is fixed."""
        segments_BS = segments_or_one(src_BS, None)
        mask_B1S = (segments_BS > 0)[:, None]
        source = self._source(memory, mask_B1S, segments_BS)
        return {
            "step": jnp.int32(0),
            "sentence": {"source": source, "mask": mask_B1S},
            "hypothesis": self.decoder.first_states(source, num_hypotheses),
        }

    def decode_step(self, tokens_N, cache):
        y_N1E = self.target_embedding_VE[...][tokens_N][:, None]
        sentence = cache["sentence"]
        readout_N1R, hypothesis, weights_BMS = self.decoder.step(
            y_N1E, sentence["source"], sentence["mask"], cache["hypothesis"]
        )
        cache = {**cache, "step": cache["step"] + 1, "hypothesis": hypothesis}
        if "attention" in cache:
            if not self.attends:
                raise UserError(
                    f"this needs attention, and model.attention is {self.config.attention!r}; "
                    "leave out alignments and decoding.coverage_penalty, or take another model"
                )
            cache["attention"] = attention_to_see([weights_BMS[:, None]])
        return self.logits_of(readout_N1R)[:, 0], cache


def _starts(segments_BT: jax.Array) -> jax.Array:
    """True where a sentence, or padding, begins."""
    return segments_BT != jnp.pad(segments_BT, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]


def _ends(segments_BT: jax.Array) -> jax.Array:
    """True where a sentence, or padding, ends."""
    return segments_BT != jnp.pad(segments_BT, ((0, 0), (0, 1)), constant_values=-1)[:, 1:]


def training_flops(
    config: RNNConfig, sizes: Sizes, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """FLOPs to train on each pair once: products, forward and (twice that) backward.

    Padding, dropout, activations and attention to others of a packed row do not count.
    """
    c, cell = config, CELLS[config.cell]
    E, H, U, K = c.embedding_size, c.hidden_size, c.annotation_size, c.attention_size
    s, t = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    G = cell.gates * H
    directions = U // H
    encoder = s * directions * G * ((E + H) + (c.num_layers - 1) * (U + H))
    if c.initial_state != "copy":
        encoder += c.summary_size * c.num_layers * cell.parts * H
    decoder = t * G * ((E + H) + (c.num_layers - 1) * 2 * H)
    if c.attend == "between":
        decoder += t * G * (U + H)
    if c.attention != "none" and c.attend == "previous":
        decoder += t * U * G
    if c.input_feeding:
        decoder += t * c.readout_size * G
    attention = 0
    if c.attends:
        attention = s * t * ((K if c.attention == "additive" else U) + U)
        if c.attention == "general":
            encoder += s * U * H
            attention = s * t * (H + U)
        if c.attention == "additive":
            encoder += s * U * K
            decoder += t * H * K
        if c.attention_window:
            decoder += t * (H * H + H)
    readout = READOUTS[c.readout]
    if readout.activation:
        size = sum(c.part_sizes[part] for part in readout.parts)
        decoder += t * size * readout.inputs * c.readout_size
    output = t * c.output_size * sizes.target_vocab
    return 3 * 2 * (encoder + decoder + attention + output)


def build(config: RNNConfig, sizes: Sizes, rngs: nnx.Rngs) -> RNN:
    """The module; raises UserError where the config does not fit the data."""
    check_shared(config.share_embeddings, sizes)
    return RNN(config, sizes, rngs=rngs)


FAMILY = Family(
    config=RNNConfig,
    build=build,
    # The tensor axis splits the vocabulary. States are copied: if they were split, every step of a
    # recurrence would wait for messages. Vectors are copied, too.
    sharding=(
        (r"(source|target)_embedding_VE|output_VR", P("tensor", "fsdp")),
        (r"output_bias_V", P("tensor")),
        (r".+/(input_IG|gates_HX|candidate_HH|state_HG|context_UG|feed_RG|initial_XI)", P("fsdp")),
        (r"decoder/alignment/(query_HK|key_UK|key_UH|position_HP)", P("fsdp")),
        (r"decoder/readout/\w+", P("fsdp")),
        (r".+/(bias_G|state_bias_G|key_bias_K|energy_K|position_P)", P()),
        (r"decoder/(initial_bias_I|readout_bias_O)", P()),
    ),
    flops=training_flops,
    packs=True,
)
