"""The search as a tree: every continuation that a beam weighed, and what became of it.

The search itself is the usual one. Its strategy is wrapped: at each step it tells the host what it
sees. The numbers that users of the lab change often are arguments of the compiled program.
"""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
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
    """A strategy that tells what it sees: tell(step, name, *arrays)."""

    def __init__(self, strategy: Strategy, tell: Any):
        self._strategy, self._tell = strategy, tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def rescore(self, logits_NV: jax.Array, view: StepView) -> jax.Array:
        best = jax.lax.top_k(log_softmax(logits_NV), min(NEXT, view.vocab_size))
        jax.debug.callback(functools.partial(self._tell, "following"), view.step, *best)
        return self._strategy.rescore(logits_NV, view)

    def candidates(self, state, view, log_probs_BMV, live_log_probs_BM):
        index_BC = self._strategy.candidates(state, view, log_probs_BMV, live_log_probs_BM)
        index_C, V = index_BC[0], view.vocab_size
        arrays = index_C // V, index_C % V, log_probs_BMV[0].reshape(-1)[index_C]
        tell = functools.partial(self._tell, "candidates")
        jax.debug.callback(tell, view.step, *arrays, live_log_probs_BM[0])
        return index_BC


class TreeSearch:
    """Searches of one sentence each; compiled programs are kept for the next one."""

    def __init__(self, translator: Translator):
        self._translator = translator
        self._seen: dict[tuple[str, int], list[np.ndarray]] = {}
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
        self._seen.clear()
        found = self._program(fixed)(variables, src_BS, inputs, knobs)
        jax.effects_barrier()
        if any(np.isnan(x).any() for arrays in self._seen.values() for x in arrays):
            raise UserError(DIVERGED)
        translations = self._translator.translations(jax.tree.map(np.asarray, found), 0)
        if not translations:
            raise UserError("no output fulfils all that is asked of it; ask for less")
        penalty = LENGTH_PENALTIES[config.length_penalty_form]
        nodes = self._nodes(lambda n: float(penalty(np.float32(n), config.length_penalty)))
        ways = [path_to(nodes, i) for i, x in enumerate(nodes) if x.state == "finished"]
        paths = {tuple(nodes[i].token for i in path): path for path in ways}
        return Tree(nodes, translations, [paths[tuple(x.tokens)] for x in translations])

    def _compiled(self, config: DecodingConfig) -> Any:
        translator = copy.copy(self._translator)
        translator.config = config

        def run(variables, src_BS, inputs, knobs):
            def adjust(strategy: Strategy, settings: Settings) -> tuple[Any, Settings]:
                if isinstance(strategy, Sample):
                    strategy = dataclasses.replace(strategy, temperature=knobs[1])
                return _Watched(strategy, self._tell), settings._replace(alpha=knobs[0])

            M = config.beam_size
            return translator.find(variables, src_BS, inputs, beam_size=M, nbest=M, adjust=adjust)

        return jax.jit(run)

    def _tell(self, name: str, step: jax.Array, *arrays: jax.Array) -> None:
        self._seen[name, int(step)] = [np.asarray(x) for x in arrays]

    def _nodes(self, penalty: Callable[[int], float]) -> list[Node]:
        nodes = [Node(-1, BOS, 1.0, 0.0, 0.0, "kept", self._following(0, 0))]
        live: dict[int, int] | None = None  # the node in each slot; at first BOS in all
        for step in range(sum(name == "candidates" for name, _ in self._seen)):
            *candidates, live_M = self._seen["candidates", step]
            slots, slot = {}, 0
            for parent, token, log_prob in zip(*(x.tolist() for x in candidates), strict=True):
                total = float(live_M[parent]) + log_prob
                state = "finished" if token == EOS else "kept" if slot < len(live_M) else "dropped"
                if token != PAD and total > -np.inf:
                    following = self._following(step + 1, slot) if state == "kept" else []
                    if state == "kept":
                        slots[slot] = len(nodes)
                    numbers = math.exp(log_prob), total, total / penalty(step + 1)
                    above = 0 if live is None else live[parent]
                    nodes.append(Node(above, token, *numbers, state, following))
                slot += token != EOS
            live = slots
        return nodes

    def _following(self, step: int, slot: int) -> list[tuple[int, float]]:
        if ("following", step) not in self._seen:  # the search has ended
            return []
        log_probs_NK, token_NK = self._seen["following", step]
        return list(zip(token_NK[slot].tolist(), np.exp(log_probs_NK[slot]).tolist(), strict=True))


def path_to(nodes: Sequence[Node], node: int) -> list[int]:
    """The nodes from the first token to this one."""
    path = []
    while node:
        path.append(node)
        node = nodes[node].parent
    return path[::-1]
