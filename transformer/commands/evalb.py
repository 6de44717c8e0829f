"""Scores trees against gold trees, as EVALB with COLLINS.prm does.

    python -m transformer evalb --gold=gold.trees --test=parsed.trees

Line n of one file is compared with line n of the other. Sentences whose words differ are errors,
which EVALB leaves out of its figures; the output here includes their number.
"""

from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path, given

GOLD = DEFINE_path("gold", None, "Gold trees, one on each line; plain or packed.")
TEST = DEFINE_path("test", None, "Trees to score.")
NAMES = {
    "sentences": "sentences",
    "errors": "sentences in error",
    "skipped": "sentences without a tree",
    "recall": "recall",
    "precision": "precision",
    "f1": "F1",
    "complete": "complete match, per cent",
    "crossing": "crossing brackets, mean",
    "no_crossing": "no crossing, per cent",
    "two_or_less_crossing": "two or less crossing, per cent",
    "tagging": "right tags, per cent",
}


def main() -> None:
    from transformer.data.text_files import check_lines, read_lines
    from transformer.data.trees import read_trees
    from transformer.metrics.parseval import ERROR, Counts, count, total

    files = given(GOLD, TEST)
    gold, test = (list(read_lines(file)) for file in files)
    check_lines({GOLD.value: len(gold), TEST.value: len(test)})
    counts: list[Counts] = []
    for number, (ours, theirs) in enumerate(zip(gold, test, strict=True), start=1):
        trees = list(read_trees([ours], f"{GOLD.value}, tree {number}"))
        try:
            found = list(read_trees([theirs], TEST.value))
        except UserError:  # not a tree
            counts.append(Counts(ERROR))
            continue
        counts.append(count(trees, found))
    found = total(counts)
    for name, text in NAMES.items():
        value = found[name]
        print(f"{text:32} {value:9.2f}" if isinstance(value, float) else f"{text:32} {value:6}")
