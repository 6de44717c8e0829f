"""Beam search (Section 6.1) over any step function; it never sees a model."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer.data.vocabulary import BOS, EOS, PAD
from transformer.decoding.top_k import log_softmax, top_k
from transformer.models.cache import with_room

Cache = dict[str, Any]
LARGE_CACHE = 2**25  # bytes of keys and values


class Hypotheses(NamedTuple):
    """The finished hypotheses of each sentence, best first.

    An unfilled place has score -inf. Tokens include the final EOS, then PAD.
    """

    tokens_BML: jax.Array
    scores_BM: jax.Array  # log-probability divided by the length penalty
    log_probs_BM: jax.Array  # natural logarithm, EOS included


class _State(NamedTuple):
    step: jax.Array
    cache: Cache
    live_tokens_BML: jax.Array
    live_log_probs_BM: jax.Array
    finished: Hypotheses


def gnmt_length_penalty(length: jax.Array, alpha: float) -> jax.Array:
    """((5 + length) / 6)^alpha, Wu et al. 2016, Equation 14; the length includes EOS."""
    return ((5 + length) / 6) ** alpha


def beam_search(
    step_fn: Callable[[jax.Array, Cache], tuple[jax.Array, Cache]],
    cache: Cache,
    max_length_B: jax.Array,
    *,
    beam_size: int,
    alpha: float,
    longest: int,
) -> Hypotheses:
    """The best outputs by log-probability / length penalty, alpha >= 0.

    step_fn(tokens_N, cache) -> (logits_NV, cache): see models/cache.py for the cache.
    max_length_B: the most tokens of each sentence's output, EOS included; at that length the
    search forces EOS (with its own probability). `longest` is a static bound on them.

    The search ends for a sentence when none of its live hypotheses can still beat its best
    finished one, however they go on, so the first hypothesis is what a search without early
    termination would give. EOS counts as finished wherever it stands among the best 2M
    continuations; with beam 1, only where it is the best one, which makes that the greedy search.
    """
    batch_size, M = max_length_B.shape[0], beam_size
    max_penalty_B = gnmt_length_penalty(max_length_B, alpha)

    def unsettled(state: _State) -> jax.Array:
        """Sentences [B] whose best live hypothesis may still win."""
        # Log-probabilities only fall, and the penalty of the longest output divides most.
        bound_B = state.live_log_probs_BM[:, 0] / max_penalty_B
        return (state.step < max_length_B) & (bound_B > state.finished.scores_BM[:, 0])

    def extend(state: _State) -> _State:
        # 1. The probability of every continuation of every live hypothesis.
        newest_BM = jax.lax.dynamic_index_in_dim(
            state.live_tokens_BML, state.step, axis=2, keepdims=False
        )
        logits_NV, cache = step_fn(newest_BM.reshape(-1), state.cache)
        V = logits_NV.shape[-1]
        log_probs_BMV = log_softmax(logits_NV).reshape(batch_size, M, V)
        is_last_B = state.step + 1 >= max_length_B
        forbidden_BV = is_last_B[:, None] & (jnp.arange(V) != EOS)[None]
        # PAD and BOS are never output.
        forbidden_BV |= ((jnp.arange(V) == PAD) | (jnp.arange(V) == BOS))[None]
        log_probs_BMV = jnp.where(forbidden_BV[:, None], -jnp.inf, log_probs_BMV)
        total_BMV = state.live_log_probs_BM[:, :, None] + log_probs_BMV

        # 2. The best 2M: at most M of them end in EOS, so at least M go on. A greedy search has
        #    one, and with EOS nothing that goes on.
        candidates = 1 if M == 1 else min(2 * M, M * V)
        best_BC, index_BC = top_k(total_BMV.reshape(batch_size, M * V), candidates)
        parent_BC, token_BC = index_BC // V, index_BC % V
        tokens_BCL = jnp.take_along_axis(state.live_tokens_BML, parent_BC[:, :, None], axis=1)
        tokens_BCL = jax.lax.dynamic_update_slice_in_dim(
            tokens_BCL, token_BC[:, :, None], state.step + 1, axis=2
        )
        ends_BC = token_BC == EOS

        # 3. Those that end join the finished ones, of which the best M are kept.
        penalty = gnmt_length_penalty(state.step + 1, alpha)
        ended = Hypotheses(
            tokens_BCL[:, :, 1:],
            jnp.where(ends_BC, best_BC / penalty, -jnp.inf),
            jnp.where(ends_BC, best_BC, -jnp.inf),
        )
        # A sentence that is settled keeps what it has, whatever others in its batch still do.
        ended = ended._replace(
            scores_BM=jnp.where(unsettled(state)[:, None], ended.scores_BM, -jnp.inf)
        )
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), state.finished, ended)
        _, keep_BM = jax.lax.top_k(both.scores_BM, M)
        finished = Hypotheses(*(_take(x, keep_BM) for x in both))

        # 4. The best M of the others stay alive, and the cache follows them.
        live_log_probs_BM, keep_BM = jax.lax.top_k(jnp.where(ends_BC, -jnp.inf, best_BC), M)
        parent_BM = _take(parent_BC, keep_BM)
        parent_N = (parent_BM + jnp.arange(batch_size)[:, None] * M).reshape(-1)
        cache = {
            **cache,
            "hypothesis": jax.tree.map(lambda x: x[parent_N], cache["hypothesis"]),
        }
        live_tokens_BML = _take(tokens_BCL, keep_BM)
        return _State(state.step + 1, cache, live_tokens_BML, live_log_probs_BM, finished)

    live_log_probs_BM = jnp.full((batch_size, M), -jnp.inf).at[:, 0].set(0.0)
    none_BM = jnp.full((batch_size, M), -jnp.inf)
    state = _State(
        step=jnp.zeros((), jnp.int32),
        cache=cache,
        live_tokens_BML=jnp.full((batch_size, M, longest + 1), PAD, jnp.int32).at[:, :, 0].set(BOS),
        live_log_probs_BM=live_log_probs_BM,
        finished=Hypotheses(jnp.full((batch_size, M, longest), PAD, jnp.int32), none_BM, none_BM),
    )
    for room in _rooms(cache, longest):
        state = state._replace(cache=with_room(state.cache, M, room))
        state = jax.lax.while_loop(
            lambda s, room=room: jnp.any(unsettled(s)) & (s.step < room), extend, state
        )
    return state.finished


def _rooms(cache: Cache, longest: int) -> list[int]:
    """For how many tokens there is room, one loop after another.

    Attention reads all places, written or not. So a large cache begins small. A small one does
    not, because each loop is compiled.
    """
    size = sum(x.nbytes for x in jax.tree.leaves(cache.get("places")))
    if size < LARGE_CACHE:
        return [longest]
    powers = (2**i for i in itertools.count(4))
    return [*itertools.takewhile(lambda room: room < 0.75 * longest, powers), longest]


def _take(x_BCx: jax.Array, index_BM: jax.Array) -> jax.Array:
    index = index_BM.reshape(*index_BM.shape, *[1] * (x_BCx.ndim - 2))
    return jnp.take_along_axis(x_BCx, index, axis=1)
