"""Classifies text, line for line, with a trained model.

    python classify.py --workdir=runs/sst2 < input.txt > output.jsonl
    python classify.py --workdir=runs/sst2 --input=input.txt --output=output.jsonl

A line is a text; of a model for pairs, two texts with a tab between them. For each line there is a
JSON object: {"label": "1", "probabilities": {"0": 0.1, "1": 0.9}}, or {"number": 3.7}.
"""

if __name__ == "__main__":
    from transformer.system.startup import be_quiet_when_interrupted, use_huge_pages

    be_quiet_when_interrupted()
    use_huge_pages()  # before JAX is imported

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from absl import flags

from transformer.data.text_files import blocks_of_lines, open_text
from transformer.runs import cli
from transformer.runs.restore import TrainedModel, define_flags
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.files import folder_allows, write_atomically

restore_model = define_flags()
INPUT = flags.DEFINE_string("input", None, "UTF-8 text, a text a line; standard input if none.")
OUTPUT = flags.DEFINE_string("output", None, "Where to write; standard output if none.")

LINES_AT_ONCE = 2000  # read, packed and written together


def main() -> None:
    if distributed.job() is not None:
        raise UserError("classify.py works in one process; start it once, without srun or mpirun")
    output = OUTPUT.value and Path(OUTPUT.value).expanduser()
    if output and (output.is_dir() or not folder_allows(output)):
        raise UserError(f"--output={output} cannot be written; name a file in another place")
    model = restore_model()
    if model.config.task.name != "classification":
        raise UserError(
            f"{model.workdir} is a run of the task {model.config.task.name}; give the --workdir of "
            "one of classification"
        )
    if INPUT.value is None:
        if sys.stdin is None:  # closed by the shell
            raise UserError("standard input is closed; give the text there, or --input")
        texts = classified(model, sys.stdin.buffer, "standard input")
    else:
        texts = classified(model, open_text(os.path.expanduser(INPUT.value)), INPUT.value)
    if output is None:
        for text in texts:
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()
    else:
        write_atomically(output, "".join(texts))


def classified(model: TrainedModel, file: IO[bytes], name: str) -> Iterator[str]:
    """Lines of JSON."""
    is_pair, number = model.task.data.second_column is not None, 0
    for lines in blocks_of_lines(file, name, LINES_AT_ONCE):
        texts = []
        for line in lines:
            number += 1
            columns = line.split("\t")
            if len(columns) != 1 + is_pair:
                raise UserError(
                    f"{name}, line {number} has {len(columns)} columns; expected {1 + is_pair}, "
                    "with a tab between columns"
                )
            texts.append((columns[0], columns[1] if is_pair else None))
        found = model.task.classify(model.params, model.extra, texts)
        yield "".join(json.dumps(x, ensure_ascii=False) + "\n" for x in found)


if __name__ == "__main__":
    cli.run(main)
