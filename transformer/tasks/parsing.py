"""Constituency parsing as translation (Section 6.3): sentences in, their trees out.

Training and search are those of `seq2seq`: the target is the sequence of a tree (data/trees.py).
Each output is mended into a tree over the words of its sentence, so that all sentences count. With
decoding.brackets the search finds only trees.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from transformer.data.tokenizers import TokenizerConfig, Tokenizers
from transformer.data.treebank import TreebankConfig, TreePairs
from transformer.data.trees import Tree, read_trees
from transformer.data.words import words_of
from transformer.decoding.brackets import Grammar, grammar_of
from transformer.decoding.config import DecodingConfig
from transformer.decoding.programs import Variables
from transformer.metrics import parseval
from transformer.models.functional import Params
from transformer.system import distributed
from transformer.tasks import seq2seq
from transformer.tasks.mending import is_well_formed, repaired
from transformer.tasks.pair_training import Texts
from transformer.tasks.source_gain import METRICS, source_scores
from transformer.tasks.task import Metric, Outputs, Task, examples, from_model

_EVALB = "labelled brackets of all sentences, as EVALB with COLLINS.prm counts them"
DEFINITIONS = {
    "f1": f"harmonic mean of precision and recall: {_EVALB}",
    "precision": f"per cent of the output's brackets that are right: {_EVALB}",
    "recall": f"per cent of the gold trees' brackets that are found: {_EVALB}",
    "complete": "per cent of the sentences whose brackets are all right",
    "malformed": "per cent of the outputs that are no tree over their words, and were mended",
}


class Parsing(seq2seq.Seq2Seq):
    """A model with its vocabularies: it parses, and counts brackets."""

    open_source = staticmethod(TreePairs)
    long_lines = "refuse"  # the trees of two pieces do not make one tree
    target_language = ""

    @staticmethod
    def check_data(data: TreebankConfig, references: Sequence[str] = ()) -> None:
        del data, references  # TreePairs does

    @staticmethod
    def grammar(tokenizers: Tokenizers, decoding: DecodingConfig) -> Grammar | None:
        return grammar_of(tokenizers.target.pieces) if decoding.brackets else None

    def evaluate(
        self, params: Params, extra: dict, split: str, progress: Callable[[int, int], None]
    ) -> Outputs:
        with distributed.first_alone():
            source = self.open_source(self.data, split)
        sources, sequences = map(list, zip(*source.pairs(), strict=True))
        written = self.translate(params, extra, sources, lambda done: progress(done, len(sources)))
        trees = list(map(mended, written, source.trees))
        texts = {
            "sources": sources,
            "references": list(map(str, source.trees)),
            "hypotheses": list(map(str, trees)),
            "sequences": written,
        }
        found = bracket_scores(trees, source.trees) | _malformed(written, source.trees)
        found |= source_scores(self, (params, extra), sources, sequences, written)
        shown = {"sentence": sources, "gold": texts["references"], "tree": texts["hypotheses"]}
        return Outputs(texts, found, examples(shown))

    @staticmethod
    def text_scores(data: TreebankConfig, texts: Texts) -> dict[str, dict[str, Any]]:
        trees = list(read_trees(texts.hypotheses, "the saved outputs"))
        return bracket_scores(trees, TreePairs(data, texts.split).trees)

    def validation_scores(self, variables: Variables, texts: Texts) -> dict[str, float]:
        gold = self.open_source(self.data, texts.split).trees
        found = bracket_scores(list(map(mended, texts.hypotheses, gold)), gold)
        found |= _malformed(texts.hypotheses, gold)
        return {name: found[name]["score"] for name in TASK.metrics if name in found}


def mended(written: str, gold: Tree) -> Tree:
    """The tree of an output, over the words and with the tags of the gold tree.

    EVALB recognises punctuation, which it leaves out, by its tag. Tags are not scored.
    """
    leaves = list(gold.leaves())
    return repaired(words_of(written), [x.word for x in leaves], [x.label for x in leaves])


def bracket_scores(trees: Sequence[Tree], gold: Sequence[Tree]) -> dict[str, dict[str, Any]]:
    """Bracket scores in the form of Outputs.scores."""
    found = parseval.total([parseval.count([a], [b]) for a, b in zip(gold, trees, strict=True)])
    names = ("f1", "precision", "recall", "complete")
    return {name: {"score": found[name], "definition": DEFINITIONS[name]} for name in names}


def _malformed(written: Sequence[str], gold: Sequence[Tree]) -> dict[str, dict[str, Any]]:
    wrong = sum(
        not is_well_formed(words_of(text), sum(1 for _ in tree.leaves()))
        for text, tree in zip(written, gold, strict=True)
    )
    return from_model({"malformed": 100 * wrong / len(gold)}, DEFINITIONS)


def content_sha256(data: TreebankConfig, split: str) -> str:
    """See Task."""
    trees = "".join(f"{tree}\n" for tree in TreePairs(data, split).trees)
    return hashlib.sha256(trees.encode(errors="surrogatepass")).hexdigest()


TASK: Task = seq2seq.TASK._replace(
    sections={"data": TreebankConfig, "tokenizer": TokenizerConfig, "decoding": DecodingConfig},
    metrics={
        "nll": Metric("lower"),
        "f1": Metric("higher", full=True),
        "complete": Metric("higher", full=True),
        "malformed": Metric("lower", full=True),
        **METRICS,
    },
    main_metric="f1",
    **seq2seq.functions_of(Parsing) | {"content_sha256": content_sha256},
    score_test_set=None,
)
