"""The search as a tree: every continuation that a beam weighed, and what became of it.

The search itself is the usual one. Its strategy is wrapped and keeps what it sees; its loop puts
what each step saw into arrays. The numbers that users of the lab change often are arguments of the
compiled program.
"""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.vocabulary import BOS, EOS, PAD
from transformer.decoding.batching import batches
from transformer.decoding.config import DecodingConfig
from transformer.decoding.inputs import Sentence, arrays_of
from transformer.decoding.programs import Variables
from transformer.decoding.rules import StepView
from transformer.decoding.search import LENGTH_PENALTIES, Settings
from transformer.decoding.strategies import Sample, Strategy
from transformer.decoding.top_k import log_softmax
from transformer.decoding.translation import Translation, Translator
from transformer.system.errors import UserError

NEXT = 6  # continuations of which the probabilities are shown
DIVERGED = "the model's numbers are not finite: its training has diverged; take another checkpoint"
WIDTH = 32  # of shorter sources: one program serves most sentences


class Node(NamedTuple):
    """A token that some hypothesis could take; the first node is BOS.

    A kept node has the most probable tokens after it, as (token, probability): those of the model,
    before the search masks any. score: what a hypothesis that ended here would have.
    """

    parent: int
    token: int
    probability: float
    log_prob: float  # of all tokens up to here
    score: float
    state: str  # "kept", "dropped" or "finished"
    following: list[tuple[int, float]]


class Tree(NamedTuple):
    nodes: list[Node]
    found: list[Translation]  # best first
    paths: list[list[int]]  # the nodes of each, without BOS


class _Watched:
    """A strategy that keeps what it sees of a step, and the loop that keeps it of all steps."""

    def __init__(self, strategy: Strategy, longest: int):
        self._strategy, self._longest = strategy, longest
        self._seen: dict[str, jax.Array] = {}
        self.history: dict[str, jax.Array] = {}  # the same by step, zeros after the last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def rescore(self, logits_NV: jax.Array, view: StepView) -> jax.Array:
        best = jax.lax.top_k(log_softmax(logits_NV), min(NEXT, view.vocab_size))
        self._seen = dict(zip(("next_log_prob_NK", "next_NK"), best, strict=True))
        return self._strategy.rescore(logits_NV, view)

    def candidates(self, state, view, log_probs_BMV, live_log_probs_BM):
        index_BC = self._strategy.candidates(state, view, log_probs_BMV, live_log_probs_BM)
        index_C, V = index_BC[0], view.vocab_size
        self._seen |= {"parent_C": index_C // V, "token_C": index_C % V}
        self._seen |= {"log_prob_C": log_probs_BMV[0].reshape(-1)[index_C]}
        self._seen |= {"live_M": live_log_probs_BM[0], "is_step": jnp.ones((), bool)}
        return index_BC

    def loop(self, is_wanted: Callable, extend: Callable, state: Any) -> Any:
        """`while_loop`. A cache that grows has several, one after another."""

        def extended(carry):
            state, history = carry
            step, state = state.step, extend(state)
            return state, {name: x.at[step].set(self._seen[name]) for name, x in history.items()}

        if not self.history:
            shapes = jax.eval_shape(lambda state: (extend(state), self._seen)[1], state)
            self.history = {
                name: jnp.zeros((self._longest, *x.shape), x.dtype) for name, x in shapes.items()
            }
        state, self.history = jax.lax.while_loop(
            lambda carry: is_wanted(carry[0]), extended, (state, self.history)
        )
        return state


class TreeSearch:
    """Searches of one sentence each; compiled programs are kept for the next one."""

    def __init__(self, translator: Translator):
        self._translator = translator
        self._program = functools.lru_cache(maxsize=32)(self._compiled)

    def __call__(self, variables: Variables, sentence: Sentence, config: DecodingConfig) -> Tree:
        """The tree of a sentence; raises UserError if nothing fulfils what is asked."""
        self._translator.check_room(sentence, 1, 1)
        ((shape, members),) = batches([max(WIDTH, len(sentence.source))], lambda width: 1, 1)
        # Rows of other lengths of the beginning share a program.
        sizes = config.longest(shape.width), 0, 0
        src_BS, inputs = arrays_of(config, [sentence], shape, members, sizes)
        knobs = np.float32([config.length_penalty, config.temperature])
        fixed = dataclasses.replace(
            config, length_penalty=1.0, temperature=float(config.temperature > 0)
        )
        found, history = jax.device_get(self._program(fixed)(variables, src_BS, inputs, knobs))
        if any(np.isnan(x).any() for x in history.values()):
            raise UserError(DIVERGED)
        translations = self._translator.translations(found, 0)
        if not translations:
            raise UserError("no output fulfils all that is asked of it; ask for less")
        penalty = LENGTH_PENALTIES[config.length_penalty_form]
        nodes = _nodes(history, lambda n: float(penalty(np.float32(n), config.length_penalty)))
        ways = [_path_to(nodes, i) for i, x in enumerate(nodes) if x.state == "finished"]
        paths = {tuple(nodes[i].token for i in path): path for path in ways}
        return Tree(nodes, translations, [paths[tuple(x.tokens)] for x in translations])

    def _compiled(self, config: DecodingConfig) -> Any:
        translator = copy.copy(self._translator)
        translator.config = config

        def run(variables, src_BS, inputs, knobs):
            watched = []

            def adjust(strategy: Strategy, settings: Settings) -> tuple[Any, Settings]:
                if isinstance(strategy, Sample):
                    strategy = dataclasses.replace(strategy, temperature=knobs[1])
                watched.append(_Watched(strategy, settings.longest))
                return watched[0], settings._replace(alpha=knobs[0], loop=watched[0].loop)

            M = config.beam_size
            found = translator.find(variables, src_BS, inputs, beam_size=M, nbest=M, adjust=adjust)
            return found, watched[0].history

        return jax.jit(run)


def _nodes(history: dict[str, np.ndarray], penalty: Callable[[int], float]) -> list[Node]:
    num_steps = int(history["is_step"].sum())

    def following(step: int, slot: int) -> list[tuple[int, float]]:
        if step == num_steps:  # the search has ended
            return []
        chances = np.exp(history["next_log_prob_NK"][step, slot]).tolist()
        return list(zip(history["next_NK"][step, slot].tolist(), chances, strict=True))

    nodes = [Node(-1, BOS, 1.0, 0.0, 0.0, "kept", following(0, 0))]
    live: dict[int, int] | None = None  # the node in each slot; at first BOS in all
    for step in range(num_steps):
        live_M = history["live_M"][step]
        candidates = (
            history[name][step].tolist() for name in ("parent_C", "token_C", "log_prob_C")
        )
        slots, slot = {}, 0
        for parent, token, log_prob in zip(*candidates, strict=True):
            total = float(live_M[parent]) + log_prob
            state = "finished" if token == EOS else "kept" if slot < len(live_M) else "dropped"
            if token != PAD and total > -np.inf:
                if state == "kept":
                    slots[slot] = len(nodes)
                after = following(step + 1, slot) if state == "kept" else []
                numbers = math.exp(log_prob), total, total / penalty(step + 1)
                above = 0 if live is None else live[parent]
                nodes.append(Node(above, token, *numbers, state, after))
            slot += token != EOS
        live = slots
    return nodes


def _path_to(nodes: Sequence[Node], node: int) -> list[int]:
    """The nodes from the first token to this one."""
    path = []
    while node:
        path.append(node)
        node = nodes[node].parent
    return path[::-1]
