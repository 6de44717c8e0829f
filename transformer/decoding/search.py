"""The loop of all searches, over any step function; it never sees a model.

A search is made of parts. A `Strategy` says which continuations the hypotheses take: the best ones
(beam search, Section 6.1), or samples, ... Rules say what an output must be like. See strategies.py
and rules.py.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer.data.vocabulary import BOS, EOS, PAD
from transformer.decoding.rules import LogitsRule, StepView
from transformer.decoding.strategies import Beam, Strategy
from transformer.decoding.top_k import log_softmax
from transformer.models.cache import with_capacity

Cache = dict[str, Any]
LARGE_CACHE = 2**24  # bytes of keys and values
# When at most this share of a batch is unsettled, the search goes on with so many of its sentences
# alone. Each part is compiled: those of fewer than FEWEST sentences are not worth it.
PARTS = 1 / 2, 1 / 4
FEWEST = 4


class Hypotheses(NamedTuple):
    """The finished hypotheses of each sentence, best first.

    An unfilled place has score -inf. Tokens include the final EOS, then PAD.
    """

    tokens_BML: jax.Array
    token_log_probs_BML: jax.Array  # natural logarithms; 0 for PAD
    scores_BM: jax.Array  # log-probability divided by the length penalty, and what rules add
    log_probs_BM: jax.Array  # EOS included


class _Asked(NamedTuple):
    """What is asked of the outputs of each sentence."""

    max_length_B: jax.Array
    rules: list[LogitsRule]  # the last is the choice


class _State(NamedTuple):
    step: jax.Array
    cache: Cache
    live_tokens_BML: jax.Array  # BOS first
    live_token_log_probs_BML: jax.Array
    live_log_probs_BM: jax.Array
    rule_states: list[Any]  # the state of each rule
    finished: Hypotheses


def gnmt_length_penalty(length: jax.Array, alpha: float) -> jax.Array:
    """((5 + length) / 6)^alpha, Wu et al. 2016, Equation 14; the length includes EOS."""
    return ((5 + length) / 6) ** alpha


def power_length_penalty(length: jax.Array, alpha: float) -> jax.Array:
    """length^alpha, EOS included, as in fairseq; alpha 1 gives the mean log-probability."""
    return jnp.asarray(length, jnp.float32) ** alpha


LENGTH_PENALTIES = {"gnmt": gnmt_length_penalty, "power": power_length_penalty}


def beam_search(
    step_fn: Callable[[jax.Array, Cache], tuple[jax.Array, Cache]],
    cache: Cache,
    max_length_B: jax.Array,
    *,
    beam_size: int,
    alpha: float,
    longest: int,
    length_penalty: Callable[[jax.Array, float], jax.Array] = gnmt_length_penalty,
    nbest: int = 1,
    strategy: Strategy | None = None,
    rules: Sequence[LogitsRule] = (),
) -> Hypotheses:
    """The best outputs by log-probability / length penalty, alpha >= 0.

    step_fn(tokens_N, cache) -> (logits_NV, cache): see models/cache.py for the cache.
    max_length_B: the most tokens of each sentence's output, EOS included; at that length the
    search forces EOS (with its own probability). `longest` is a static bound on them.
    choice: beam search if none.

    The search ends for a sentence when none of its live hypotheses can still beat its finished
    hypothesis number `nbest`, however they go on. So the first `nbest` are what a search without
    early termination would give; those after them are what was found on the way.
    """
    M = beam_size
    asked = _Asked(jnp.asarray(max_length_B), [*rules, strategy or Beam()])

    def unsettled(asked: _Asked, state: _State) -> jax.Array:
        """Sentences [B] whose live hypotheses may still win."""
        # Log-probabilities only fall, what rules add is at most 0, and the penalty of the longest
        # output divides most.
        longest_B = jnp.maximum(asked.max_length_B, 1).astype(jnp.float32)
        max_penalty_B = length_penalty(longest_B, alpha)
        bound_B = state.live_log_probs_BM.max(axis=1) / max_penalty_B
        return (state.step < asked.max_length_B) & (
            bound_B > state.finished.scores_BM[:, nbest - 1]
        )

    def extend(asked: _Asked, state: _State) -> _State:
        # 1. The probability of every continuation of every live hypothesis, as rules weigh it.
        rules, batch_size = asked.rules, asked.max_length_B.shape[0]
        newest_BM = jax.lax.dynamic_index_in_dim(
            state.live_tokens_BML, state.step, axis=2, keepdims=False
        )
        logits_NV, cache = step_fn(newest_BM.reshape(-1), state.cache)
        V = logits_NV.shape[-1]
        view = StepView(state.step, state.live_tokens_BML, cache.get("attention"), V)
        rule_states = [
            rule.observe(own, view) for rule, own in zip(rules, state.rule_states, strict=True)
        ]
        for rule in rules:
            logits_NV = rule.weighed(logits_NV, view)
        log_probs_BMV = log_softmax(logits_NV).astype(jnp.float32).reshape(batch_size, M, V)

        # 2. What may not be: EOS is all that may be at the end, PAD and BOS never, ...
        is_last_B = state.step + 1 >= asked.max_length_B
        allowed_BMV = (jnp.arange(V) == EOS)[None] | ~is_last_B[:, None]
        allowed_BMV &= ((jnp.arange(V) != PAD) & (jnp.arange(V) != BOS))[None]
        allowed_BMV = allowed_BMV[:, None]
        for rule, own in zip(rules, rule_states, strict=True):
            if (mask_BMV := rule.mask(own, view)) is not None:
                allowed_BMV &= mask_BMV
        log_probs_BMV = jnp.where(allowed_BMV, log_probs_BMV, -jnp.inf)

        # 3. The candidates, in the order in which they are to go on.
        index_BC = rules[-1].candidates(
            rule_states[-1], view, log_probs_BMV, state.live_log_probs_BM
        )
        index_BC = index_BC.astype(jnp.int32)
        parent_BC, token_BC = index_BC // V, index_BC % V
        newest_BC = jnp.take_along_axis(log_probs_BMV.reshape(batch_size, -1), index_BC, axis=1)
        total_BC = _take(state.live_log_probs_BM, parent_BC) + newest_BC

        def extended(x_BML: jax.Array, newest_BC: jax.Array) -> jax.Array:
            x_BCL = _take(x_BML, parent_BC)
            return jax.lax.dynamic_update_slice_in_dim(
                x_BCL, newest_BC[:, :, None], state.step + 1, axis=2
            )

        tokens_BCL = extended(state.live_tokens_BML, token_BC)
        token_log_probs_BCL = extended(state.live_token_log_probs_BML, newest_BC)
        ends_BC = token_BC == EOS

        # 4. Those that end join the finished ones, of which the best M are kept. A sentence that
        #    is settled keeps what it has, whatever others in its batch still do.
        added_BM = sum(rule.bonus(own) for rule, own in zip(rules, rule_states, strict=True))
        scores_BC = total_BC / length_penalty((state.step + 1).astype(jnp.float32), alpha)
        scores_BC += _take(jnp.broadcast_to(added_BM, (batch_size, M)), parent_BC)
        counts_BC = ends_BC & rules[-1].distinct(tokens_BCL) & unsettled(asked, state)[:, None]
        ended = Hypotheses(
            tokens_BCL[:, :, 1:],
            token_log_probs_BCL[:, :, 1:],
            jnp.where(counts_BC, scores_BC, -jnp.inf),
            jnp.where(counts_BC, total_BC, -jnp.inf),
        )
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), state.finished, ended)
        _, keep_BM = jax.lax.top_k(both.scores_BM, M)
        finished = Hypotheses(*(_take(x, keep_BM) for x in both))

        # 5. The first M of the others stay alive, and what belongs to them follows.
        _, keep_BM = jax.lax.top_k((~ends_BC).astype(jnp.int32), M)
        parent_BM = _take(parent_BC, keep_BM)
        parent_N = (parent_BM + jnp.arange(batch_size)[:, None] * M).reshape(-1)
        cache = {
            **cache,
            "hypothesis": jax.tree.map(lambda x: x[parent_N], cache["hypothesis"]),
        }
        newest_BM = _take(token_BC, keep_BM)
        rule_states = [
            rule.advance(jax.tree.map(lambda x: _take(x, parent_BM), own), newest_BM)
            for rule, own in zip(rules, rule_states, strict=True)
        ]
        return state._replace(
            step=state.step + 1,
            cache=cache,
            live_tokens_BML=_take(tokens_BCL, keep_BM),
            live_token_log_probs_BML=_take(token_log_probs_BCL, keep_BM),
            live_log_probs_BM=_take(jnp.where(ends_BC, -jnp.inf, total_BC), keep_BM),
            rule_states=rule_states,
            finished=finished,
        )

    batch_size = max_length_B.shape[0]
    none_BM = jnp.full((batch_size, M), -jnp.inf, jnp.float32)
    tokens_BML = jnp.full((batch_size, M, longest + 1), PAD, jnp.int32).at[:, :, 0].set(BOS)
    token_log_probs_BML = jnp.zeros(tokens_BML.shape, jnp.float32)
    state = _State(
        step=jnp.zeros((), jnp.int32),
        cache=cache,
        live_tokens_BML=tokens_BML,
        live_token_log_probs_BML=token_log_probs_BML,
        live_log_probs_BM=asked.rules[-1].first_log_probs(batch_size, M),
        rule_states=[rule.start(batch_size, M) for rule in asked.rules],
        finished=Hypotheses(
            jnp.full((batch_size, M, longest), PAD, jnp.int32),
            token_log_probs_BML[:, :, 1:],
            none_BM,
            none_BM,
        ),
    )

    def go_on(asked: _Asked, state: _State, room: int, few: int) -> _State:
        """Until there is no more room, or at most `few` sentences are unsettled."""

        def is_wanted(state: _State) -> jax.Array:
            return (unsettled(asked, state).sum() > few) & (state.step < room)

        state = state._replace(cache=with_capacity(state.cache, M, room))
        return jax.lax.while_loop(is_wanted, functools.partial(extend, asked), state)

    def settle(
        asked: _Asked, state: _State, rooms: Sequence[int], parts: Sequence[int]
    ) -> Hypotheses:
        """Goes on until all sentences are settled.

        parts: when at most parts[0] are left, these go on alone, then parts[1] of them, ...; what
        they find returns to their rows. A part has all the room at once.
        """
        for room in rooms:
            state = go_on(asked, state, room, parts[0] if parts else 0)
        if not parts:
            return state.finished
        rows_b = jnp.argsort(~unsettled(asked, state), stable=True)[: parts[0]]
        rest = settle(*_of_rows(asked, state, rows_b, M), rooms[-1:], parts[1:])
        found = zip(state.finished, rest, strict=True)
        return Hypotheses(*(whole.at[rows_b].set(part) for whole, part in found))

    parts: list[int] = []
    if isinstance(batch_size, int):  # not known in an export
        parts = [size for part in PARTS if (size := int(part * batch_size)) >= FEWEST]
    return settle(asked, state, _rooms(cache, longest), parts)


def _of_rows(asked: _Asked, state: _State, rows_b: jax.Array, M: int) -> tuple[_Asked, _State]:
    """The same for these sentences alone."""
    rows_n = (rows_b[:, None] * M + jnp.arange(M)[None]).reshape(-1)
    cache = {"step": state.step}
    for name, part in state.cache.items():
        if name != "step":
            rows = rows_n if name in ("hypothesis", "attention") else rows_b
            cache[name] = jax.tree.map(lambda x, rows=rows: x[rows], part)
    rest = jax.tree.map(lambda x: x[rows_b], state._replace(step=None, cache=None))
    asked = _Asked(asked.max_length_B[rows_b], [rule.of_rows(rows_b) for rule in asked.rules])
    return asked, rest._replace(step=state.step, cache=cache)


def _rooms(cache: Cache, longest: int) -> list[int]:
    """For how many tokens there is room, one loop after another.

    Attention reads all places, written or not. So a large cache begins small. A small one does
    not, because each loop is compiled.
    """
    leaves = jax.tree.leaves(cache.get("key_values"))
    # The number of sentences is not known in an export.
    if any(not isinstance(x.shape[0], int) for x in leaves) or (
        sum(x.nbytes for x in leaves) < LARGE_CACHE
    ):
        return [longest]
    powers = (2**i for i in itertools.count(4))
    return [*itertools.takewhile(lambda room: room < 0.75 * longest, powers), longest]


def _take(x_BCx: jax.Array, index_BM: jax.Array) -> jax.Array:
    index = index_BM.reshape(*index_BM.shape, *[1] * (x_BCx.ndim - 2))
    return jnp.take_along_axis(x_BCx, index, axis=1)
