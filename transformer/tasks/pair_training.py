"""Training on pairs: facts, examples, full validation. seq2seq.py has the task itself."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.data.batches import EvaluationBatches, TrainingBatches
from transformer.data.pairs import PairSource
from transformer.data.token_files import DROPPED, TokenizedPairs
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import UNK
from transformer.models.family import Sizes
from transformer.system.errors import UserError
from transformer.tasks.source_gain import source_scores
from transformer.tasks.supervised import SupervisedTraining
from transformer.tasks.task import Examples, Facts, examples
from transformer.training.step import TrainState


class Texts(NamedTuple):
    """The sources and references of a split, and a model's outputs."""

    split: str
    sources: Sequence[str]
    references: Sequence[str]
    hypotheses: Sequence[str]

    @property
    def examples(self) -> str:
        """A few, for people to read."""
        names = "source", "reference", "translation"
        return examples(dict(zip(names, map(list, self[1:]), strict=True)))


class Seq2SeqTraining(SupervisedTraining):
    """A model and its sentence pairs."""

    kind = "pair"

    def __init__(
        self,
        config: Any,  # a Config
        task: Any,  # a Seq2Seq
        batches: TrainingBatches,
        validation: EvaluationBatches,
        validation_source: PairSource,
        hashes: Sequence[str],
    ):
        sizes = sizes_of(config, task.tokenizers)
        super().__init__(config, task, batches, validation, sizes, hashes)
        self.validation_source = validation_source

    def prepare(self, state: TrainState) -> dict[str, jax.stages.Compiled]:
        programs = super().prepare(state)
        if self.training.full_validation_every:
            variables = state.params, state.extra
            programs |= self.task.prepare(variables, self.validation_source)
        return programs

    def validate(
        self, state: TrainState, full: bool, check: Callable[..., None]
    ) -> tuple[dict[str, float], Examples]:
        found, shown = super().validate(state, full, check)
        if not full:
            return found, shown
        variables, step = (state.params, state.extra), int(state.step)
        sources, references = map(list, zip(*self.validation_source.pairs(), strict=True))
        hypotheses = self.task.translate(*variables, sources, check)
        texts = Texts("validation", sources, references, hypotheses)
        found |= self.task.validation_scores(variables, texts)
        # Once in a run, and not early: at the first full validation of its second half.
        every = self.training.full_validation_every
        warns = (step - 1) // every * every < self.training.steps / 2 <= step
        uses = source_scores(
            *(self.task, variables, *texts[1:]), like=self.validation, check=check, warns=warns
        )
        found |= {name: score["score"] for name, score in uses.items()}
        turn = step // self.training.checkpoint_every
        one = slice(turn % len(sources), turn % len(sources) + 1)
        return found, Examples(Texts("", *(lines[one] for lines in texts[1:])).examples)

    def shown(self, number: int) -> dict[str, Any]:
        pairs, tokenizers = self.packed.pairs, self.task.tokenizers
        return {
            self.kind: number,
            "source": tokenizers.source.decode(pairs.source(number).tolist()),
            "target": tokenizers.target.decode(pairs.target(number).tolist()),
        }

    def facts(self) -> Facts:
        pairs, counts = self.packed.pairs, {}
        counts["training pairs"] = pairs.report["total"]
        for why in DROPPED:
            counts[f"dropped: {why.replace('_', ' ')}"] = pairs.report[why]
        counts["sources cut"] = pairs.report["source_cut"]
        counts["kept"] = len(pairs)
        counts["validation pairs"] = len(self.validation.packed.pairs)
        sides = {"source": pairs.source_tokens, "target": pairs.target_tokens}
        for (side, tokens), tokenizer in zip(sides.items(), self.task.tokenizers, strict=True):
            counts[f"{side} vocabulary"] = tokenizer.vocab_size
            counts[f"{side} tokens"] = len(tokens)
            counts[f"unknown {side} tokens"] = int(np.count_nonzero(tokens == UNK))
        lengths = {"source": pairs.source_lengths, "target": pairs.target_lengths}
        return Facts(
            counts,
            {
                f"tokens of a {side} sentence, EOS included": np.bincount(x).tolist()
                for side, x in lengths.items()
            },
        )


def sizes_of(config: Any, tokenizers: Tokenizers) -> Sizes:
    """The model's sizes that follow from data and vocabularies."""
    limits = config.data.max_source_length, config.data.max_target_length
    return Sizes(*tokenizers.vocab_sizes, tokenizers.joint, *limits)


def check_positions(words: int, *splits: TokenizedPairs) -> None:
    """Raises UserError if one position of the model would hold words of two sources of a row."""
    if number := sum(np.count_nonzero(pairs.source_lengths % words) for pairs in splits):
        raise UserError(
            f"model.words_per_position is {words}, but {number} sources have no multiple of so "
            "many tokens, EOS included; set it to 1, data.packing to False, or take data made for "
            "it, such as data.source_language=facts of bAbI"
        )
