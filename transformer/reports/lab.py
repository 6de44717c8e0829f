"""The lab: what a model does with a sentence, and what it does without some of its heads.

Requests and answers are JSON; lab_server.py passes them on, lab.html shows them.
"""

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer.data.vocabulary import EOS
from transformer.data.wordpiece import MASK
from transformer.decoding.config import DecodingConfig
from transformer.decoding.inputs import Request, Sentence
from transformer.inference.attention_maps import (
    Attention,
    attention_of_ids,
    bound_to,
    encoder_attention,
    token_text,
)
from transformer.inference.beam_tree import DIVERGED, NEXT, Tree, TreeSearch
from transformer.inference.heads import Switch, places_of, switched
from transformer.inference.masked_words import fills, has_masked_lm, masked_ids, predicted
from transformer.models.functional import Params
from transformer.reports.attention_page import page_data
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError
from transformer.system.reading import Count, parse_json

MOST_BEAM = 16  # more would not be readable
MOST_EXPONENT = 10.0  # of the length penalty, or temperature: float32 cannot hold much more
MOST_DRAWN = 256  # tokens of a side; the weights of more would take megabytes
MOST_LINES = 500  # of the file that heads are measured on


class Ask(NamedTuple):
    """A request; its JSON has these names."""

    source: str
    beam: Count
    length_penalty: float
    temperature: float  # 0: a beam; else samples
    seed: Count
    beginning: str  # of the output
    tokens: list[Count]  # same, as ids; they go first
    switches: list[Switch]


class Lab:
    """A model that answers requests. lines: of the file that heads are measured on."""

    def __init__(self, model: TrainedModel, lines: Sequence[str] = ()):
        task = model.task
        self.is_bert = model.config.model.family == "bert"
        if model.others:
            raise UserError("the lab shows one model; leave --ensemble out")
        if not (self.is_bert or hasattr(task, "search")):
            raise UserError(
                f"{model.workdir} is a run of the task {model.config.task.name}, which has no "
                "sentences; give the work directory of a translation model or of BERT"
            )
        self.model, self.places = model, places_of(model)
        self.has_mask = has_masked_lm(model)
        self.reads_text = self.is_bert or task.reads_blank  # no pairs
        if not self.is_bert:
            bound = bound_to(model)
            self.attends = bound.attends or bound.joins_sides
            self._search = TreeSearch(task.translator)
        self._before: tuple[Any, Tree] | None = None  # the last request without switches
        self._pairs = self._read(lines)

    def facts(self) -> dict[str, Any]:
        """The settings and heads that the page needs before the first answer."""
        c = DecodingConfig(4, 0.6, 50) if self.is_bert else self.model.task.translator.config
        return {
            "name": self.model.workdir.resolve().name,
            "kind": "encoder" if self.is_bert else "text" if self.reads_text else "pair",
            "mask": MASK if self.has_mask else "",
            "layer": "layer" if self.is_bert else bound_to(self.model).layer_name,
            "heads": {
                name: [[x.heads, bool(x.off), bool(x.uniform)] for x in places]
                for name, places in self.places.items()
            },
            "beam": min(c.beam_size, MOST_BEAM),
            "length_penalty": c.length_penalty,
            "temperature": c.temperature,
            "pairs": len(self._pairs),
        }

    def warm_up(self) -> None:
        """Compiles the programs for short sentences, before anyone waits for them."""
        facts = self.facts()
        ask = {name: facts[name] for name in ("beam", "length_penalty", "temperature")}
        ask |= {"source": "a", "seed": 0, "beginning": "", "tokens": [], "switches": []}
        self.ask(json.dumps(ask).encode())

    def ask(self, content: bytes) -> dict[str, Any]:
        """The answer to an `Ask`; raises UserError for values that it cannot have."""
        ask = _parsed(content)
        params = self._params(ask["switches"])
        if not ask["source"].strip() and (self.is_bert or not self.reads_text):
            raise UserError("there is no sentence; type one")
        return (self._filled if self.is_bert else self._searched)(params, ask)

    def measure(self, content: bytes) -> dict[str, Any]:
        """The nll of a token of the file, with the switches of an `Ask`."""
        if not self._pairs:
            raise UserError("the lab was started without a file; add --file=pairs.tsv")
        params = self._params(_parsed(content)["switches"])
        if self.is_bert:
            log_probs = self._hidden(params)
        else:
            sides = zip(*self._pairs, strict=True)
            log_probs = np.concatenate(self._forced(params, *map(list, sides)))
        return {"nll": -float(np.mean(log_probs, dtype=np.float64))}

    def _forced(self, params: Params, sources: list, targets: list) -> list[np.ndarray]:
        """The log-probabilities of each target's tokens, without the language, which is given."""
        task, variables = self.model.task, (params, self.model.extra)
        given = len(task.tokenizers.target.beginning)
        found = task.translator.forced.decode(variables, sources, targets)
        return [x.log_probs_T[given:] for x in found]

    def _searched(self, params: Params, ask: dict[str, Any]) -> dict[str, Any]:
        task, extra = self.model.task, self.model.extra
        config, sentence = self._config(ask), self._sentence(ask)
        settings = config, sentence.source.tolist(), *sentence[1:]
        before, tree = None, self._search((params, extra), sentence, config)
        if not ask["switches"]:
            self._before = settings, tree
        else:
            if self._before is None or self._before[0] != settings:
                plain = self._search((self.model.params, extra), sentence, config)
                self._before = settings, plain
            old = self._before[1].found[0]
            pair = [sentence.source], [np.asarray(old.tokens, np.int32)]
            # Not the search's number: a repetition penalty changes that.
            then, now = (
                float(self._forced(x, *pair)[0].sum(dtype=np.float64))
                for x in (self.model.params, params)
            )
            before = {"text": old.text, "score": old.score, "log_prob": then, "now": now}
        source, target = task.tokenizers

        @functools.cache
        def text(token: int) -> str:
            return "EOS" if token == EOS else token_text(target, token)

        nodes = [
            {
                **node._asdict(),
                "text": text(node.token),
                "following": [[text(token), p] for token, p in node.following],
            }
            for node in tree.nodes
        ]
        outputs = [
            {"text": x.text, "score": x.score, "log_prob": x.log_prob, "path": path}
            for x, path in zip(tree.found, tree.paths, strict=True)
        ]
        ids = sentence.source[:-1].tolist()
        pieces = [[token_text(source, i), i] for i in ids]
        if self.reads_text:
            pieces = [[text(i), i] for i in sentence.prefix]
        found, output = None, tree.found[0].tokens[:-1]
        if self.attends and max(len(ids), len(output)) <= MOST_DRAWN:
            model = dataclasses.replace(self.model, params=params)
            maps = attention_of_ids(model, ids, output)
            found = self._page_data(maps, ask["source"], tree.found[0].text)
        return {
            "pieces": pieces,
            "nodes": nodes,
            "outputs": outputs,
            "before": before,
            "beginning": target.decode(sentence.prefix),
            "attention": found,
        }

    def _filled(self, params: Params, ask: dict[str, Any]) -> dict[str, Any]:
        """The most probable tokens in the place of each [MASK]."""
        model = dataclasses.replace(self.model, params=params)
        tokenizer, text = model.task.tokenizer, ask["source"]
        ids = masked_ids(tokenizer, text) if self.has_mask else tokenizer.encode_batch([text])[0]
        maps = encoder_attention(model, [ids])
        return {
            "pieces": [[tokenizer.pieces[i], i] for i in ids],
            "fills": fills(model, ids, NEXT),
            "attention": self._page_data(maps, ask["source"], ""),
        }

    def _hidden(self, params: Params) -> list[float]:
        """The log-probability of each token of the file, hidden by itself.

        Salazar et al. 2020, arXiv 1910.14659.
        """
        tokenizer, rows, places, labels = self.model.task.tokenizer, [], [], []
        for ids, _ in self._pairs:
            for place, label in enumerate(ids, 1):
                row = [tokenizer.cls, *ids, tokenizer.sep]
                row[place] = tokenizer.mask
                rows.append(row)
                places.append(place)
                labels.append(label)
        model = dataclasses.replace(self.model, params=params)
        found = predicted(model, rows, places)
        return [log_probs_V[i] for log_probs_V, i in zip(found, labels, strict=True)]

    def _page_data(self, maps: Attention, source: str, target: str) -> dict[str, Any]:
        if not all(np.isfinite(x).all() for x in maps.maps.values()):
            raise UserError(DIVERGED)
        return page_data(self.model, maps, source, target)

    def _params(self, switches: Sequence[dict[str, Any]]) -> Params:
        return switched(self.model, self.places, [Switch(**x) for x in switches])

    def _config(self, ask: dict[str, Any]) -> DecodingConfig:
        if not 1 <= ask["beam"] <= MOST_BEAM:
            raise UserError(f"the beam is {ask['beam']}; the lab draws one of 1 to {MOST_BEAM}")
        changes = {"beam_size": ask["beam"], "mbr": 0, "int8": False, "seed": 0}
        if not ask["temperature"]:
            changes |= {"top_k": 0, "top_p": 1.0}
        own = {name: float(ask[name]) for name in ("length_penalty", "temperature")}
        if max(own.values()) > MOST_EXPONENT:
            raise UserError(
                f"the length penalty and the temperature may be {MOST_EXPONENT:g} at most; lower "
                "them"
            )
        return dataclasses.replace(self.model.task.translator.config, **changes, **own)

    def _sentence(self, ask: dict[str, Any]) -> Sentence:
        task = self.model.task
        prefix = "" if self.reads_text else ask["beginning"]
        number = ask["seed"] if ask["temperature"] else None
        requests = task.searched([Request(ask["source"], prefix, number=number)])
        (sentence,) = task.translator.encode(requests, None)
        if (size := len(sentence.source)) > (most := task.data.max_source_length):
            raise UserError(
                f"the sentence has {size - 1} tokens, and this model learned from {most - 1} at "
                "most; shorten it"
            )
        size = task.tokenizers.target.vocab_size
        if any(not EOS < token < size for token in ask["tokens"]):
            raise UserError("a token of the beginning is not in the vocabulary; click another")
        return sentence._replace(prefix=ask["tokens"]) if ask["tokens"] else sentence

    def _read(self, lines: Sequence[str]) -> list[tuple[Any, Any]]:
        """The ids of each line: of a text, or of source and target."""
        if len(lines) > MOST_LINES:
            raise UserError(
                f"--file has {len(lines)} lines, and each head takes a pass over all; give at most "
                f"{MOST_LINES}"
            )
        if self.is_bert and lines and not self.has_mask:
            raise UserError("--file is for models that predict tokens; leave it out")
        pairs = [("", x) if self.reads_text else tuple(x.split("\t")) for x in lines]
        for number, pair in enumerate(pairs, 1):
            if len(pair) != 2 or not pair[1].strip():
                what = "an empty line" if self.reads_text else "no pair, source, tab and target,"
                raise UserError(f"--file has {what} in line {number}; mend that")
        if not pairs:
            return []
        sources, targets = map(list, zip(*pairs, strict=True))
        if not self.is_bert:
            data = self.model.task.data
            both = self.model.task.translator.token_pairs(sources, targets)
            limits = data.max_source_length, data.max_target_length
        else:
            rows = self.model.task.tokenizer.encode_batch(targets)
            both, limits = (rows, rows), [self.model.config.model.max_positions - 2] * 2
        for side, most in zip(both, limits, strict=True):
            for number, ids in enumerate(side, 1):
                if not 0 < len(ids) <= most:
                    raise UserError(
                        f"line {number} of --file has {len(ids)} tokens on a side, and this model "
                        f"takes 1 to {most}; change it"
                    )
        return list(zip(*both, strict=True))


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        return parse_json(content, Ask)
    except ValueError as error:  # and of bytes that are no UTF-8
        raise UserError(
            f"the request cannot be used: {error}; change that, or reload the page"
        ) from error
