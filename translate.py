"""Translates text, line for line, with a trained model.

From standard input to standard output, or from file to file:

    python translate.py --workdir=runs/demo < input.txt > output.txt
    python translate.py --workdir=runs/demo --input=input.txt --output=output.txt
"""

if __name__ == "__main__":
    from transformer.system.startup import use_huge_pages

    use_huge_pages()  # before JAX is imported

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from absl import flags

from transformer.data.text_files import blocks_of_lines, open_text
from transformer.runs import cli
from transformer.runs.restore import define_flags
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.files import folder_allows, write_atomically

restore_model = define_flags()
INPUT = flags.DEFINE_string(
    "input", None, "UTF-8 text, one sentence a line; standard input if none."
)
OUTPUT = flags.DEFINE_string("output", None, "Where to write; standard output if none.")

LINES_AT_ONCE = 2000  # read, sorted by length and written together


def main() -> None:
    if distributed.job() is not None:
        raise UserError("translate.py works in one process; start it once, without srun or mpirun")
    output = OUTPUT.value and Path(OUTPUT.value).expanduser()
    # Better to know before hours of translating.
    if output and (output.is_dir() or not folder_allows(output)):
        raise UserError(f"--output={output} cannot be written; name a file in another place")
    model = restore_model()
    if not hasattr(model.task, "translate"):
        raise UserError(
            f"{model.workdir} is a run of the task {model.config.task.name}, which does not "
            "translate; give another --workdir, or see classify.py"
        )

    def translated(file: IO[bytes], name: str) -> Iterator[str]:
        for lines in blocks_of_lines(file, name, LINES_AT_ONCE):
            translations = model.task.translate(model.params, model.extra, lines)
            yield "".join(f"{line}\n" for line in translations)

    if INPUT.value is None:
        if sys.stdin is None:  # closed by the shell
            raise UserError("standard input is closed; give the text there, or --input")
        texts = translated(sys.stdin.buffer, "standard input")
    else:
        texts = translated(open_text(os.path.expanduser(INPUT.value)), INPUT.value)
    if output is None:
        for text in texts:
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()
    else:
        write_atomically(output, "".join(texts))


if __name__ == "__main__":
    cli.run(main)
