"""The Python API: a trained model that translates and scores lists of sentences."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from transformer.decoding.long_lines import POLICIES, Cutter, join, regrouped
from transformer.decoding.translation import Translation
from transformer.inference import api_arguments as arguments
from transformer.inference.api_arguments import named_as_in_python
from transformer.inference.attention_maps import Attention, attention_of
from transformer.runs.integrity import digest
from transformer.runs.restore import TrainedModel, as_one, restore
from transformer.system.commands import script
from transformer.system.errors import UserError
from transformer.system.terminal import verbosity


class Model:
    """A trained model; compiled programs are kept for the next call.

    restored: see runs/restore.py.
    long_lines: how to treat a sentence of more than max_tokens. "split": its sentences or clauses
    are translated separately and joined; "cut": only its beginning is translated; "refuse":
    UserError; "whole": it is translated as it is. Default: the task's; "split" for a model of
    sentences.
    max_tokens: default: the longest source that the model was trained on.
    """

    def __init__(
        self,
        restored: TrainedModel,
        long_lines: str | None = None,
        max_tokens: int | None = None,
    ):
        task = restored.task
        if not hasattr(task, "translator"):
            raise UserError(
                f"{restored.workdir} is a run of the task {restored.config.task.name}, which does "
                f"not translate; give another work directory, or see {script('classify')}"
            )
        if max_tokens is not None:
            arguments.number("max_tokens", max_tokens)
        self.restored = restored
        self.long_lines = long_lines or task.long_lines
        if self.long_lines not in POLICIES:
            raise UserError(
                f"long_lines is {long_lines!r}; it must be one of: {', '.join(POLICIES)}"
            )
        # The longest sequences include EOS.
        lengths = task.data.max_source_length, task.data.max_target_length
        self.limits = tuple(max_tokens or length - 1 for length in lengths)
        self._source, self._target = map(Cutter.of, task.tokenizers, self.limits)

    def translate(
        self,
        sentences: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        constraints: Sequence[Sequence[str]] | None = None,
    ) -> list[str]:
        """The best translation of each sentence, in order; a blank one has an empty translation.

        The arguments are those of `search`.
        """
        found = self.search(sentences, prefixes=prefixes, constraints=constraints)
        return [translations[0].text if translations else "" for translations in found]

    @named_as_in_python()
    def search(
        self,
        sentences: Sequence[str],
        *,
        nbest: int = 1,
        prefixes: Sequence[str] | None = None,
        constraints: Sequence[Sequence[str]] | None = None,
        alignments: bool = False,
        numbers: Sequence[int] | None = None,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[list[Translation]]:
        """The best `nbest` Translations of each sentence, best first; none for a blank one.

        sentences: a list of texts; one text is taken as a list of one.
        prefixes: how the translation of each sentence must begin; "" for no constraint.
        constraints: for each sentence the phrases that its translation must contain.
        alignments: whether to find the pairs of words that translate each other.
        numbers: one for each sentence; equal sentences with different numbers get different
        samples.
        progress: is called with the number of pieces done.
        Raises UserError for requests that cannot be fulfilled.
        """
        given = [sentences] if isinstance(sentences, str) else sentences
        sentences = arguments.texts("sentences", given)
        arguments.number("nbest", nbest)
        arguments.function("progress", progress)
        if prefixes is not None and not isinstance(prefixes, str):
            prefixes = arguments.texts("prefixes", prefixes)
        if constraints is not None and not isinstance(constraints, str):
            constraints = arguments.listed("constraints", constraints, "lists of phrases")
        for name, values in (
            ("prefixes", prefixes),
            ("constraints", constraints),
            ("numbers", numbers),
        ):
            if values is not None and (isinstance(values, str) or len(values) != len(sentences)):
                raise UserError(
                    f"{name} are {values!r:.50} for {len(sentences)} sentences; give a list with "
                    "as many"
                )
        if any(isinstance(phrases, str) for phrases in constraints or ()):
            raise UserError("constraints hold a text; give each sentence a list of phrases")
        if constraints is not None:
            constraints = [
                arguments.texts(f"constraints[{i}]", phrases)
                for i, phrases in enumerate(constraints)
            ]
        pieces = [self._pieces(sentence) for sentence in sentences]
        if constraints is not None and any(
            len(parts) > 1 and phrases for parts, phrases in zip(pieces, constraints, strict=True)
        ):
            raise UserError(
                f"a sentence of more than {self.limits[0]} tokens is translated in pieces, which "
                "cannot share constraints; shorten it, or choose another long_lines"
            )
        begins = [i == 0 for parts in pieces for i in range(len(parts))]
        owner = [i for i, parts in enumerate(pieces) for _ in parts]
        sources, prefixes = self.restored.task.searched(
            [piece for parts in pieces for piece in parts],
            prefixes and [prefixes[i] if first else "" for i, first in zip(owner, begins)],
        )
        found = self.restored.task.translator.search(
            (self.restored.params, self.restored.extra),
            sources,
            nbest=nbest,
            prefixes=prefixes,
            constraints=constraints and [constraints[i] for i in owner],
            alignments=alignments,
            numbers=numbers and [numbers[i] for i in owner],
            progress=progress,
        )
        language = getattr(self.restored.task.data, "target_language", "")
        lines = zip(regrouped(found, pieces), pieces, sentences, strict=True)
        # A line of only spaces may have no piece.
        return [
            answers[0] if len(parts) == 1 else join(answers, parts, sentence, language)
            for answers, parts, sentence in lines
        ]

    @named_as_in_python()
    def score(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        alignments: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Translation]:
        """The given targets as Translations, with their log-probabilities given the sources.

        pairs: source and target. Nothing is split or cut.
        """
        arguments.function("progress", progress)
        pairs = arguments.pairs("pairs", pairs)
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        self.restored.task.check_scored(sources)
        return self.restored.task.translator.score(
            (self.restored.params, self.restored.extra),
            sources,
            targets,
            alignments=alignments,
            progress=progress,
        )

    @named_as_in_python()
    def attention(self, source: str, target: str | None = None) -> Attention:
        """The attention weights of a pair of sentences; see attention_maps.py.

        target: default: the model's own translation. Nothing is split or cut.
        """
        target = None if target is None else arguments.text("target", target)
        return attention_of(self.restored, arguments.text("source", source), target)

    def is_long(self, source: str) -> bool:
        """True if a sentence is longer than the longest translated at once."""
        return self.long_lines != "whole" and self._source.is_long(arguments.text("source", source))

    def is_long_target(self, target: str) -> bool:
        return self.long_lines != "whole" and self._target.is_long(arguments.text("target", target))

    def _pieces(self, sentence: str) -> list[str]:
        if not self.is_long(sentence):
            return [sentence]
        if self.long_lines == "refuse":
            raise UserError(f"a sentence is longer than {self.limits[0]} tokens; shorten it")
        if self.long_lines == "cut":
            return [self._source.first(sentence)]
        return self._source.pieces(sentence)


@named_as_in_python()
def load(
    workdir: str | Path,
    *,
    checkpoint: str | int | None = None,
    average_last: int | None = None,
    ensemble: Sequence[str | Path] = (),
    long_lines: str | None = None,
    max_tokens: int | None = None,
    **decoding: Any,
) -> Model:
    """See `transformer.load`."""
    overrides = arguments.decoding(decoding)
    if average_last is not None:
        arguments.number("average_last", average_last)
    folders = [arguments.folder("workdir", workdir)]
    for i, other in enumerate(arguments.listed("ensemble", ensemble, "work directories")):
        folders.append(arguments.folder(f"ensemble[{i}]", other))
    which = None if checkpoint is None else str(checkpoint), average_last, overrides
    with verbosity(logging.WARNING):
        models = [restore(folder, *which) for folder in folders]
    return Model(models[0] if len(models) == 1 else as_one(models), long_lines, max_tokens)


def identity(model: Model, options: Any) -> dict[str, Any]:
    """The settings that an output depends on, besides its input, by flag names.

    options: see engine.py. A line that is passed over does not change the others.
    """
    restored = model.restored
    decoding = dataclasses.asdict(restored.task.translator.config)
    parameters = digest((restored.params, restored.extra))[:16]
    tokenizers = restored.task.tokenizers.sha256
    asked = {name: x for name, x in options._asdict().items() if name != "skip_bad_lines"}
    return (
        decoding
        | asked
        | {
            "max_tokens": list(model.limits),
            "tokenizer": [sha256[:16] for sha256 in tokenizers],
            "parameters": parameters,
        }
    )
