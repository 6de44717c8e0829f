"""Training on pairs: batches, the update, validation. seq2seq.py has the task itself."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from transformer.data.batches import Batch, EvaluationBatches, TrainingBatches
from transformer.data.sources import PairSource
from transformer.data.token_files import DROPPED, TokenizedPairs
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import UNK
from transformer.models.family import Sizes
from transformer.system.errors import UserError
from transformer.system.sharding import distribute, split_rows
from transformer.tasks.task import Examples, Facts, examples, mean_nll
from transformer.training.step import TrainState, make_nll_step, make_train_step


class Seq2SeqTraining:
    """A model and its sentence pairs, packed into the rows of batches over a mesh."""

    def __init__(
        self,
        config: Any,  # a Config
        mesh: jax.sharding.Mesh,
        task: Any,  # a Seq2Seq
        batches: TrainingBatches,
        validation: EvaluationBatches,
        validation_source: PairSource,
        data_id: str,
    ):
        self.training = config.training
        self.mesh = mesh
        self.task = task
        self.batches = batches
        self.validation = validation
        self.validation_source = validation_source
        self.data_id = data_id
        self.num_tokens = batches.packed.num_tokens
        pairs = batches.packed.pairs
        flops = config.family.flops
        lengths = pairs.source_lengths, pairs.target_lengths
        self.flops = float(flops(config.model, sizes_of(config, task.tokenizers), *lengths).sum())

    def batch(self, number: int) -> tuple[Batch, int]:
        rows = self.batches.rows(number)
        batch = distribute(self.batches.packed.batch, rows, split_rows(self.mesh, axis=1))
        return batch, self.batches.packed.num_tokens_of(rows)

    def make_step(self, optimizer):
        return make_train_step(self.task.model, optimizer, self.training, self.mesh)

    def prepare(self, state: TrainState) -> dict[str, jax.stages.Compiled]:
        nll_step = make_nll_step(self.task.model, self.mesh)
        batch = next(self._validation_batches())
        self.nll_step = nll_step.lower(state.params, state.extra, batch).compile()
        mean_nll([self.nll_step(state.params, state.extra, batch)])
        programs = {"validation step": self.nll_step}
        if self.training.full_validation_every:
            variables = state.params, state.extra
            programs |= self.task.prepare(variables, self.validation_source)
        return programs

    def validate(
        self, state: TrainState, full: bool, check: Callable[..., None]
    ) -> tuple[dict[str, float], Examples]:
        losses = []
        for batch in self._validation_batches():
            check()
            losses.append(self.nll_step(state.params, state.extra, batch))
        found = {"nll": mean_nll(losses)}
        if not full:
            return found, Examples()
        sources, references = map(list, zip(*self.validation_source.pairs(), strict=True))
        hypotheses = self.task.translate(state.params, state.extra, sources, check)
        variables = state.params, state.extra
        texts = sources, references, hypotheses
        found |= self.task.validation_scores(variables, "validation", *texts)
        turn = int(state.step) // self.training.checkpoint_every
        shown = pair_examples(*([lines[turn % len(lines)]] for lines in texts))
        return found, Examples(shown)

    def examples(self, number: int) -> list[dict[str, Any]]:
        packed, tokenizers = self.batches.packed, self.task.tokenizers
        return [
            {
                "pair": int(i),
                "source": tokenizers.source.decode(packed.pairs.source(i).tolist()),
                "target": tokenizers.target.decode(packed.pairs.target(i).tolist()),
            }
            for i in packed.pairs_of(self.batches.rows(number))
        ]

    def facts(self) -> Facts:
        pairs, counts = self.batches.packed.pairs, {}
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

    def _validation_batches(self) -> Iterator[Batch]:
        for number in range(len(self.validation)):
            rows = self.validation.rows(number)
            yield distribute(self.validation.packed.batch, rows, split_rows(self.mesh, axis=0))


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


def pair_examples(sources: list[str], references: list[str], hypotheses: list[str]) -> str:
    return examples({"source": sources, "reference": references, "translation": hypotheses})
