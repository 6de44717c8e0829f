"""The RNN encoder-decoder with attention of Bahdanau, Cho and Bengio, 2015 (arXiv 1409.0473).

Their "RNNsearch"; sections and symbols are those of the paper. Letters of this file, with the
paper's sizes:

    E  word embedding (m)         620      D  maxout layer (l)       500
    H  hidden units (n)          1000      G  the gates' inputs: 3 H (z, r, candidate)
    U  an annotation: 2 H        2000      O  readout before maxout: 2 D
    K  alignment model (n')      1000

Matrices act from the right here (x W), so each is the transpose of the paper's. The paper leaves
out its biases "to make the equations uncluttered": every affine map has one here, but for the
softmax layer, which has the readout's through W_o.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

from transformer.data.batches import Batch
from transformer.data.vocabulary import PAD
from transformer.models.family import Family, Sizes
from transformer.models.loss import Loss, output_loss
from transformer.models.masks import Mask
from transformer.models.numerics import DropoutRngs, dropout, multiply
from transformer.system.errors import UserError, check_choice, check_range, setting

Cache = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class RNNConfig:
    """The sizes of Appendix A and the choices beside them; see configs/demo_rnn.py."""

    family: str
    embedding_size: int
    hidden_size: int
    attention_size: int
    maxout_size: int
    dropout: float = setting(architecture=False)
    initialization: str = setting(architecture=False)
    dtype: str

    def __post_init__(self):
        sizes = "embedding_size hidden_size attention_size maxout_size"
        check_range(self, "model", sizes, 1)
        check_range(self, "model", "dropout", 0, 1)
        check_choice(self, "model", "initialization", INITIALIZATIONS)
        check_choice(self, "model", "dtype", ("float32", "bfloat16", "float64"))
        if self.dtype == "float64" and not jax.config.jax_enable_x64:
            raise UserError("model.dtype is 'float64', which JAX has only with JAX_ENABLE_X64=1")


class Initialization(NamedTuple):
    """How matrices begin; biases are 0."""

    embedding: nnx.Initializer
    recurrent: nnx.Initializer  # U, U_z, U_r
    alignment: nnx.Initializer  # W_a, U_a
    energy: nnx.Initializer  # v_a, as a matrix of one column
    other: nnx.Initializer


_normal, _glorot = nnx.initializers.normal, nnx.initializers.xavier_uniform()
INITIALIZATIONS = {
    # Appendix B.1. A start so small that a short training with Adam hardly leaves it.
    "paper": Initialization(
        embedding=_normal(0.01),
        recurrent=nnx.initializers.orthogonal(),
        alignment=_normal(0.001),
        energy=nnx.initializers.zeros,
        other=_normal(0.01),
    ),
    # The field's usual one.
    "glorot": Initialization(
        embedding=_glorot,
        recurrent=nnx.initializers.orthogonal(),
        alignment=_glorot,
        energy=_glorot,
        other=_glorot,
    ),
}


class GatedUnit(nnx.Module):
    """The gated hidden unit of Appendix A.1.1.

    The update gate z weighs the *new* state, and r acts before the product with U; many later
    implementations have both the other way round.
    """

    def __init__(self, config: RNNConfig, rngs: nnx.Rngs):
        E, H = config.embedding_size, config.hidden_size
        init = INITIALIZATIONS[config.initialization]
        self.input_EG = _side_by_side(3, init.other, (E, H), rngs)  # W_z, W_r, W
        self.bias_G = _zeros(3 * H)
        self.gates_HX = _side_by_side(2, init.recurrent, (H, H), rngs)  # U_z, U_r
        self.candidate_HH = _side_by_side(1, init.recurrent, (H, H), rngs)  # U
        self.dtype = jnp.dtype(config.dtype)

    def inputs(self, x_BTE: jax.Array) -> jax.Array:
        """What the words add to the gates at all steps, [T, B, G]."""
        x_TBG = multiply("TBE,EG->TBG", x_BTE.swapaxes(0, 1), self.input_EG[...], self.dtype)
        return x_TBG + self.bias_G[...][None, None]

    def __call__(self, s_BH: jax.Array, x_BG: jax.Array) -> jax.Array:
        """The state that follows s; x: what words and context add to the gates."""
        H = s_BH.shape[-1]
        from_state_BX = multiply("BH,HX->BX", s_BH, self.gates_HX[...], self.dtype)
        z_BH, r_BH = jnp.split(jax.nn.sigmoid(x_BG[:, : 2 * H] + from_state_BX), 2, axis=-1)
        from_state_BH = multiply("BI,IH->BH", r_BH * s_BH, self.candidate_HH[...], self.dtype)
        candidate_BH = jnp.tanh(x_BG[:, 2 * H :] + from_state_BH)
        return (1 - z_BH) * s_BH + z_BH * candidate_BH

    def states(self, x_BTE: jax.Array, segments_BT: jax.Array, *, reverse: bool) -> jax.Array:
        """The states of a whole row, [B, T, H], from zeros at the start of each sentence."""

        def step(s_BH, inputs):
            x_BG, starts_B = inputs
            s_BH = self(jnp.where(starts_B[:, None], 0, s_BH), x_BG)
            return s_BH, s_BH

        x_TBG = self.inputs(x_BTE)
        starts_BT = _ends(segments_BT) if reverse else _starts(segments_BT)
        first_BH = jnp.zeros((len(x_BTE), self.candidate_HH.shape[0]), x_TBG.dtype)
        steps = x_TBG, starts_BT.T
        _, s_TBH = jax.lax.scan(step, first_BH, steps, reverse=reverse)
        return s_TBH.swapaxes(0, 1)


class Memory(NamedTuple):
    """What the decoder needs of the source, computed once a sentence."""

    annotations_BSU: jax.Array  # h_j
    keys_BSK: jax.Array  # U_a h_j
    initial_BSH: jax.Array  # s_0 of a sentence that begins at this token


class Alignment(nnx.Module):
    """The alignment model of Appendix A.1.2: e_ij = v_a tanh(W_a s_{i-1} + U_a h_j)."""

    def __init__(self, config: RNNConfig, rngs: nnx.Rngs):
        H, K = config.hidden_size, config.attention_size
        init = INITIALIZATIONS[config.initialization]
        self.query_HK = nnx.Param(init.alignment(rngs.params(), (H, K), jnp.float32))
        self.key_UK = nnx.Param(init.alignment(rngs.params(), (2 * H, K), jnp.float32))
        self.key_bias_K = _zeros(K)
        self.energy_K = nnx.Param(init.energy(rngs.params(), (K, 1), jnp.float32)[:, 0])
        self.dtype = jnp.dtype(config.dtype)

    def keys(self, annotations_BSU: jax.Array) -> jax.Array:
        keys_BSK = multiply("BSU,UK->BSK", annotations_BSU, self.key_UK[...], self.dtype)
        return keys_BSK + self.key_bias_K[...][None, None]

    def __call__(
        self, s_BMH: jax.Array, memory: Memory, mask_BMS: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The contexts c_i [B, M, U] of M states a row, and the weights alpha_ij [B, M, S]."""
        dtype = self.dtype

        # The backward pass computes tanh again: to keep B M S K numbers a step takes longer.
        @jax.checkpoint
        def energies(query_BMK, keys_BSK, energy_K):
            hidden_BMSK = jnp.tanh(query_BMK[:, :, None] + keys_BSK[:, None])
            return multiply("BMSK,K->BMS", hidden_BMSK, energy_K, dtype)

        query_BMK = multiply("BMH,HK->BMK", s_BMH, self.query_HK[...], dtype)
        scores_BMS = energies(query_BMK, memory.keys_BSK, self.energy_K[...])
        # Padding may attend to nothing: it gets finite weights, which nobody reads.
        scores_BMS = jnp.where(mask_BMS, scores_BMS, jnp.finfo(scores_BMS.dtype).min)
        weights_BMS = jax.nn.softmax(scores_BMS)
        context_BMU = multiply("BMS,BSU->BMU", weights_BMS, memory.annotations_BSU, dtype)
        return context_BMU, weights_BMS


class RNN(nnx.Module):
    """The encoder-decoder of Section 3 and Appendix A. Token id 0 is padding.

    Several sentences may be packed into a row: segment ids (1, 2, ... in order, 0 for padding)
    then keep them apart. Without segment ids, every row is one sentence. The tokens of a sentence
    follow each other without padding between them.

    Dropout, which the paper does not have: of the embeddings, of the annotations and of the
    maxout layer.
    """

    def __init__(self, config: RNNConfig, sizes: Sizes, *, rngs: nnx.Rngs):
        self.config = config
        self.dtype = jnp.dtype(config.dtype)
        E, H, D = config.embedding_size, config.hidden_size, config.maxout_size
        init = INITIALIZATIONS[config.initialization]

        def matrix(initializer, *shape):
            return nnx.Param(initializer(rngs.params(), shape, jnp.float32))

        self.source_embedding_VE = matrix(init.embedding, sizes.source_vocab, E)
        self.target_embedding_VE = matrix(init.embedding, sizes.target_vocab, E)
        self.encoder_forward = GatedUnit(config, rngs)
        self.encoder_backward = GatedUnit(config, rngs)
        self.alignment = Alignment(config, rngs)
        self.initial_HH = matrix(init.other, H, H)  # W_s
        self.initial_bias_H = _zeros(H)
        self.decoder = GatedUnit(config, rngs)
        self.context_UG = _side_by_side(3, init.other, (2 * H, H), rngs)  # C_z, C_r, C
        self.readout_state_HO = matrix(init.other, H, 2 * D)  # U_o
        self.readout_word_EO = matrix(init.other, E, 2 * D)  # V_o
        self.readout_context_UO = matrix(init.other, 2 * H, 2 * D)  # C_o
        self.readout_bias_O = _zeros(2 * D)
        self.output_VD = matrix(init.other, sizes.target_vocab, D)  # W_o

    def loss(self, batch: Batch, rngs: DropoutRngs | None, label_smoothing: float) -> Loss:
        """The loss of a batch of packed rows; `rngs=None` turns dropout off."""
        t_BTD, _ = self._decode(
            batch.src_BS, batch.tgt_in_BT, batch.src_segments_BS, batch.tgt_segments_BT, rngs
        )
        real_BT, output_VD = batch.tgt_segments_BT > 0, self.output_VD[...]
        return output_loss(t_BTD, output_VD, batch.tgt_out_BT, real_BT, label_smoothing, self.dtype)

    def __call__(
        self,
        src_BS: jax.Array,
        tgt_in_BT: jax.Array,
        src_segments_BS: jax.Array | None = None,
        tgt_segments_BT: jax.Array | None = None,
        rngs: DropoutRngs | None = None,
        *,
        return_weights: bool = False,
    ) -> jax.Array | tuple[jax.Array, jax.Array]:
        """Logits [B, T, V] of the token that follows each prefix of `tgt_in`.

        With `return_weights`, also those of the attention, [B, T, S].
        """
        t_BTD, weights_BTS = self._decode(src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT, rngs)
        logits_BTV = multiply("BTD,VD->BTV", t_BTD, self.output_VD[...], self.dtype)
        return (logits_BTV, weights_BTS) if return_weights else logits_BTV

    def encode(
        self,
        src_BS: jax.Array,
        src_segments_BS: jax.Array | None = None,
        rngs: DropoutRngs | None = None,
    ) -> Memory:
        """Appendix A.2.1, and s_0 of A.2.2."""
        segments_BS = _segments(src_BS, src_segments_BS)
        x_BSE = dropout(self.source_embedding_VE[...][src_BS], self.config.dropout, rngs)
        forward_BSH = self.encoder_forward.states(x_BSE, segments_BS, reverse=False)
        backward_BSH = self.encoder_backward.states(x_BSE, segments_BS, reverse=True)
        # At all tokens, since the first ones of packed sentences may be anywhere.
        initial_BSH = multiply("BSI,IH->BSH", backward_BSH, self.initial_HH[...], self.dtype)
        initial_BSH = jnp.tanh(initial_BSH + self.initial_bias_H[...][None, None])
        annotations_BSU = jnp.concatenate([forward_BSH, backward_BSH], axis=-1)
        annotations_BSU = dropout(annotations_BSU, self.config.dropout, rngs)
        keys_BSK = self.alignment.keys(annotations_BSU)
        return Memory(annotations_BSU, keys_BSK, initial_BSH)

    def _decode(
        self, src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT, rngs
    ) -> tuple[jax.Array, jax.Array]:
        """The maxout layer at all target positions [B, T, D]; the attention's weights."""
        src_segments_BS = _segments(src_BS, src_segments_BS)
        tgt_segments_BT = _segments(tgt_in_BT, tgt_segments_BT)
        memory = self.encode(src_BS, src_segments_BS, rngs)
        y_BTE = dropout(self.target_embedding_VE[...][tgt_in_BT], self.config.dropout, rngs)
        mask_BTS = Mask(tgt_segments_BT, src_segments_BS).dense()
        initial_BTH = _initial_states(memory, mask_BTS, src_segments_BS)

        def step(s_BH, inputs):
            x_BG, initial_BH, starts_B, mask_BS = inputs
            s_BH = jnp.where(starts_B[:, None], initial_BH, s_BH)
            next_BH, context_BMU, weights_BMS = self._step(
                s_BH[:, None], x_BG, memory, mask_BS[:, None]
            )
            return next_BH, (s_BH, context_BMU[:, 0], weights_BMS[:, 0])

        steps = jax.tree.map(
            lambda x: x.swapaxes(0, 1), (initial_BTH, _starts(tgt_segments_BT), mask_BTS)
        )
        steps = (self.decoder.inputs(y_BTE), *steps)
        _, of_steps = jax.lax.scan(step, jnp.zeros_like(initial_BTH[:, 0]), steps)
        s_BTH, context_BTU, weights_BTS = jax.tree.map(lambda x: x.swapaxes(0, 1), of_steps)
        t_BTD = self._readout(s_BTH, y_BTE, context_BTU)
        return dropout(t_BTD, self.config.dropout, rngs), weights_BTS

    def _step(
        self, s_BMH: jax.Array, x_NG: jax.Array, memory: Memory, mask_BMS: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Appendix A.2.2: s_i [N, H], c_i [B, M, U] and its weights, of s_{i-1} and E y_{i-1}."""
        context_BMU, weights_BMS = self.alignment(s_BMH, memory, mask_BMS)
        context_NU = context_BMU.reshape(-1, context_BMU.shape[-1])
        x_NG += multiply("NU,UG->NG", context_NU, self.context_UG[...], self.dtype)
        next_NH = self.decoder(s_BMH.reshape(-1, s_BMH.shape[-1]), x_NG)
        return next_NH, context_BMU, weights_BMS

    def _readout(self, s_BTH: jax.Array, y_BTE: jax.Array, context_BTU: jax.Array) -> jax.Array:
        """The maxout layer t_i of s_{i-1}, E y_{i-1} and c_i, [B, T, D]."""
        readout_BTO = (
            multiply("BTH,HO->BTO", s_BTH, self.readout_state_HO[...], self.dtype)
            + multiply("BTE,EO->BTO", y_BTE, self.readout_word_EO[...], self.dtype)
            + multiply("BTU,UO->BTO", context_BTU, self.readout_context_UO[...], self.dtype)
            + self.readout_bias_O[...][None, None]
        )
        # Pairs of columns, in the paper 2j - 1 and 2j: here j and D + j, which lie better.
        return jnp.maximum(*jnp.split(readout_BTO, 2, axis=-1))

    def init_cache(
        self, memory: Memory, src_BS: jax.Array, num_hypotheses: int, max_length: int
    ) -> Cache:
        """The cache of `num_hypotheses` (M) per sentence: the state s_0, whatever their length."""
        segments_BS = _segments(src_BS, None)
        mask_B1S = (segments_BS > 0)[:, None]
        s_BH = _initial_states(memory, mask_B1S, segments_BS)[:, 0]
        sentence = {"memory": memory, "mask": mask_B1S}
        hypothesis = jnp.repeat(s_BH, num_hypotheses, axis=0)
        return {"step": jnp.int32(0), "sentence": sentence, "hypothesis": hypothesis}

    def decode_step(self, tokens_N: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """Logits [N, V] of the token after `tokens_N`, the newest of each hypothesis."""
        memory, mask_B1S = cache["sentence"]["memory"], cache["sentence"]["mask"]
        s_NH, y_N1E = cache["hypothesis"], self.target_embedding_VE[...][tokens_N][:, None]
        s_BMH = s_NH.reshape(len(mask_B1S), -1, s_NH.shape[-1])
        x_NG = self.decoder.inputs(y_N1E)[0]
        next_NH, context_BMU, _ = self._step(s_BMH, x_NG, memory, mask_B1S)
        context_N1U = context_BMU.reshape(len(s_NH), 1, -1)
        t_N1D = self._readout(s_NH[:, None], y_N1E, context_N1U)
        logits_N1V = multiply("NTD,VD->NTV", t_N1D, self.output_VD[...], self.dtype)
        return logits_N1V[:, 0], {**cache, "step": cache["step"] + 1, "hypothesis": next_NH}


def _segments(tokens_BT: jax.Array, segments_BT: jax.Array | None) -> jax.Array:
    return (tokens_BT != PAD).astype(jnp.int32) if segments_BT is None else segments_BT


def _starts(segments_BT: jax.Array) -> jax.Array:
    """Where a sentence, or padding, begins."""
    return segments_BT != jnp.pad(segments_BT, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]


def _ends(segments_BT: jax.Array) -> jax.Array:
    """Where a sentence, or padding, ends."""
    return segments_BT != jnp.pad(segments_BT, ((0, 0), (0, 1)), constant_values=-1)[:, 1:]


def _initial_states(memory: Memory, mask_BTS: jax.Array, segments_BS: jax.Array) -> jax.Array:
    """s_0 of the sentence of each target position, [B, T, H]."""
    # A sum of one term: of the first token of this sentence.
    first_BTS = mask_BTS & _starts(segments_BS)[:, None]
    dtype = memory.initial_BSH.dtype
    return multiply("BTS,BSH->BTH", first_BTS.astype(dtype), memory.initial_BSH, dtype)


def _side_by_side(count: int, init: nnx.Initializer, shape: tuple[int, int], rngs: nnx.Rngs):
    """A parameter of several matrices, each begun by itself."""
    matrices = [init(rngs.params(), shape, jnp.float32) for _ in range(count)]
    return nnx.Param(jnp.concatenate(matrices, axis=1))


def _zeros(size: int) -> nnx.Param:
    return nnx.Param(jnp.zeros(size, jnp.float32))


def training_flops(
    config: RNNConfig, sizes: Sizes, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """FLOPs to train on each pair once: products, forward and (twice that) backward.

    Neither padding, dropout nor activations count, nor attention to others of a packed row.
    """
    E, H = config.embedding_size, config.hidden_size
    K, D = config.attention_size, config.maxout_size
    s, t = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    unit = 3 * H * (E + H)
    encoder = s * (2 * unit + 2 * H * K) + H * H
    decoder = t * (unit + 3 * H * 2 * H + H * K + 2 * D * (H + E + 2 * H) + D * sizes.target_vocab)
    attention = s * t * (K + 2 * H)
    return 3 * 2 * (encoder + decoder + attention)


FAMILY = Family(
    config=RNNConfig,
    build=lambda config, sizes, rngs: RNN(config, sizes, rngs=rngs),
    # Over tensor, which takes the vocabulary and the maxout layer, the states are copied: split,
    # every step of a recurrence would wait for messages. Vectors are copied, too.
    sharding=(
        (r"(source|target)_embedding_VE", P("tensor", "fsdp")),
        (r"(encoder_forward|encoder_backward|decoder)/(input_EG|gates_HX|candidate_HH)", P("fsdp")),
        (r"alignment/(query_HK|key_UK)", P("fsdp")),
        (r"initial_HH|context_UG", P("fsdp")),
        (r"readout_(state_HO|word_EO|context_UO)", P("fsdp")),
        (r"output_VD", P("tensor", "fsdp")),
        (r"(.+/)?(bias_G|key_bias_K|energy_K|initial_bias_H|readout_bias_O)", P()),
    ),
    flops=training_flops,
    packs=True,
)
