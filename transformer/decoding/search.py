"""Beam search (Section 6.1) over any step function; it never sees a model.

`beam_search` is the algorithm. A `Strategy` says which continuations the hypotheses take: the best
ones, or samples, ... Each `LogitsRule` says what an output must be like. See strategies.py and
rules.py. `_in_parts` and `_growing` make the search fast.
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
# When at most this share of a batch is unsettled, the search goes on with only this share. Each
# part is compiled, which is not worth it for fewer than FEWEST sentences.
PARTS = 1 / 2, 1 / 4
FEWEST = 4


class Hypotheses(NamedTuple):
    """The finished hypotheses of each sentence, best first.

    An unfilled slot has score -inf. Tokens include the final EOS, then PAD.
    """

    tokens_BML: jax.Array
    token_log_probs_BML: jax.Array  # natural logarithms; 0 for PAD
    scores_BM: jax.Array  # log-probability / length penalty + bonus of the rules
    log_probs_BM: jax.Array  # EOS included


class _Inputs(NamedTuple):
    """Arrays and rules that begin with one row for each sentence."""

    max_length_B: jax.Array
    rules: list[LogitsRule]  # the last is the strategy


class _State(NamedTuple):
    step: jax.Array
    cache: Cache
    live_tokens_BML: jax.Array  # BOS first
    live_token_log_probs_BML: jax.Array
    live_log_probs_BM: jax.Array
    rule_states: list[Any]
    finished: Hypotheses


class _Candidates(NamedTuple):
    """Continuations of live hypotheses, in the order in which they are to go on."""

    parent_BC: jax.Array  # the hypothesis that each continues
    token_BC: jax.Array
    tokens_BCL: jax.Array
    token_log_probs_BCL: jax.Array
    log_probs_BC: jax.Array


def gnmt_length_penalty(length: jax.Array, alpha: float) -> jax.Array:
    """((5 + length) / 6)^alpha, Wu et al. 2016, Equation 14; the length includes EOS."""
    return ((5 + length) / 6) ** alpha


def power_length_penalty(length: jax.Array, alpha: float) -> jax.Array:
    """length^alpha, EOS included, as in fairseq; alpha 1 gives the mean log-probability."""
    return jnp.asarray(length, jnp.float32) ** alpha


LENGTH_PENALTIES = {"gnmt": gnmt_length_penalty, "power": power_length_penalty}


class Settings(NamedTuple):
    """The fixed numbers of a search.

    alpha: the exponent of the length penalty, at least 0.
    longest: a static bound on all `max_length_B`.
    nbest: how many hypotheses of a sentence must be the true best ones.
    loop: repeats the steps; the lab's also keeps what each step saw.
    """

    beam_size: int
    alpha: float
    longest: int
    nbest: int = 1
    length_penalty: Callable[[jax.Array, float], jax.Array] = gnmt_length_penalty
    loop: Callable[..., Any] = jax.lax.while_loop


def beam_search(
    step_fn: Callable[[jax.Array, Cache], tuple[jax.Array, Cache]],
    cache: Cache,
    max_length_B: jax.Array,
    settings: Settings,
    strategy: Strategy | None = None,
    rules: Sequence[LogitsRule] = (),
) -> Hypotheses:
    """The best outputs by log-probability / length penalty.

    step_fn(tokens_N, cache) -> (logits_NV, cache): see models/cache.py for the cache.
    max_length_B: the most tokens of each sentence's output, EOS included; at that length the
    search forces EOS (with its own probability).
    strategy: None for beam search.

    The search ends for a sentence when none of its live hypotheses can still beat its finished
    hypothesis number `nbest`. So the first `nbest` are those of a search without early termination;
    the rest are those found on the way.
    """
    inputs = _Inputs(jnp.asarray(max_length_B), [*rules, strategy or Beam()])

    def unsettled(inputs: _Inputs, state: _State) -> jax.Array:
        return _unsettled(settings, inputs, state)

    def extend(inputs: _Inputs, state: _State) -> _State:
        """One more token for each live hypothesis."""
        # 1. The probability of every continuation, rescored by the rules; 0 if one forbids it.
        newest_BM = jax.lax.dynamic_index_in_dim(
            state.live_tokens_BML, state.step, axis=2, keepdims=False
        )
        logits_NV, cache = step_fn(newest_BM.reshape(-1), state.cache)
        view = StepView(
            state.step, state.live_tokens_BML, cache.get("attention"), logits_NV.shape[-1]
        )
        rule_states = [
            rule.observe(own, view)
            for rule, own in zip(inputs.rules, state.rule_states, strict=True)
        ]
        state = state._replace(cache=cache, rule_states=rule_states)
        log_probs_BMV = _allowed_log_probs(inputs, state, view, logits_NV)

        # 2. The strategy chooses candidates.
        candidates = _candidates(inputs, state, view, log_probs_BMV)

        # 3. Those that end join the finished ones, of which the best M are kept. A settled
        #    sentence keeps its finished ones while others in its batch go on.
        finished = _finished(settings, inputs, state, candidates, unsettled(inputs, state))

        # 4. The first M of the others stay alive.
        return _next_state(inputs, state, candidates)._replace(finished=finished)

    state = _first_state(inputs, cache, settings)
    return _in_parts(inputs, state, settings, extend, unsettled)


def _unsettled(settings: Settings, inputs: _Inputs, state: _State) -> jax.Array:
    """Sentences [B] whose live hypotheses may still win."""
    # Log-probabilities only fall, bonuses of rules are at most 0, and the penalty of the longest
    # output divides most.
    longest_B = jnp.maximum(inputs.max_length_B, 1).astype(jnp.float32)
    max_penalty_B = settings.length_penalty(longest_B, settings.alpha)
    bound_B = state.live_log_probs_BM.max(axis=1) / max_penalty_B
    return (state.step < inputs.max_length_B) & (
        bound_B > state.finished.scores_BM[:, settings.nbest - 1]
    )


def _allowed_log_probs(
    inputs: _Inputs, state: _State, view: StepView, logits_NV: jax.Array
) -> jax.Array:
    """The log-probabilities [B, M, V], -inf for tokens that may not come next."""
    B, M, V = *state.live_log_probs_BM.shape, view.vocab_size
    for rule in inputs.rules:
        logits_NV = rule.rescore(logits_NV, view)
    log_probs_BMV = log_softmax(logits_NV).astype(jnp.float32).reshape(B, M, V)
    # Only EOS may come last; PAD and BOS never come.
    is_last_B = state.step + 1 >= inputs.max_length_B
    allowed_BMV = (jnp.arange(V) == EOS)[None] | ~is_last_B[:, None]
    allowed_BMV &= ((jnp.arange(V) != PAD) & (jnp.arange(V) != BOS))[None]
    allowed_BMV = allowed_BMV[:, None]
    for rule, own in zip(inputs.rules, state.rule_states, strict=True):
        if (mask_BMV := rule.mask(own, view)) is not None:
            allowed_BMV &= mask_BMV
    return jnp.where(allowed_BMV, log_probs_BMV, -jnp.inf)


def _candidates(
    inputs: _Inputs, state: _State, view: StepView, log_probs_BMV: jax.Array
) -> _Candidates:
    strategy, own = inputs.rules[-1], state.rule_states[-1]
    index_BC = strategy.candidates(own, view, log_probs_BMV, state.live_log_probs_BM)
    index_BC = index_BC.astype(jnp.int32)
    parent_BC, token_BC = index_BC // view.vocab_size, index_BC % view.vocab_size
    B = log_probs_BMV.shape[0]
    newest_BC = jnp.take_along_axis(log_probs_BMV.reshape(B, -1), index_BC, axis=1)

    def extended(x_BML: jax.Array, newest_BC: jax.Array) -> jax.Array:
        x_BCL = _take(x_BML, parent_BC)
        return jax.lax.dynamic_update_slice_in_dim(
            x_BCL, newest_BC[:, :, None], state.step + 1, axis=2
        )

    return _Candidates(
        parent_BC,
        token_BC,
        extended(state.live_tokens_BML, token_BC),
        extended(state.live_token_log_probs_BML, newest_BC),
        _take(state.live_log_probs_BM, parent_BC) + newest_BC,
    )


def _finished(
    settings: Settings,
    inputs: _Inputs,
    state: _State,
    candidates: _Candidates,
    unsettled_B: jax.Array,
) -> Hypotheses:
    """The best M of the hypotheses that had ended and those that end now."""
    B, M = state.live_log_probs_BM.shape
    rules = zip(inputs.rules, state.rule_states, strict=True)
    bonus_BM = jnp.broadcast_to(sum(rule.bonus(own) for rule, own in rules), (B, M))
    length = (state.step + 1).astype(jnp.float32)
    scores_BC = candidates.log_probs_BC / settings.length_penalty(length, settings.alpha)
    scores_BC += _take(bonus_BM, candidates.parent_BC)
    counts_BC = (candidates.token_BC == EOS) & unsettled_B[:, None]
    counts_BC &= inputs.rules[-1].distinct(candidates.tokens_BCL)
    ended = Hypotheses(
        candidates.tokens_BCL[:, :, 1:],
        candidates.token_log_probs_BCL[:, :, 1:],
        jnp.where(counts_BC, scores_BC, -jnp.inf),
        jnp.where(counts_BC, candidates.log_probs_BC, -jnp.inf),
    )
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), state.finished, ended)
    _, keep_BM = jax.lax.top_k(both.scores_BM, M)
    return Hypotheses(*(_take(x, keep_BM) for x in both))


def _next_state(inputs: _Inputs, state: _State, candidates: _Candidates) -> _State:
    """The first M candidates that do not end, with their caches and states."""
    B, M = state.live_log_probs_BM.shape
    ends_BC = candidates.token_BC == EOS
    _, keep_BM = jax.lax.top_k((~ends_BC).astype(jnp.int32), M)
    parent_BM = _take(candidates.parent_BC, keep_BM)
    parent_N = (parent_BM + jnp.arange(B)[:, None] * M).reshape(-1)
    hypothesis = jax.tree.map(lambda x: x[parent_N], state.cache["hypothesis"])
    newest_BM = _take(candidates.token_BC, keep_BM)
    rule_states = [
        rule.advance(jax.tree.map(lambda x: _take(x, parent_BM), own), newest_BM)
        for rule, own in zip(inputs.rules, state.rule_states, strict=True)
    ]
    return state._replace(
        step=state.step + 1,
        cache={**state.cache, "hypothesis": hypothesis},
        live_tokens_BML=_take(candidates.tokens_BCL, keep_BM),
        live_token_log_probs_BML=_take(candidates.token_log_probs_BCL, keep_BM),
        live_log_probs_BM=_take(jnp.where(ends_BC, -jnp.inf, candidates.log_probs_BC), keep_BM),
        rule_states=rule_states,
    )


def _first_state(inputs: _Inputs, cache: Cache, settings: Settings) -> _State:
    """Live hypotheses of BOS; none is finished."""
    B, M, longest = inputs.max_length_B.shape[0], settings.beam_size, settings.longest
    none_BM = jnp.full((B, M), -jnp.inf, jnp.float32)
    tokens_BML = jnp.full((B, M, longest + 1), PAD, jnp.int32).at[:, :, 0].set(BOS)
    token_log_probs_BML = jnp.zeros(tokens_BML.shape, jnp.float32)
    return _State(
        step=jnp.zeros((), jnp.int32),
        cache=cache,
        live_tokens_BML=tokens_BML,
        live_token_log_probs_BML=token_log_probs_BML,
        live_log_probs_BM=inputs.rules[-1].first_log_probs(B, M),
        rule_states=[rule.start(B, M) for rule in inputs.rules],
        finished=Hypotheses(
            jnp.full((B, M, longest), PAD, jnp.int32),
            token_log_probs_BML[:, :, 1:],
            none_BM,
            none_BM,
        ),
    )


# ---- Speed ----


def _in_parts(
    inputs: _Inputs,
    state: _State,
    settings: Settings,
    extend: Callable[[_Inputs, _State], _State],
    unsettled: Callable[[_Inputs, _State], jax.Array],
) -> Hypotheses:
    """Runs `extend` until every sentence is settled.

    First on the whole batch, then on the half and on the quarter that are still unsettled. The
    results of a part return to its rows. The cache of the whole batch grows as the search goes on;
    that of a part has its full capacity at once.
    """
    M, B = settings.beam_size, inputs.max_length_B.shape[0]

    def settle(inputs, state, capacities, parts):
        for capacity in capacities:
            few = parts[0] if parts else 0
            state = _growing(inputs, state, settings, capacity, few, extend, unsettled)
        if not parts:
            return state.finished
        rows_b = jnp.argsort(~unsettled(inputs, state), stable=True)[: parts[0]]
        rest = settle(*_of_rows(inputs, state, rows_b, M), capacities[-1:], parts[1:])
        found = zip(state.finished, rest, strict=True)
        return Hypotheses(*(whole.at[rows_b].set(part) for whole, part in found))

    parts: list[int] = []
    if isinstance(B, int):  # not known in an export
        parts = [size for part in PARTS if (size := int(part * B)) >= FEWEST]
    return settle(inputs, state, _capacities(state.cache, settings.longest), parts)


def _growing(inputs, state, settings, capacity, few, extend, unsettled) -> _State:
    """Runs `extend` until the cache is full, or at most `few` sentences are unsettled."""

    def is_wanted(state: _State) -> jax.Array:
        return (unsettled(inputs, state).sum() > few) & (state.step < capacity)

    cache = with_capacity(state.cache, settings.beam_size, capacity)
    state = state._replace(cache=cache)
    return settings.loop(is_wanted, functools.partial(extend, inputs), state)


def _of_rows(inputs: _Inputs, state: _State, rows_b: jax.Array, M: int) -> tuple[_Inputs, _State]:
    """The inputs and the state of only these sentences."""
    rows_n = (rows_b[:, None] * M + jnp.arange(M)[None]).reshape(-1)
    cache = {"step": state.step}
    for name, part in state.cache.items():
        if name != "step":
            rows = rows_n if name in ("hypothesis", "attention") else rows_b
            cache[name] = jax.tree.map(lambda x, rows=rows: x[rows], part)
    rest = jax.tree.map(lambda x: x[rows_b], state._replace(step=None, cache=None))
    inputs = _Inputs(inputs.max_length_B[rows_b], [rule.of_rows(rows_b) for rule in inputs.rules])
    return inputs, rest._replace(step=state.step, cache=cache)


def _capacities(cache: Cache, longest: int) -> list[int]:
    """The capacities of the cache, in tokens, one loop after another.

    Attention reads all of it, written or not. So a large cache begins small. A small one does
    not, because each loop is compiled.
    """
    leaves = jax.tree.leaves(cache.get("key_values"))
    # The number of sentences is not known in an export.
    if any(not isinstance(x.shape[0], int) for x in leaves) or (
        sum(x.nbytes for x in leaves) < LARGE_CACHE
    ):
        return [longest]
    powers = (2**i for i in itertools.count(4))
    return [*itertools.takewhile(lambda size: size < 0.75 * longest, powers), longest]


def _take(x_BCx: jax.Array, index_BM: jax.Array) -> jax.Array:
    index = index_BM.reshape(*index_BM.shape, *[1] * (x_BCx.ndim - 2))
    return jnp.take_along_axis(x_BCx, index, axis=1)
