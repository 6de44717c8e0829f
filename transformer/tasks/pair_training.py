"""Training on pairs: facts, examples, full validation. seq2seq.py has the task itself."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.data.batches import EvaluationBatches, TrainingBatches
from transformer.data.pairs import PairSource
from transformer.data.sources import MAIN
from transformer.data.token_files import TokenizedPairs
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import UNK
from transformer.models.family import Sizes
from transformer.system.errors import UserError
from transformer.system.sharding import distribute, split_rows
from transformer.tasks.source_gain import source_scores
from transformer.tasks.supervised import SupervisedTraining
from transformer.tasks.task import Examples, Facts, examples, mean_nll
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
        corpora: Sequence[str] = (MAIN,),
    ):
        """corpora: the names of those of the batches."""
        self.corpora = corpora
        sizes = sizes_of(config, task.tokenizers)
        super().__init__(config, task, batches, validation, sizes, hashes)
        self.validation_source = validation_source

    def prepare(self, state: TrainState) -> dict[str, jax.stages.Compiled]:
        measure = self.task.measure  # `super` puts a program for one shape in its place
        programs = super().prepare(state)
        if self.training.full_validation_every:
            variables = state.params, state.extra
            programs |= self.task.prepare(variables, self.validation_source)
        if len(self.corpora) > 1:
            variables, (_, batch) = (state.params, state.extra), next(self.samples())
            self.measure_sample = measure.lower(*variables, batch).compile()
            jax.block_until_ready(self.measure_sample(*variables, batch))
            programs["samples of corpora"] = self.measure_sample
        return programs

    def samples(self) -> Iterator[tuple[str, Any]]:
        """A batch of each corpus, always the same, on the devices."""
        for name, rows in zip(self.corpora, self.packed.corpora, strict=True):
            chosen = np.full(self.batches.layout.rows_per_step, -1)
            chosen[: len(rows)] = rows[: len(chosen)]
            yield name, distribute(self.packed.batch, chosen, split_rows(self.mesh, axis=0))

    def validate(
        self, state: TrainState, full: bool, check: Callable[..., None]
    ) -> tuple[dict[str, float], Examples]:
        found, shown = super().validate(state, full, check)
        for name, batch in self.samples() if len(self.corpora) > 1 else ():
            loss = self.measure_sample(state.params, state.extra, batch)
            found[f"{name}/nll"] = mean_nll([loss])
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
        tokenizers = self.task.tokenizers
        source, target = self.packed.pair(number)
        return {
            self.kind: number,
            "source": tokenizers.source.decode(source.tolist()),
            "target": tokenizers.target.decode(target.tolist()),
        }

    def facts(self) -> Facts:
        corpora, counts = self.packed.all_pairs, {}
        for name, pairs in zip(self.corpora, corpora, strict=True):
            of = f"{name}: " if len(corpora) > 1 else ""
            counts[f"{of}training pairs"] = pairs.report["total"]
            counts |= {f"{of}dropped: {why}": count for why, count in pairs.dropped.items()}
            counts[f"{of}sources cut"] = pairs.report["source_cut"]
            counts[f"{of}kept"] = len(pairs)
        if len(corpora) > 1:
            for name, rows in zip(self.corpora, self.packed.rows_of_corpora, strict=True):
                counts[f"{name}: rows of an epoch"] = rows
        counts["validation pairs"] = len(self.validation.packed.pairs)
        for side, tokenizer in zip(("source", "target"), self.task.tokenizers, strict=True):
            tokens = [getattr(pairs, f"{side}_tokens") for pairs in corpora]
            counts[f"{side} vocabulary"] = tokenizer.vocab_size
            counts[f"{side} tokens"] = sum(map(len, tokens))
            counts[f"unknown {side} tokens"] = sum(int(np.count_nonzero(x == UNK)) for x in tokens)
        lengths = dict(zip(("source", "target"), self.packed.sides, strict=True))
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
