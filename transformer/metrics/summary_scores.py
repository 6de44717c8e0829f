"""Scores of summaries: ROUGE, and statistics (length, repetition, copying).

ROUGE is F1, in per cent, by the package rouge-score. With several references it is the mean over
them; `..._best` is that of the best reference of each document.
"""

import re
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from statistics import mean

from transformer.data.words import BLANKS
from transformer.system.errors import UserError
from transformer.system.packages import optional_module

EXTRA = "summarization"
KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_SENTENCE_END = re.compile(rf"(?<=[.!?])[{BLANKS}]+")
_WORD = re.compile(r"\w+")
_ROUGE_WORD = re.compile(r"[a-zA-Z0-9]")
N = 3  # of the n-grams that are repeated or copied

DEFINITIONS = {
    "length": "mean words of a summary",
    "reference_length": "mean words of a reference",
    "repeated_trigrams": "per cent of the summaries' trigrams that the same summary has had before",
    "copied_trigrams": "per cent of the summaries' trigrams that their documents have",
    "empty_summaries": "number of summaries without a word",
    "empty_references": "number of references without a word; they count, as 0",
}


def check_package() -> None:
    """Raises UserError if rouge-score is not installed."""
    optional_module("rouge_score.rouge_scorer", EXTRA)


def rouge(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], line_break: str, stemmer: bool
) -> dict[str, dict]:
    """`rouge1`, `rouge2`, `rougeL` and `rougeLsum`, each `{"score", "signature"}`.

    references: lists as long as the hypotheses.
    line_break: separates the sentences that rougeLsum compares; if it is blank, they end at . ! ?
      before a space.
    """
    scorer_module = optional_module("rouge_score.rouge_scorer", EXTRA)
    if not hypotheses:
        raise UserError("no summaries to score: check that the split is not empty")
    scorer = scorer_module.RougeScorer(KINDS, use_stemmer=stemmer)

    def lines(text: str) -> str:
        return "\n".join(sentences(text, line_break))

    # By reference, by document.
    found = [
        [scorer.score(lines(r), lines(h)) for r, h in zip(column, hypotheses, strict=True)]
        for column in references
    ]
    mark = line_break.strip()
    ends = f"at {mark!r}" if mark else "at .!? before a space"
    signature = (
        f"rouge-score {version('rouge-score')}, F1, words of a-z and 0-9, "
        f"{'with' if stemmer else 'no'} stemmer, sentences end {ends}, "
        f"{len(references)} reference(s)"
    )
    scores = {}
    for kind in KINDS:
        f1 = [[score[kind].fmeasure for score in column] for column in found]
        joined = {"": (mean(map(mean, f1)), "mean over references")}
        if len(references) > 1:
            joined["_best"] = (mean(map(max, zip(*f1))), "the best reference of each document")
        for suffix, (score, how) in joined.items():
            how = f", {how}" if len(references) > 1 else ""
            scores[kind + suffix] = {"score": 100 * score, "signature": signature + how}
    return scores


def sentences(text: str, line_break: str) -> list[str]:
    """The sentences that are not blank, parted by `line_break` or, if that is blank, at . ! ?"""
    mark = line_break.strip()
    parts = text.split(mark) if mark else _SENTENCE_END.split(text)
    return [part.strip() for part in parts if part.strip()]


def statistics(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    line_break: str,
) -> dict[str, dict]:
    """Statistics of the summaries, each `{"score", "definition"}`; see DEFINITIONS.

    line_break: never counts as a word.
    """
    if mark := line_break.strip():
        sources, hypotheses, *references = (
            [text.replace(mark, " ") for text in column]
            for column in (sources, hypotheses, *references)
        )
    total = repeated = copied = 0
    for source, hypothesis in zip(sources, hypotheses, strict=True):
        grams = Counter(_grams(hypothesis))
        in_source = set(_grams(source))
        total += grams.total()
        repeated += grams.total() - len(grams)
        copied += sum(count for gram, count in grams.items() if gram in in_source)
    words = [len(_words(text)) for text in hypotheses]
    reference_words = [len(_words(text)) for column in references for text in column]
    values = {
        "length": mean(words),
        "reference_length": mean(reference_words),
        "repeated_trigrams": 100 * repeated / max(1, total),
        "copied_trigrams": 100 * copied / max(1, total),
        "empty_summaries": words.count(0),
        "empty_references": reference_words.count(0),
    }
    return {
        name: {"score": float(value), "definition": DEFINITIONS[name]}
        for name, value in values.items()
    }


def lead(documents: Sequence[str], count: int, line_break: str) -> list[str]:
    """The first sentences of each document: a baseline that is hard to beat."""
    joint = line_break if line_break.strip() else " "
    return [joint.join(sentences(text, line_break)[:count]) for text in documents]


def warn_of_other_scripts(references: Sequence[str]) -> None:
    """Warns if ROUGE would be 0 for every possible summary."""
    if any(map(_words, references)) and not any(map(_ROUGE_WORD.search, references)):
        print("warning: ROUGE has words of a-z and 0-9 alone, and no reference has one", flush=True)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _grams(text: str) -> list[tuple[str, ...]]:
    words = _words(text)
    return list(zip(*(words[i:] for i in range(N))))
