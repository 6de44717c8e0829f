"""Sentences in, sentences out: tokens, batches of similar length, a search, text."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import EOS
from transformer.data.words import words_of
from transformer.decoding.batching import (
    Shape,
    batches,
    batches_at_once,
    check_memory,
    is_of_cpus,
    layout_for,
    most_rows,
    row_bytes,
)
from transformer.decoding.brackets import Grammar
from transformer.decoding.config import MOST_OUTPUTS, DecodingConfig
from transformer.decoding.ensemble import Ensemble
from transformer.decoding.forced import Forced, ForcedDecoder
from transformer.decoding.inputs import (
    Request,
    SearchInputs,
    Sentence,
    arrays_of,
    longest_phrases,
    parts_of_search,
    sizes_of_inputs,
)
from transformer.decoding.mbr import by_utility
from transformer.decoding.programs import LaidOut, Programs, Variables
from transformer.decoding.rules import Coverage
from transformer.decoding.search import LENGTH_PENALTIES, Hypotheses, Settings, beam_search
from transformer.decoding.strategies import Strategy
from transformer.decoding.word_alignment import word_alignment, words_of_tokens
from transformer.models.cache import widened
from transformer.models.functional import FunctionalModel
from transformer.models.weight_layout import WeightLayout
from transformer.system.errors import UserError


class Translation(NamedTuple):
    """An output and its probabilities. Logarithms are natural."""

    text: str
    score: float  # compared in a search: log_prob / length penalty + coverage penalty
    log_prob: float  # of all tokens
    tokens: list[int]  # EOS included, if the search found it
    token_log_probs: list[float]
    alignment: list[tuple[int, int]] | None = None  # source word and target word, from 0


def best_texts(found: Sequence[Sequence[Translation]]) -> list[str]:
    """The text of each best translation; "" where there is none."""
    return [translations[0].text if translations else "" for translations in found]


def with_eos(tokens: list[int], cut: int | None = None) -> np.ndarray:
    """The tokens and EOS; at most `cut` of them, if given."""
    return np.asarray([*tokens[: cut and cut - 1], EOS], np.int32)


class Translator:
    """Translates with given variables; compiled searches are kept for the next call."""

    def __init__(
        self,
        model: FunctionalModel | Ensemble,
        tokenizers: Tokenizers,
        config: DecodingConfig,
        mesh: jax.sharding.Mesh,
        grammar: Grammar | None = None,
        source_cut: int | None = None,
        reads_blank: bool = False,
    ):
        """source_cut: the number of tokens, EOS included, to which `translate` cuts longer sources.
        reads_blank: whether a blank source has an output, as for a language model.
        """
        if config.brackets and grammar is None:
            raise UserError(
                "decoding.brackets is for trees, which the task parsing has; set it to False"
            )
        if config.int8 and not is_of_cpus(mesh):
            raise UserError("decoding.int8 is for CPUs; set it to False")
        if config.int8 and not model.takes_int8():
            raise UserError(
                "decoding.int8 is for models with linear layers such as the Transformer's, and "
                "this one has none; set it to False"
            )
        self.grammar = grammar
        self.reads_blank = reads_blank
        self.tokenizers = tokenizers
        self.source_cut = source_cut
        self.config = config
        self.forced = ForcedDecoder(model, mesh)
        self.mesh = mesh
        self._model = model
        self.programs = Programs(self.find, 2, mesh)
        self._laid_out = LaidOut(model, mesh)

    def find(
        self,
        variables: Variables,
        src_BS: jax.Array,
        inputs: SearchInputs,
        *,
        beam_size: int,
        nbest: int,
        weight_layout: WeightLayout | None = None,
        adjust: Callable[[Strategy, Settings], tuple[Strategy, Settings]] = lambda *parts: parts,
    ) -> Hypotheses:
        """The compiled part. weight_layout: that of the variables, if it runs on a CPU.

        adjust: changes the strategy and the settings; for the lab, which looks on.
        """
        c = self.config
        longest = c.longest(src_BS.shape[1])
        bound = self._model.bind(*variables, weight_layout=weight_layout)
        cache = bound.init_cache(bound.encode(src_BS), src_BS, beam_size, longest)
        if weight_layout is not None:
            cache = widened(cache)
        given = len(self.tokenizers.target.beginning)
        strategy, rules = parts_of_search(c, inputs, src_BS, self.grammar, given)
        if any(isinstance(rule, Coverage) for rule in rules):
            shape = src_BS.shape[0] * beam_size, src_BS.shape[1]
            cache["attention"] = jnp.zeros(shape, jnp.float32)
        penalty = LENGTH_PENALTIES[c.length_penalty_form]
        settings = Settings(beam_size, c.length_penalty, longest, nbest, penalty)
        strategy, settings = adjust(strategy, settings)
        found = beam_search(
            bound.decode_step, cache, inputs.max_length_B, settings, strategy, rules
        )
        return Hypotheses(*(x[:, :nbest] for x in found))

    def prepare(self, variables: Variables, texts: Sequence[str]) -> dict[str, jax.stages.Compiled]:
        """Compiles and runs once the programs for translating `texts`, the largest first."""
        sentences = self.encode(list(map(Request, texts)), self.source_cut)
        parts, call = self._calls(variables, sentences, max(1, self.config.mbr))
        shapes = {shape for shape, _ in parts}
        programs = {}
        for shape in sorted(shapes, key=lambda s: -s.rows * self.config.longest(s.width)):
            arguments, static = call(shape, [])
            name = f"search, {shape.rows} x {shape.width} source tokens"
            programs[name] = self.programs.compiled(*arguments, **static)
            self.programs(*arguments, **static)
        return programs

    def search(
        self,
        variables: Variables,
        requests: Sequence[Request],
        *,
        nbest: int = 1,
        alignments: bool = False,
        progress: Callable[[int], None] = lambda done: None,
        source_cut: int | None = None,
    ) -> list[list[Translation]]:
        """The best `nbest` translations of each source, best first; none for an empty line.

        With decoding.mbr the best are those of minimum Bayes risk, and keep their scores.

        alignments: whether to find out which words translate each other.
        progress: is called with the number of requests done so far.
        source_cut: longer sources are cut to this many tokens, EOS included.
        Raises UserError for a request that no translation meets.
        """
        wanted, nbest = nbest, max(nbest, self.config.mbr)
        self._check(nbest, requests)
        encoded = self.encode(requests, source_cut)
        for number, sentence in enumerate(encoded, 1):
            self.check_room(sentence, number, len(encoded))
        parts, call = self._calls(variables, encoded, nbest)
        beam_size = self._beam_size(encoded, nbest)
        at_once = batches_at_once(self.mesh, [shape for shape, _ in parts], beam_size)
        searches = self.programs.each(itertools.starmap(call, parts), at_once)
        results: list[list[Translation]] = [[] for _ in encoded]
        done = 0
        for (_, members), found in zip(parts, searches, strict=True):
            for row, i in enumerate(members):
                results[i] = self.translations(found, row)
                if not results[i]:
                    raise UserError(
                        f"sentence {i + 1} of {len(encoded)} has no translation of at most "
                        f"{self.config.longest(len(encoded[i].source) - 1)} tokens that fulfils "
                        "all that is asked of it; ask for less, or allow longer ones"
                    )
                if self.config.mbr:
                    order = by_utility([x.text for x in results[i]])
                    results[i] = [results[i][place] for place in order[:wanted]]
            done += len(members)
            progress(done)
        if alignments:
            pairs = [
                (sentence.source, np.asarray(x.tokens, np.int32))
                for sentence, translations in zip(encoded, results, strict=True)
                for x in translations
            ]
            forced = self.forced.decode(variables, *zip(*pairs), attention=True) if pairs else []
            found = iter(self._pairs(*pair, x) for pair, x in zip(pairs, forced, strict=True))
            results = [[x._replace(alignment=next(found)) for x in each] for each in results]
        return results

    def score(
        self,
        variables: Variables,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        alignments: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Translation]:
        """The given targets as translations of the sources, with their probabilities.

        `score` is that of a search without a coverage or repetition penalty. The language that a
        target names has probability 1, as in a search.
        """
        variables = self.programs.gather(variables)
        both = self.token_pairs(sources, targets)
        forced = self.forced.decode(variables, *both, attention=alignments, progress=progress)
        penalty = LENGTH_PENALTIES[self.config.length_penalty_form]
        results, given = [], len(self.tokenizers.target.beginning)
        for text, source, target, found in zip(targets, *both, forced, strict=True):
            log_probs_T = np.array(found.log_probs_T)
            log_probs_T[:given] = 0.0
            log_prob = float(log_probs_T.sum(dtype=np.float64))
            score = log_prob / float(penalty(len(target), self.config.length_penalty))
            tokens, log_probs = target.tolist(), log_probs_T.tolist()
            pairs = self._pairs(source, target, found) if alignments else None
            results.append(Translation(text, score, log_prob, tokens, log_probs, pairs))
        return results

    def token_pairs(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The token ids of all sources, cut as in `translate`, and of all targets; with EOS."""
        sides = []
        for tokenizer, texts, cut in zip(
            self.tokenizers, (sources, targets), (self.source_cut, None), strict=True
        ):
            encoded = tokenizer.encode_batch(list(texts), num_threads=-1)
            sides.append([with_eos(tokens, cut) for tokens in encoded])
        return tuple(sides)

    def _check(self, nbest: int, requests: Sequence[Request]) -> None:
        c = self.config
        if any(request.number is not None for request in requests) and not c.temperature:
            raise UserError("--seed_by=line is for samples; set decoding.temperature, too")
        if nbest < 1 or (nbest > c.beam_size and not c.temperature):
            raise UserError(
                f"{nbest} translations of each sentence are asked for, and decoding.beam_size is "
                f"{c.beam_size}; ask for at least 1 and at most that many, or raise it"
            )
        if nbest > MOST_OUTPUTS:
            raise UserError(
                f"{nbest:,} samples of each sentence are asked for; ask for at most "
                f"{MOST_OUTPUTS:,}, and give another decoding.seed for more"
            )
        has_constraints = any(request.constraints for request in requests)
        if has_constraints and (c.temperature or c.beam_groups > 1):
            name = "temperature" if c.temperature else "beam_groups"
            raise UserError(
                f"constraints are for beam search, and decoding.{name} is "
                f"{getattr(c, name)}; leave one of them out"
            )

    def check_room(self, sentence: Sentence, number: int, total: int) -> None:
        """Raises UserError for requirements that fill the longest output."""
        longest = self.config.longest(len(sentence.source) - 1)
        for tokens, what in (
            (sentence.prefix, "prefix"),
            ([token for phrase in sentence.phrases for token in phrase], "constraints"),
        ):
            if tokens == self.tokenizers.target.beginning:
                what = "language"
            if len(sentence.source) and len(tokens) >= longest:
                raise UserError(
                    f"the {what} of sentence {number} of {total} has {len(tokens)} tokens, and its "
                    f"translation at most {longest}, EOS included; shorten it, or raise "
                    "decoding.max_extra_length or decoding.max_length"
                )

    def _beam_size(self, sentences: Sequence[Sentence], nbest: int) -> int:
        """The hypotheses per sentence: samples as wanted; a beam for each bank of constraints."""
        if self.config.temperature:
            return nbest
        most = max((sum(map(len, sentence.phrases)) for sentence in sentences), default=0)
        return self.config.beam_size * (1 + most)

    def encode(self, requests: Sequence[Request], source_cut: int | None) -> list[Sentence]:
        """The requests in tokens."""
        texts, prefixes = ([request[i] for request in requests] for i in (0, 1))
        target = self.tokenizers.target
        sources = self.tokenizers.source.encode_batch(texts, num_threads=-1)
        begins = target.encode_batch(prefixes, num_threads=-1)
        target, encoded = target.for_language(""), []
        for request, tokens, begin in zip(requests, sources, begins, strict=True):
            is_read = self.reads_blank or request.source.strip()
            source = with_eos(tokens, source_cut) if is_read else np.empty(0, np.int32)
            phrases = longest_phrases(target.encode_batch(list(request.constraints), num_threads=1))
            words = len(words_of(request.source))
            encoded.append(Sentence(source, begin, phrases, words, request.number))
        return encoded

    def translations(self, found: Hypotheses, row: int) -> list[Translation]:
        """The outputs of a row, best first."""
        translations = []
        for tokens_L, token_log_probs_L, score, log_prob in zip(*(x[row] for x in found)):
            if score == -np.inf:
                break
            length = int(np.argmax(tokens_L == EOS)) + 1
            tokens = tokens_L[:length].tolist()
            text = self.tokenizers.target.decode(tokens)
            token_log_probs = token_log_probs_L[:length].tolist()
            translations.append(
                Translation(text, float(score), float(log_prob), tokens, token_log_probs)
            )
        return translations

    def _pairs(
        self, source: np.ndarray, target: np.ndarray, forced: Forced
    ) -> list[tuple[int, int]]:
        s, t = (len(tokenizer.beginning) for tokenizer in self.tokenizers)
        words = [
            words_of_tokens(tokenizer, tokens[begin:-1].tolist())
            for tokenizer, tokens, begin in zip(
                self.tokenizers, (source, target), (s, t), strict=True
            )
        ]
        return word_alignment(forced.attention_TS[t:, s:], *words)

    def _calls(
        self, variables: Variables, sentences: Sequence[Sentence], nbest: int
    ) -> tuple[
        list[tuple[Shape, list[int]]], Callable[[Shape, list[int]], tuple[tuple, dict[str, Any]]]
    ]:
        """The batches, and a function from each to the arguments of its program."""
        beam_size, sizes = self._beam_size(sentences, nbest), sizes_of_inputs(sentences)
        is_of_cpu = is_of_cpus(self.mesh)
        gathered = None if is_of_cpu else self.programs.gather(variables)

        def call(shape: Shape, members: list[int]) -> tuple[tuple, dict[str, Any]]:
            own, weight_layout = gathered, None
            if is_of_cpu:
                rows = shape.rows // self.mesh.size * beam_size
                weight_layout = layout_for(rows, self.config.int8)
                own = self._laid_out(variables, weight_layout)
            arrays = arrays_of(self.config, sentences, shape, members, sizes)
            static = {"beam_size": beam_size, "nbest": nbest, "weight_layout": weight_layout}
            return (own, *arrays), static

        return self._batches(variables, sentences, beam_size), call

    def _batches(
        self, variables: Variables, sentences: Sequence[Sentence], beam_size: int
    ) -> list[tuple[Shape, list[int]]]:
        def bytes_of_row(width: int) -> int:
            return row_bytes(self._model, variables, width, beam_size, self.config.longest(width))

        width = max((len(sentence.source) for sentence in sentences), default=0)
        check_memory(beam_size, self.config.longest(width), lambda: bytes_of_row(width))
        device = self.mesh.local_devices[0]  # as large as those of other processes
        at_once = batches_at_once(self.mesh)
        return batches(
            [len(sentence.source) for sentence in sentences],
            lambda width: most_rows(width, beam_size, bytes_of_row, device, at_once),
            self.mesh.size,
        )
