"""Chooses one of several candidates: by chrF between them, or by scores.

    python translate.py --workdir=runs/demo --input=news.en --output=candidates.de --nbest=16 \\
        --temperature=1
    python -m transformer rerank --candidates=candidates.de --nbest=16 > news.de
    python -m transformer rerank --candidates=candidates.de --nbest=16 --scores=scores.txt > news.de

Without --scores it is minimum Bayes risk, as --mbr of translate.py. --scores has a line for each
candidate: a number, or several between spaces, such as utilities against each reference, whose mean
counts. The highest one wins.
"""

import sys
from pathlib import Path

from absl import flags

from transformer.decoding.config import MOST_OUTPUTS
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

CANDIDATES = DEFINE_path("candidates", None, "A text file with --nbest lines for each source.")
NBEST = flags.DEFINE_integer("nbest", None, "Candidates of each source.", 1, MOST_OUTPUTS)
SCORES = DEFINE_path("scores", None, "A text file with a line for each candidate.")
OUTPUT = DEFINE_path("output", None, "The file to write; standard output if none.")


def main() -> None:
    from transformer.data.test_sets import lines_of
    from transformer.data.text_files import packed
    from transformer.decoding.mbr import chosen
    from transformer.system.files import check_can_write, write_named

    if CANDIDATES.value is None or NBEST.value is None:
        raise UserError("--candidates and --nbest are needed: the file, and its lines per source")
    if OUTPUT.value:
        check_can_write(path := Path(OUTPUT.value).expanduser())
    rows = lines_of(SCORES.value) if SCORES.value else None
    found = chosen(lines_of(CANDIDATES.value), NBEST.value, rows)
    text = "".join(f"{line}\n" for line in found)
    if OUTPUT.value:
        write_named(path, packed(path, text.encode()))
    else:
        sys.stdout.write(text)
