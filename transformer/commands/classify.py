"""Classifies text, line for line, with a trained model.

    python -m transformer classify --workdir=runs/sst2 < input.txt > output.jsonl
    python -m transformer classify --workdir=runs/sst2 --input=input.txt --output=output.jsonl

A line is a text or, for a model of pairs, two texts with a tab between them. Each line gives a JSON
object: {"label": "1", "probabilities": {"0": 0.1, "1": 0.9}}, or {"number": 3.7}.
"""

import sys

from transformer.runs.model_flags import define_flags
from transformer.system.commands import script
from transformer.system.paths import DEFINE_path

restore_model = define_flags()
INPUT = DEFINE_path("input", None, "UTF-8 text, a text a line; standard input if none.")
OUTPUT = DEFINE_path(
    "output",
    None,
    "Where to write; standard output if none. A file grows; the same command after a kill "
    "continues it.",
)


def main() -> None:
    from transformer.data.text_files import input_of, lines_as_they_come
    from transformer.inference.classifier import Classifier
    from transformer.inference.output import open_output
    from transformer.system import distributed

    distributed.refuse_jobs(script("classify"))
    file, name = input_of(INPUT.value)
    # First: an unwritable file should show before the model is loaded.
    with open_output(OUTPUT.value, sys.stdout, file) as output:
        classifier = Classifier(restore_model(), output, name)
        output.begin(classifier.identity)
        classifier.run(lines_as_they_come(file, name))
