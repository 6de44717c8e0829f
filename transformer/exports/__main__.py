"""Writes a trained model in the form of another system.

    python -m transformer.exports --workdir=runs/bert_tiny --format=bert --output=models/bert-tiny

`bert` is a folder for Hugging Face's Transformers library: docs/bert.md. `evaluate.py --export`
writes a work directory, for this project.
"""

import os
from pathlib import Path

from absl import flags

from transformer.exports import bert_folder
from transformer.exports.folder import check_is_new, new_folder
from transformer.runs import cli
from transformer.runs.restore import define_flags
from transformer.system import distributed
from transformer.system.errors import UserError

restore_model = define_flags()
FORMATS = ("bert",)
FORMAT = flags.DEFINE_enum("format", None, FORMATS, "The system that is to run the model.")
OUTPUT = flags.DEFINE_string("output", None, "The folder to make.")


def main() -> None:
    if distributed.job() is not None:
        raise UserError("an export is made in one process; start it once, without srun or mpirun")
    for flag in (FORMAT, OUTPUT):
        if not flag.value:
            raise UserError(f"--{flag.name} is missing; see python -m transformer.exports --help")
    output = Path(os.path.normpath(os.path.expanduser(OUTPUT.value)))
    check_is_new(output)
    model = restore_model()
    with new_folder(output) as folder:
        bert_folder.write(model, folder)
    print(f"written  {output}, the {model.checkpoint} of {model.workdir}")


if __name__ == "__main__":
    cli.run(main)
