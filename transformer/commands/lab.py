"""A live page: a model's pieces, search, probabilities and heads, as you type.

    python -m transformer lab --workdir=runs/demo
    python -m transformer lab --workdir=runs/demo --file=pairs.tsv --port=8017 --noopen

The first line of standard output is the address of the page, which only this machine can open.
Type a sentence. The page shows its pieces, the attention of all heads, the next token's
probabilities and the beam as a tree; a click on a token goes on from there. Heads can be switched
off or made uniform. --file has a source, a tab and a target in each line (of BERT or a language
model: a text); then a button shows which heads matter. Ctrl-C ends it.
"""

from pathlib import Path

from absl import flags

from transformer.runs.model_flags import define_flags
from transformer.system.commands import script
from transformer.system.paths import DEFINE_path

restore_model = define_flags(directions=True)
FILE = DEFINE_path("file", None, "A small file of pairs, UTF-8, to measure heads on.")
PORT = flags.DEFINE_integer("port", 0, "The port of the page; 0: a free one.", 0, 65535)
OPEN = flags.DEFINE_boolean("open", True, "Whether to open the page in the browser.")


def main() -> None:
    from transformer.data.text_files import read_lines
    from transformer.reports.lab import Lab
    from transformer.reports.lab_server import serve
    from transformer.system import distributed

    distributed.refuse_jobs(script("lab"))
    lines = list(read_lines(str(Path(FILE.value).expanduser()))) if FILE.value else []
    serve(Lab(restore_model(), lines), PORT.value, opens=OPEN.value)
