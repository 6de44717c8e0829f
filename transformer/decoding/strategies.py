"""Search strategies: beam, diverse beam, sampling, constrained."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.vocabulary import EOS, PAD
from transformer.decoding.rules import LogitsRule, StepView
from transformer.decoding.top_k import top_k


class Strategy(LogitsRule):
    """The way a search chooses continuations. It may be a rule as well."""

    def first_log_probs(self, batch_size: int, M: int) -> jax.Array:
        """Log-probabilities before the first token: all hypotheses are equal, so one is alive."""
        return jnp.full((batch_size, M), -jnp.inf, jnp.float32).at[:, 0].set(0.0)

    def candidates(
        self, state, view: StepView, log_probs_BMV: jax.Array, live_log_probs_BM: jax.Array
    ) -> jax.Array:
        """Continuations [B, C], each as its index in [M * V].

        Those that end in EOS finish. The first M of the others go on. PAD stands for none.
        """
        raise NotImplementedError

    def distinct(self, tokens_BCL: jax.Array) -> jax.Array | bool:
        """False, [B, C], for a candidate that repeats another one."""
        del tokens_BCL
        return True


class Beam(Strategy):
    """The best continuations of all hypotheses (Section 6.1).

    EOS finishes a hypothesis anywhere among the best 2M; with M = 1, only as the best one, which is
    greedy search.
    """

    def candidates(self, state, view, log_probs_BMV, live_log_probs_BM):
        total_BMV = live_log_probs_BM[:, :, None] + log_probs_BMV
        B, M, V = total_BMV.shape
        return best_of_beam(total_BMV.reshape(B, M * V), M)


def best_of_beam(total_BX: jax.Array, M: int) -> jax.Array:
    """The best 2M. At most M of them end in EOS, so at least M go on."""
    # A greedy search has one candidate; if that is EOS, nothing goes on.
    return top_k(total_BX, 1 if M == 1 else min(2 * M, total_BX.shape[1]))[1]


@dataclasses.dataclass(frozen=True)
class DiverseBeam(Strategy):
    """Groups of hypotheses, each a beam of its own (Vijayakumar et al. 2016, Hamming diversity).

    They go on in turn. A token that hypotheses of earlier groups have just taken costs this group
    `strength` nats for each of them. Scores do not include this cost.
    """

    groups: int
    strength: float

    def first_log_probs(self, batch_size, M):
        size = M // self.groups
        return jnp.tile(super().first_log_probs(batch_size, size), (1, self.groups))

    def candidates(self, state, view, log_probs_BMV, live_log_probs_BM):
        total_BMV = live_log_probs_BM[:, :, None] + log_probs_BMV
        B, M, V = total_BMV.shape
        size, live, ended = M // self.groups, [], []
        taken_BV = jnp.zeros((B, V), jnp.float32)
        for begin in range(0, M, size):
            worth_BmV = total_BMV[:, begin : begin + size] - self.strength * taken_BV[:, None]
            index_BC = best_of_beam(worth_BmV.reshape(B, size * V), size) + begin * V
            ends_BC = index_BC % V == EOS
            _, first_Bm = jax.lax.top_k((~ends_BC).astype(jnp.int32), size)
            live_BC = jnp.where(ends_BC, PAD, index_BC)
            # Each group has its places among the first M, even if nothing of it goes on.
            live.append(jnp.take_along_axis(live_BC, first_Bm, axis=1))
            ended.append(jnp.where(ends_BC, index_BC, PAD))
            taken_BV = taken_BV.at[jnp.arange(B)[:, None], live[-1] % V].add(1.0)
        return jnp.concatenate([*live, *ended], axis=1)

    def distinct(self, tokens_BCL):
        # Two groups may find the same output at the same time.
        same_BCC = (tokens_BCL[:, :, None] == tokens_BCL[:, None]).all(axis=-1)
        return ~jnp.tril(same_BCC, -1).any(axis=2)


@dataclasses.dataclass(frozen=True)
class Sample(Strategy):
    """Each hypothesis draws its next token by itself.

    The probabilities are p^(1 / temperature), normalised. Tokens are drawn only from the top_k most
    probable (0: all), and from the fewest whose probabilities sum up to top_p (Holtzman et al.
    2020), at least one. Scores are the model's own log-probabilities.
    """

    temperature: float
    top_k: int
    top_p: float
    key_B: jax.Array  # of each sentence

    def first_log_probs(self, batch_size, M):
        return jnp.zeros((batch_size, M), jnp.float32)

    def candidates(self, state, view, log_probs_BMV, live_log_probs_BM):
        M, V = log_probs_BMV.shape[1:]
        logits_BMV = self.restricted(log_probs_BMV)
        keys_B = jax.vmap(jax.random.fold_in, (0, None))(self.key_B, view.step)
        token_BM = jax.vmap(jax.random.categorical)(keys_B, logits_BMV)
        index_BM = token_BM + jnp.arange(M)[None] * V
        ends_BM = token_BM == EOS
        # A hypothesis keeps its slot.
        both = jnp.where(ends_BM, PAD, index_BM), jnp.where(ends_BM, index_BM, PAD)
        return jnp.concatenate(both, axis=1)

    def restricted(self, log_probs_BMV: jax.Array) -> jax.Array:
        """The logits to draw from; -inf for tokens that are left out."""
        if 0 < self.top_k < log_probs_BMV.shape[-1]:
            least_BM1 = jax.lax.top_k(log_probs_BMV, self.top_k)[0][..., -1:]
            log_probs_BMV = jnp.where(log_probs_BMV >= least_BM1, log_probs_BMV, -jnp.inf)
        logits_BMV = log_probs_BMV / self.temperature
        if self.top_p < 1:
            sorted_BMV = jnp.sort(jax.nn.softmax(logits_BMV), axis=-1, descending=True)
            before_BMV = jnp.cumsum(sorted_BMV, axis=-1) - sorted_BMV
            in_BMV = before_BMV < self.top_p
            least_BM1 = jnp.min(sorted_BMV, axis=-1, keepdims=True, where=in_BMV, initial=1.0)
            logits_BMV = jnp.where(jax.nn.softmax(logits_BMV) >= least_BM1, logits_BMV, -jnp.inf)
        return logits_BMV


@dataclasses.dataclass(frozen=True)
class Constrained(Strategy):
    """Beam search for outputs that contain all phrases of a sentence, in any order.

    Hypotheses with the same number of phrase tokens form a bank. `beam_size` of each bank go on,
    and more where other banks have fewer (after Post & Vilar 2018). So likelier hypotheses do not
    push out those with many phrase tokens. EOS is allowed when all phrases are there. A search
    needs M = beam_size * (1 + the most phrase tokens of a sentence); other sentences use fewer.
    """

    beam_size: int
    phrase_BPC: jax.Array  # tokens, then PAD; P phrases, the last ones empty
    # The number of a phrase's tokens that an output ends with, by the number before and by c, the
    # index in the phrase of the token that follows.
    next_BPCC: jax.Array

    def start(self, batch_size, M):
        """The tokens of each phrase that a hypothesis ends with; all once the phrase is there."""
        return jnp.zeros((batch_size, M, self.phrase_BPC.shape[1]), jnp.int32)

    def mask(self, state, view):
        done_BM = (state == self._lengths_B1P()).all(axis=-1)
        return done_BM[:, :, None] | (jnp.arange(view.vocab_size) != EOS)[None, None]

    def advance(self, state, token_BM):
        # Before the first token there is nothing to match: that PAD matches PAD has no effect.
        match_BMPC = self.phrase_BPC[:, None] == token_BM[:, :, None, None]
        match_BMPC &= (self.phrase_BPC != PAD)[:, None]
        rows = jnp.arange(len(state))[:, None, None]
        phrases = jnp.arange(state.shape[2])[None, None]
        # A phrase that is there has no next token; the value read for it is not used.
        after_BMPC = self.next_BPCC[rows, phrases, jnp.minimum(state, match_BMPC.shape[3] - 1)]
        after_BMP = jnp.max(jnp.where(match_BMPC, after_BMPC, 0), axis=-1)
        return jnp.where(state == self._lengths_B1P(), state, after_BMP)

    def candidates(self, state, view, log_probs_BMV, live_log_probs_BM):
        total_BMV = live_log_probs_BM[:, :, None] + log_probs_BMV
        B, M, V = total_BMV.shape
        P, C = self.phrase_BPC.shape[1:]
        total_BX = total_BMV.reshape(B, M * V)
        size_B1 = self.beam_size * (1 + self._lengths_B1P().sum(axis=2))  # of the sentence's beam
        # 1. The best; of each hypothesis the best two, else those with many tokens of phrases could
        #    not go on; and the next token of each phrase.
        _, own_N2 = top_k(total_BMV.reshape(B * M, V), 2)
        own_BM2 = own_N2.reshape(B, M, 2) + jnp.arange(M)[None, :, None] * V
        rows = jnp.arange(B)[:, None, None]
        phrases = jnp.arange(P)[None, None]
        needed_BMP = self.phrase_BPC[rows, phrases, jnp.minimum(state, C - 1)]
        is_missing_BMP = state < self._lengths_B1P()
        needed_BMP = jnp.where(is_missing_BMP, needed_BMP + jnp.arange(M)[None, :, None] * V, PAD)
        best_BC = best_of_beam(total_BX, M)
        num_best_B1 = jnp.where(size_B1 == 1, 1, 2 * size_B1)
        best_BC = jnp.where(jnp.arange(best_BC.shape[1])[None] < num_best_B1, best_BC, PAD)
        others_BC = jnp.concatenate([own_BM2.reshape(B, -1), needed_BMP.reshape(B, -1)], axis=1)
        others_BC = jnp.where(size_B1 > self.beam_size, others_BC, PAD)
        index_BC = jnp.concatenate([best_BC, others_BC], axis=1)
        is_again_BC = jnp.tril(index_BC[:, :, None] == index_BC[:, None], -1).any(axis=2)
        index_BC = jnp.where(is_again_BC, PAD, index_BC)
        score_BC = jnp.take_along_axis(total_BX, index_BC, axis=1)

        # 2. The share of each bank, in the order of scores; then what is left.
        parent_BC = index_BC // V
        state_BCP = jnp.take_along_axis(state, parent_BC[:, :, None], axis=1)
        bank_BC = self._progress(self.advance(state_BCP, index_BC % V))
        goes_on_BC = (index_BC % V != EOS) & (score_BC > -jnp.inf)
        is_better_BCC = score_BC[:, None] > score_BC[:, :, None]
        is_better_BCC |= (score_BC[:, None] == score_BC[:, :, None]) & jnp.tri(
            index_BC.shape[1], k=-1, dtype=bool
        )[None]
        is_rival_BCC = (bank_BC[:, None] == bank_BC[:, :, None]) & goes_on_BC[:, None]
        rank_BC = jnp.sum(is_better_BCC & is_rival_BCC, axis=2)
        group_BC = jnp.where(goes_on_BC, jnp.where(rank_BC < self.beam_size, 0, 1), 2)
        order_BC = jnp.lexsort((-score_BC, group_BC), axis=1)
        index_BC = jnp.take_along_axis(index_BC, order_BC, axis=1)
        goes_on_BC = jnp.take_along_axis(goes_on_BC, order_BC, axis=1)
        is_beyond_BC = goes_on_BC & (jnp.arange(index_BC.shape[1])[None] >= size_B1)
        return jnp.where(is_beyond_BC, PAD, index_BC)

    def _lengths_B1P(self) -> jax.Array:
        return (self.phrase_BPC != PAD).sum(axis=-1)[:, None]

    def _progress(self, state_BMP: jax.Array) -> jax.Array:
        """Tokens of the phrases that are there, plus those of the longest part of another one."""
        is_done_BMP = state_BMP == self._lengths_B1P()
        done_BM = jnp.sum(state_BMP, axis=-1, where=is_done_BMP)
        return done_BM + jnp.max(jnp.where(is_done_BMP, 0, state_BMP), axis=-1)


def phrase_tables(
    phrases: Sequence[Sequence[int]], P: int, C: int
) -> tuple[np.ndarray, np.ndarray]:
    """A sentence's rows of the fields of `Constrained`, for P phrases of C tokens at most."""
    phrase_PC, next_PCC = np.full((P, C), PAD, np.int32), np.zeros((P, C, C), np.int32)
    for p, phrase in enumerate(phrases):
        phrase = list(phrase)
        phrase_PC[p, : len(phrase)] = phrase
        for have in range(len(phrase)):
            for c, token in enumerate(phrase):
                ends = [*phrase[:have], token]
                lengths = range(len(ends), 0, -1)
                next_PCC[p, have, c] = next((n for n in lengths if ends[-n:] == phrase[:n]), 0)
    return phrase_PC, next_PCC
