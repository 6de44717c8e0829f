"""Translates text, line for line, with a trained model.

    python translate.py --workdir=runs/demo < input.txt > output.txt
    python translate.py --workdir=runs/demo --input=input.txt --output=output.txt
"""

import sys
from pathlib import Path

from absl import flags

from transformer import cli
from transformer.errors import UserError
from transformer.files import write_atomically
from transformer.sources import read_lines
from transformer.trained import CHECKPOINTS, restore

WORKDIR = flags.DEFINE_string("workdir", None, "The work directory of a training run.")
INPUT = flags.DEFINE_string("input", None, "UTF-8 text, one sentence a line; standard input if none.")
OUTPUT = flags.DEFINE_string("output", None, "Where to write; standard output if none.")
CHECKPOINT = flags.DEFINE_enum("checkpoint", "best", CHECKPOINTS, "Which parameters to use.")
AVERAGE_LAST = flags.DEFINE_integer(
    "average_last", 5, "How many checkpoints --checkpoint=average averages.", lower_bound=1
)
BEAM_SIZE = flags.DEFINE_integer("beam_size", None, "Instead of the config's.")
LENGTH_PENALTY = flags.DEFINE_float("length_penalty", None, "Its alpha, instead of the config's.")

LINES_AT_ONCE = 2000


def main() -> None:
    if WORKDIR.value is None:
        raise UserError("--workdir is missing; give the work directory of a training run")
    model = restore(
        Path(WORKDIR.value),
        CHECKPOINT.value,
        AVERAGE_LAST.value,
        beam_size=BEAM_SIZE.value,
        length_penalty=LENGTH_PENALTY.value,
    )
    raise NotImplementedError


if __name__ == "__main__":
    cli.run(main)
