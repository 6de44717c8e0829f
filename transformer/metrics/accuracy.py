"""Accuracies of symbols and of whole outputs. Symbols are words: data/words.py."""

from collections.abc import Sequence

from transformer.data.words import words_of

SYMBOL_DEFINITION = (
    "per cent of the references' symbols, EOS included, at whose position the output has the same; "
    "an output that ends early misses the rest, one that goes on misses EOS"
)
SEQUENCE_DEFINITION = "per cent of the outputs that are the reference, symbol by symbol"
ERROR_DEFINITION = "per cent of the answers of this task that are not the reference, word by word"
MEAN_ERROR_DEFINITION = "mean of the tasks' errors, each of which counts the same"
FAILED_TASKS_DEFINITION = "number of tasks whose error is more than {} per cent"
FAILED = 5.0  # per cent, Weston et al. 2015


def corpus_accuracies(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, dict]:
    """`accuracy` (of symbols) and `sequence_accuracy`, each `{"score", "definition"}`, in per cent.

    Both sides have one output per item. Symbols beyond the reference's length count once, as the
    missing EOS.
    """
    right = positions = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        found, expected = ([*words_of(text), None] for text in (hypothesis, reference))  # None: EOS
        right += sum(a == b for a, b in zip(found, expected, strict=False))
        positions += len(expected)
    whole = sum(map(_is_same, hypotheses, references))
    return {
        "accuracy": {"score": 100 * right / positions, "definition": SYMBOL_DEFINITION},
        "sequence_accuracy": {
            "score": 100 * whole / len(references),
            "definition": SEQUENCE_DEFINITION,
        },
    }


def errors_by_task(
    hypotheses: Sequence[str], references: Sequence[str], tasks: Sequence[str]
) -> dict[str, dict]:
    """`mean_error`, `failed_tasks` and `error_<task>` for each, as in `corpus_accuracies`.

    tasks: the name of the task of each output.
    """
    wrong: dict[str, list[bool]] = {task: [] for task in tasks}
    for task, hypothesis, reference in zip(tasks, hypotheses, references, strict=True):
        wrong[task].append(not _is_same(hypothesis, reference))
    errors = {task: 100 * sum(found) / len(found) for task, found in wrong.items()}
    return {
        "mean_error": {
            "score": sum(errors.values()) / len(errors),
            "definition": MEAN_ERROR_DEFINITION,
        },
        "failed_tasks": {
            "score": sum(error > FAILED for error in errors.values()),
            "definition": FAILED_TASKS_DEFINITION.format(f"{FAILED:g}"),
        },
        **{
            f"error_{task}": {"score": error, "definition": ERROR_DEFINITION}
            for task, error in errors.items()
        },
    }


def _is_same(hypothesis: str, reference: str) -> bool:
    return words_of(hypothesis) == words_of(reference)
