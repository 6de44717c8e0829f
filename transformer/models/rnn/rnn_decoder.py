"""The decoder of an RNN encoder-decoder: attention, cells and readout.

Letters of this file besides those of recurrence.py and alignment.py: E word embedding, X a summary
of the source, O readout before its activation, R after it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.models.numerics import DropoutRngs, dropout, multiply
from transformer.models.rnn.alignment import Alignment
from transformer.models.rnn.recurrence import (
    CELLS,
    INITIALIZATIONS,
    State,
    Weights,
    begin,
    products,
    recur,
    run_cell,
    steps_first,
)
from transformer.models.rnn.rnn_config import READOUTS, RNNConfig


class Source(NamedTuple):
    """The source as the decoder sees it."""

    annotations_BSU: jax.Array
    keys_BSK: jax.Array | None  # of the annotations, for scores
    summary_BTX: jax.Array  # of the sentence of each target position


class Decoder(nnx.Module):
    """All between the target's embeddings and the softmax layer."""

    def __init__(self, config: RNNConfig, rngs: nnx.Rngs):
        c = self.config = config
        self.dtype = jnp.dtype(c.dtype)
        E, H, U = c.embedding_size, c.hidden_size, c.annotation_size
        make = CELLS[c.cell]
        init = INITIALIZATIONS[c.initialization]
        options = {"initialization": init, "dtype": self.dtype, "rngs": rngs}
        # The second cell of "between" takes only the context.
        inputs = (E, U) if c.attend == "between" else (E, *[H] * (c.num_layers - 1))
        self.cells = nnx.List([make(size, H, biases=c.gate_biases, **options) for size in inputs])
        if c.initial_state != "copy":
            shape = c.summary_size, c.num_layers * make.parts * H
            self.initial_XI = init.matrix("other", shape, rngs)
            self.initial_bias_I = init.vector(shape[1], rngs)
        if c.attention != "none" and c.attend == "previous":
            self.context_UG = init.matrix("other", (U, H), rngs, make.gates)
        if c.input_feeding:
            self.feed_RG = init.matrix("other", (c.readout_size, H), rngs, make.gates)
        if c.attends:
            self.alignment = Alignment(c, rngs)
        readout = READOUTS[c.readout]
        if readout.activation:
            size = readout.inputs * c.readout_size
            self.readout = nnx.Dict(
                {p: init.matrix("other", (c.part_sizes[p], size), rngs) for p in readout.parts}
            )
            if c.readout_bias:
                self.readout_bias_O = init.vector(size, rngs)

    def __call__(
        self,
        y_BTE: jax.Array,
        starts_BT: jax.Array,
        source: Source,
        mask_BTS: jax.Array,
        rngs: DropoutRngs | None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """The readout at all target positions [B, T, R]; the attention's weights [B, T, S].

        starts: whether a sentence begins there.
        """
        c = self.config
        in_loop = c.attends and (c.attend != "current" or c.input_feeding)
        run = self._step_by_step if in_loop else self._layer_by_layer
        return run(y_BTE, starts_BT, source, mask_BTS, rngs)

    def _layer_by_layer(self, y_BTE, starts_BT, source, mask_BTS, rngs):
        """Each layer over the whole target; then the attention of all states at once."""
        c, x_BTI, context_BTU, weights_BTS = self.config, y_BTE, None, None
        initial = self._initial(source.summary_BTX)
        for layer, (cell, first) in enumerate(zip(self.cells, initial, strict=True)):
            more_BTG = None
            if layer:
                x_BTI = dropout(x_BTI, c.layer_dropout, rngs)
            elif c.attention == "fixed":
                context_BTU = self._fixed_context(source.summary_BTX)
                table_UG = self.context_UG[...]
                more_BTG = multiply("BTU,UG->BTG", context_BTU, table_UG, self.dtype)
            state = run_cell(cell, x_BTI, starts_BT, first, more_BTG=more_BTG)
            x_BTI = state[0]
        if c.attends:
            weights = self.alignment.weights(source.annotations_BSU, source.keys_BSK)
            attend = products(weights, self.dtype)
            fixed = self.alignment.fixed(source.keys_BSK)
            context_BTU, weights_BTS = self.alignment(attend, fixed, x_BTI, mask_BTS)
        previous_BTH = jnp.pad(x_BTI, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        previous_BTH = jnp.where(starts_BT[..., None], initial[-1][0], previous_BTH)
        parts = {"state": x_BTI, "previous": previous_BTH, "word": y_BTE, "context": context_BTU}
        return self._readout(parts), weights_BTS

    def _step_by_step(self, y_BTE, starts_BT, source, mask_BTS, rngs):
        """All layers and the attention at each token."""
        c, (B, T, _) = self.config, y_BTE.shape
        keep_BTLH = None
        if c.num_layers > 1 and c.layer_dropout and rngs is not None:
            ones = jnp.ones((B, T, c.num_layers - 1, c.hidden_size), y_BTE.dtype)
            keep_BTLH = dropout(ones, c.layer_dropout, rngs)

        def step(product, fixed, carry, inputs):
            x_BG, starts_B1, first, mask_BS, keep_BLH = inputs
            states, feed_BR = carry
            states = tuple(
                begin(state, of_layer, starts_B1)
                for state, of_layer in zip(states, first, strict=True)
            )
            previous_BH = states[-1][0]
            if feed_BR is not None:
                feed_BR = jnp.where(starts_B1, 0, feed_BR)
            states, context_BU, weights_BMS, feed_BR = self._step(
                product, fixed, states, feed_BR, x_BG, mask_BS[:, None], keep_BLH
            )
            outputs = (states[-1][0], previous_BH, context_BU, weights_BMS[:, 0], feed_BR)
            return (states, feed_BR), outputs

        initial = self._initial(source.summary_BTX)
        x_TBG = self.cells[0].inputs(y_BTE)
        per_step = (initial, mask_BTS, keep_BTLH)
        first, mask_TBS, keep_TBLH = steps_first(per_step)
        states = jax.tree.map(lambda x: jnp.zeros_like(x[:, 0]), initial)
        feed_BR = jnp.zeros((B, c.readout_size), x_TBG.dtype) if c.input_feeding else None
        xs = x_TBG, starts_BT.T[..., None], first, mask_TBS, keep_TBLH
        weights, fixed = self._weights(source)
        _, outputs = recur(step, weights, fixed, (states, feed_BR), xs, dtype=self.dtype)
        state_BTH, previous_BTH, context_BTU, weights_BTS, feed_BTR = steps_first(outputs)
        if c.input_feeding:
            return feed_BTR, weights_BTS
        parts = {"state": state_BTH, "previous": previous_BTH, "word": y_BTE}
        return self._readout(parts | {"context": context_BTU}), weights_BTS

    def _weights(self, source: Source) -> tuple[Weights, dict[str, Any]]:
        """The weights of `_step`, and the other arrays that it needs."""
        c, weights, fixed = self.config, {}, {}
        for i, cell in enumerate(self.cells):
            weights |= {f"{i}/{name}": weight for name, weight in cell.weights().items()}
            fixed[f"cell {i}"] = cell.fixed()
            if i:
                weights[f"{i}/input"] = ("BI,IG->BG", cell.input_IG[...])
                fixed[f"bias {i}"] = cell.bias() if c.gate_biases else None
        if c.attends:
            weights |= self.alignment.weights(source.annotations_BSU, source.keys_BSK)
            fixed["alignment"] = self.alignment.fixed(source.keys_BSK)
        if c.attends and c.attend == "previous":
            weights["context"] = ("BU,UG->BG", self.context_UG[...])
        if c.input_feeding:
            weights["feed"] = ("BR,RG->BG", self.feed_RG[...])
            for part, table in self.readout.items():
                weights[f"readout {part}"] = ("BX,XO->BO", table[...])
            fixed["readout"] = self.readout_bias_O[...] if c.readout_bias else None
        return weights, fixed

    def _step(self, product, fixed, states, feed_NR, x_NG, mask_BMS, keep_NLH=None):
        """One token of N = B M hypotheses through all layers.

        Returns the states, the context [N, U], the attention's weights [B, M, S] and the readout
        that feeds the next step. x: what the words add to the first layer's gates.
        """
        c, context_NU, weights_BMS, new = self.config, None, None, []

        def run(i, state, x_NG):
            def of_cell(name, x):
                return product(f"{i}/{name}", x)

            if i:
                x_NG = of_cell("input", x_NG)
                if fixed[f"bias {i}"] is not None:
                    x_NG += fixed[f"bias {i}"][None]
            return self.cells[i](of_cell, fixed[f"cell {i}"], state, x_NG)

        def attend(s_NH):
            s_BMH = s_NH.reshape(mask_BMS.shape[0], -1, s_NH.shape[-1])
            context, weights = self.alignment(product, fixed["alignment"], s_BMH, mask_BMS)
            return context.reshape(s_NH.shape[0], -1), weights

        if c.input_feeding:
            x_NG += product("feed", feed_NR)
        if c.attends and c.attend == "previous":
            context_NU, weights_BMS = attend(states[-1][0])
            x_NG += product("context", context_NU)
        if c.attend == "between":
            state = run(0, states[0], x_NG)
            context_NU, weights_BMS = attend(state[0])
            new = [run(1, state, context_NU)]
        else:
            for i, state in enumerate(states):
                if i:
                    x_NG = new[-1][0] if keep_NLH is None else new[-1][0] * keep_NLH[:, i - 1]
                new.append(run(i, state, x_NG))
        if c.attends and c.attend == "current":
            context_NU, weights_BMS = attend(new[-1][0])
        if c.input_feeding:
            feed_NR = product("readout state", new[-1][0]) + product("readout context", context_NU)
            if fixed["readout"] is not None:
                feed_NR += fixed["readout"][None]
            feed_NR = jnp.tanh(feed_NR)
        return tuple(new), context_NU, weights_BMS, feed_NR

    def _readout(self, parts: dict[str, jax.Array]) -> jax.Array:
        """The input of the softmax layer, [B, T, R]."""
        c, readout = self.config, READOUTS[self.config.readout]
        if not readout.activation:
            return jnp.concatenate([parts[part] for part in readout.parts], axis=-1)
        x_BTO = sum(
            multiply("BTX,XO->BTO", parts[part], self.readout[part][...], self.dtype)
            for part in readout.parts
        )
        if c.readout_bias:
            x_BTO += self.readout_bias_O[...][None, None]
        return readout.activation(x_BTO)

    def first_states(self, source: Source, num_hypotheses: int) -> dict[str, Any]:
        """The first states of a search, a row for each of M hypotheses per sentence. T is 1."""
        states = jax.tree.map(
            lambda x: jnp.repeat(x[:, 0], num_hypotheses, axis=0), self._initial(source.summary_BTX)
        )
        if not self.config.input_feeding:
            return {"states": states, "feed": None}
        top_NH = states[-1][0]
        feed_NR = jnp.zeros((top_NH.shape[0], self.config.readout_size), top_NH.dtype)
        return {"states": states, "feed": feed_NR}

    def step(
        self, y_N1E: jax.Array, source: Source, mask_B1S: jax.Array, hypothesis: dict[str, Any]
    ) -> tuple[jax.Array, dict[str, Any], jax.Array | None]:
        """The readout [N, 1, R] after the newest word of each hypothesis, its new states, and the
        weights [B, M, S] of its attention."""
        states, feed_NR = hypothesis["states"], hypothesis["feed"]
        parts = {"previous": states[-1][0], "word": y_N1E[:, 0]}
        x_NG = self.cells[0].inputs(y_N1E)[0]
        if self.config.attention == "fixed":
            context_B1U = self._fixed_context(source.summary_BTX)
            repeats = y_N1E.shape[0] // context_B1U.shape[0]
            parts["context"] = jnp.repeat(context_B1U[:, 0], repeats, axis=0)
            x_NG += multiply("NU,UG->NG", parts["context"], self.context_UG[...], self.dtype)
        weights, fixed = self._weights(source)
        product = products(weights, self.dtype)
        states, context_NU, weights_BMS, feed_NR = self._step(
            product, fixed, states, feed_NR, x_NG, mask_B1S
        )
        hypothesis = {"states": states, "feed": feed_NR}
        if feed_NR is not None:
            return feed_NR[:, None], hypothesis, weights_BMS
        parts["state"] = states[-1][0]
        if context_NU is not None:
            parts["context"] = context_NU
        readout_N1R = self._readout({name: x[:, None] for name, x in parts.items()})
        return readout_N1R, hypothesis, weights_BMS

    def _initial(self, summary_BTX: jax.Array) -> tuple[State, ...]:
        """The decoder's first state, of each layer and each part, [B, T, H]."""
        c, parts = self.config, CELLS[self.config.cell].parts
        if c.initial_state != "copy":
            summary_BTX = multiply("BTX,XI->BTI", summary_BTX, self.initial_XI[...], self.dtype)
            summary_BTX = jnp.tanh(summary_BTX + self.initial_bias_I[...][None, None])
        arrays = jnp.split(summary_BTX, c.num_layers * parts, axis=-1)
        return tuple(tuple(arrays[i : i + parts]) for i in range(0, len(arrays), parts))

    def _fixed_context(self, summary_BTX: jax.Array) -> jax.Array:
        """The context of attention "fixed" (Cho et al. 2014): the encoder's last state."""
        H, c = self.config.hidden_size, self.config
        if c.initial_state != "copy":
            return summary_BTX
        start = (c.num_layers - 1) * CELLS[c.cell].parts * H
        return summary_BTX[..., start : start + H]
