"""Logits rules, which say what outputs must be like. One search can join any number of them.

Before each token, the search asks a rule which continuations it allows. A rule may keep a state for
each hypothesis. The search hands the state on from a hypothesis to those that continue it.
"""

import dataclasses
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.vocabulary import BOS, EOS, PAD


class StepView(NamedTuple):
    """The view that rules have of the live hypotheses before these go on."""

    step: jax.Array  # the number of tokens of each hypothesis, without BOS
    tokens_BML: jax.Array  # BOS, the tokens so far, and PAD
    attention_NS: jax.Array | None  # of this step over source tokens, if the cache has it
    vocab_size: int


class LogitsRule:
    """The base of all rules; it allows everything."""

    def start(self, batch_size: int, M: int) -> Any:
        """The state before the first token: arrays that begin with B and M."""
        del batch_size, M
        return ()

    def observe(self, state: Any, view: StepView) -> Any:
        """The state after a look at this view."""
        del view
        return state

    def rescore(self, logits_NV: jax.Array, view: StepView) -> jax.Array:
        """The logits that the search goes by."""
        del view
        return logits_NV

    def mask(self, state: Any, view: StepView) -> jax.Array | None:
        """True for tokens that may come next, [B, M, V] or with 1 in place of M; None: all."""
        del state, view

    def bonus(self, state: Any) -> jax.Array | float:
        """The amount added to the score of a hypothesis that ends now, [B, M]; at most 0."""
        del state
        return 0.0

    def advance(self, state: Any, token_BM: jax.Array) -> Any:
        """The state with the newest tokens, from that of the hypotheses that they continue."""
        del token_BM
        return state

    def of_rows(self, rows_b: jax.Array) -> Self:
        """The rule for only these sentences: all its arrays begin with B."""
        fields = dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
        values = {field.name: getattr(self, field.name) for field in fields}
        arrays = {name: x for name, x in values.items() if isinstance(x, jax.Array | np.ndarray)}
        changes = {name: jnp.asarray(x)[rows_b] for name, x in arrays.items()}
        return dataclasses.replace(self, **changes) if changes else self


@dataclasses.dataclass(frozen=True)
class MinLength(LogitsRule):
    """Allows no output of fewer tokens, EOS included."""

    min_length_B: jax.Array

    def mask(self, state, view):
        is_enough_B = view.step + 1 >= self.min_length_B
        return (is_enough_B[:, None] | (jnp.arange(view.vocab_size) != EOS)[None])[:, None]


@dataclasses.dataclass(frozen=True)
class NoRepeat(LogitsRule):
    """Allows no n tokens in a row that the output already has."""

    n: int

    def mask(self, state, view):
        tokens_BML, n = view.tokens_BML, self.n
        B, M, L = tokens_BML.shape
        if n > L:
            return None
        # The n-gram that begins at place p: all but its last token, and the last separately.
        number_P = jnp.arange(L - n + 1)
        grams_BMPn = tokens_BML[:, :, number_P[:, None] + jnp.arange(n)[None]]
        begin = view.step - (n - 2)  # of the last n - 1 tokens
        newest_BMn = jax.lax.dynamic_slice_in_dim(
            jnp.pad(tokens_BML, ((0, 0), (0, 0), (n, 0))), begin + n, n - 1, axis=2
        )
        is_repeat_BMP = (grams_BMPn[..., :-1] == newest_BMn[:, :, None]).all(axis=-1)
        is_repeat_BMP &= (number_P + n - 1 <= view.step)[None, None]
        # Other places ban PAD, which is never chosen anyway.
        banned_BMP = jnp.where(is_repeat_BMP, grams_BMPn[..., -1], PAD)
        rows_B11, rows_1M1 = jnp.arange(B)[:, None, None], jnp.arange(M)[None, :, None]
        allowed_BMV = jnp.ones((B, M, view.vocab_size), bool)
        return allowed_BMV.at[rows_B11, rows_1M1, banned_BMP].set(False)


@dataclasses.dataclass(frozen=True)
class RepetitionPenalty(LogitsRule):
    """Makes tokens that the output already has less probable (Keskar et al. 2019, 1909.05858).

    Their logits are divided by the penalty, as in Section 4.1 of the paper. Those below 0 are
    multiplied by it, because division would raise them. CTranslate2 and Hugging Face's sampling do
    the same.
    """

    penalty: float

    def rescore(self, logits_NV, view):
        N = logits_NV.shape[0]  # not known in an export
        tokens_NL = view.tokens_BML.reshape(N, -1)
        old_NL = jnp.take_along_axis(logits_NV, tokens_NL, axis=1)
        new_NL = jnp.where(old_NL < 0, old_NL * self.penalty, old_NL / self.penalty)
        # BOS and PAD are never chosen, so their share of the probability stays.
        new_NL = jnp.where((tokens_NL == BOS) | (tokens_NL == PAD), old_NL, new_NL)
        # A token that occurs twice is written twice, with the same value.
        return logits_NV.at[jnp.arange(N)[:, None], tokens_NL].set(new_NL)


@dataclasses.dataclass(frozen=True)
class Prefix(LogitsRule):
    """The required beginning of each output."""

    prefix_BP: jax.Array  # PAD where the output is free
    given: int = 0  # the first tokens that have probability 1, as the name of a language

    def rescore(self, logits_NV, view):
        if not self.given:
            return logits_NV
        M, V = view.tokens_BML.shape[1], view.vocab_size
        is_it_BV = jnp.arange(V)[None] == self._token_B(view)[:, None]
        only_BMV = jnp.where(is_it_BV, 0.0, -jnp.inf)[:, None].repeat(M, axis=1)
        return jnp.where(view.step < self.given, only_BMV.reshape(logits_NV.shape), logits_NV)

    def _token_B(self, view: StepView) -> jax.Array:
        at = jnp.minimum(view.step, self.prefix_BP.shape[1] - 1)
        return jax.lax.dynamic_index_in_dim(self.prefix_BP, at, axis=1, keepdims=False)

    def mask(self, state, view):
        token_B = self._token_B(view)
        is_free_B = (token_B == PAD) | (view.step >= self.prefix_BP.shape[1])
        return (is_free_B[:, None] | (jnp.arange(view.vocab_size)[None] == token_B[:, None]))[
            :, None
        ]


@dataclasses.dataclass(frozen=True)
class Coverage(LogitsRule):
    """Adds beta * sum over source tokens i of log min(sum over steps j of a_ij, 1).

    Wu et al. 2016, Equation 14. It is 0 if every source token has received the attention of one
    whole step.
    """

    beta: float
    real_BS: jax.Array  # all source tokens but padding

    def start(self, batch_size, M):
        return jnp.zeros((batch_size, M, self.real_BS.shape[1]), jnp.float32)

    def observe(self, state, view):
        return state + view.attention_NS.reshape(state.shape)

    def bonus(self, state):
        tiny = jnp.finfo(state.dtype).tiny  # the logarithm of 0 is lower than all others
        logs_BMS = jnp.log(jnp.clip(state, tiny, 1.0))
        return self.beta * jnp.sum(logs_BMS, axis=2, where=self.real_BS[:, None])
