"""The Python API: a trained model that translates and scores lists of sentences."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from transformer.decoding.config import POLICIES
from transformer.decoding.inputs import Request
from transformer.decoding.long_lines import Cutter, LongLines
from transformer.decoding.translation import Translation, best_texts
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
        if not hasattr(task, "search"):
            raise UserError(
                f"{restored.workdir} is a run of the task {restored.config.task.name}, which does "
                f"not translate; give another work directory, or see {script('classify')}"
            )
        if max_tokens is not None:
            arguments.number("max_tokens", max_tokens)
        self.restored, self._variables = restored, (restored.params, restored.extra)
        self._max_tokens = max_tokens
        self.long_lines = long_lines or task.long_lines
        if self.long_lines not in POLICIES:
            raise UserError(
                f"long_lines is {long_lines!r}; it must be one of: {', '.join(POLICIES)}"
            )
        # The longest sequences include EOS.
        lengths = task.data.max_source_length, task.data.max_target_length
        self.limits = tuple(max_tokens or length - 1 for length in lengths)
        tokenizers, (limit, target_limit) = task.tokenizers, self.limits
        self._lines = LongLines(self.long_lines, tokenizers.source, limit, 1, task.target_language)
        self._target = Cutter.of(tokenizers.target, target_limit)

    @named_as_in_python()
    def between(self, source_language: str, target_language: str) -> "Model":
        """This model for two languages of its vocabulary, by their codes.

        Both share the parameters and compiled programs. Raises UserError for a vocabulary without
        languages, or without these.
        """
        codes = arguments.texts("languages", [source_language, target_language])
        if not (task := self.restored.task).data.languages:
            raise UserError(
                f"{self.restored.workdir} does not translate between languages; give another model"
            )
        restored = dataclasses.replace(self.restored, task=task.between(*codes))
        return Model(restored, self.long_lines, self._max_tokens)

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
        return best_texts(self.search(sentences, prefixes=prefixes, constraints=constraints))

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
        progress: is called with the number of sentences done.
        Raises UserError for requests that cannot be fulfilled.
        """
        requests = arguments.requests(sentences, prefixes, constraints, numbers)
        arguments.number("nbest", nbest)
        arguments.function("progress", progress)
        return self.find(requests, nbest=nbest, alignments=alignments, progress=progress)

    def find(
        self,
        requests: Sequence[Request],
        *,
        nbest: int = 1,
        alignments: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[list[Translation]]:
        """`search` for requests that are known to be well-formed."""
        variables, options = self._variables, {"nbest": nbest, "alignments": alignments}
        find = functools.partial(self.restored.task.search, *variables, **options)
        return self._lines.search(find, requests, progress)

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
        return self.restored.task.score(
            *self._variables, sources, targets, alignments=alignments, progress=progress
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
        return self._lines.is_long(arguments.text("source", source))

    def is_long_target(self, target: str) -> bool:
        return self.long_lines != "whole" and self._target.is_long(arguments.text("target", target))


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
    asked = {name: x for name, x in options._asdict().items() if name != "skip_bad_lines"}
    return {
        **dataclasses.asdict(restored.task.translator.config),
        **asked,
        "max_tokens": list(model.limits),
        "tokenizer": [sha256[:16] for sha256 in restored.task.tokenizers.sha256],
        "parameters": digest((restored.params, restored.extra))[:16],
    }
