"""Translates text, line for line, with a trained model.

From standard input to standard output, from file to file, or at a prompt:

    python translate.py --workdir=runs/demo < input.txt > output.txt
    python translate.py --workdir=runs/demo --input=input.txt.gz --output=output.txt
    python translate.py --workdir=runs/demo
    python translate.py --workdir=models/nllb --target_language=fra_Latn
    paste input.txt output.txt | python translate.py --workdir=runs/demo --score
"""

import contextlib
import os
import sys

from absl import flags

from transformer.decoding.config import MOST_OUTPUTS, POLICIES
from transformer.inference.formats import FORMATS
from transformer.runs.model_flags import define_flags
from transformer.system.commands import script
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

restore_model = define_flags(directions=True)
INPUT = DEFINE_path(
    "input", None, "UTF-8 text, plain or packed, one sentence a line; standard input if none."
)
OUTPUT = DEFINE_path(
    "output",
    None,
    "Where to write; standard output if none. A file grows; the same command after a kill "
    "continues it.",
)
FORMAT = flags.DEFINE_enum(
    "format", "text", FORMATS, "How to write: text; columns between tabs; or JSON lines."
)
NBEST = flags.DEFINE_integer(
    "nbest", 1, "Translations of each line, as many as the beam has at most.", 1, MOST_OUTPUTS
)
SCORE = flags.DEFINE_bool(
    "score", False, "Score instead: each line is a source, a tab and its translation."
)
ALIGNMENTS = flags.DEFINE_bool(
    "alignments", False, "Also write which words translate each other, as 0-0 1-2."
)
PREFIXES = flags.DEFINE_bool(
    "prefixes", False, "After a tab, each line says how its translation must begin."
)
CONSTRAINTS = flags.DEFINE_bool(
    "constraints", False, "After tabs, each line has phrases that its translation must contain."
)
LONG_LINES = flags.DEFINE_enum(
    "long_lines",
    None,
    POLICIES,
    "What to do with a line of more tokens. Default: split.",
)
MAX_TOKENS = flags.DEFINE_integer(
    "max_tokens", None, "Tokens translated at once. Default: the longest source of training."
)
SKIP_BAD_LINES = flags.DEFINE_bool(
    "skip_bad_lines", False, "Answer a line that cannot be used with an empty one, and go on."
)
SEED_BY = flags.DEFINE_enum(
    "seed_by",
    "text",
    ("text", "line"),
    "What the samples of a line depend on, beside --seed: its text, so that equal ones have equal "
    "samples; or its text and its number.",
)
LINES_WITHOUT_PROGRESS = 2000


def main() -> None:
    from transformer.data.text_files import count_lines, input_of, lines_as_they_come
    from transformer.inference.engine import Engine, Options
    from transformer.inference.model import Model, identity
    from transformer.inference.output import open_output
    from transformer.inference.prompt import typed_lines
    from transformer.runs.progress import Progress
    from transformer.system import distributed
    from transformer.system.terminal import is_terminal, say

    distributed.refuse_jobs(script("translate"))
    samples = NBEST.value > 1 or SEED_BY.value == "line"
    if SCORE.value and (PREFIXES.value or CONSTRAINTS.value or samples):
        raise UserError(
            "--score is given; leave --nbest, --prefixes, --constraints and --seed_by out"
        )
    file, name = input_of(INPUT.value)
    is_prompt = INPUT.value is None and is_terminal(sys.stdin.fileno)
    with contextlib.ExitStack() as stack:
        # First: an unwritable file should show before the model is loaded.
        output = stack.enter_context(open_output(OUTPUT.value, sys.stdout, file))
        model = Model(restore_model(), LONG_LINES.value, MAX_TOKENS.value)
        options = Options(
            format=FORMAT.value,
            nbest=NBEST.value,
            score=SCORE.value,
            alignments=ALIGNMENTS.value,
            prefixes=PREFIXES.value,
            constraints=CONSTRAINTS.value,
            long_lines=model.long_lines,
            skip_bad_lines=SKIP_BAD_LINES.value or is_prompt,
            seed_by=SEED_BY.value,
        )
        engine = Engine(model, options, output, name)
        output.begin(lambda: identity(model, options))
        if is_prompt:
            say("compiling ...")
            engine.warm_up()
            say("ready: one sentence a line; Ctrl-D ends")
        elif (
            total := count_lines(file, os.path.expanduser(name))
        ) > LINES_WITHOUT_PROGRESS and not output.is_terminal:
            progress = stack.enter_context(Progress(total, initial=output.done.lines))
            engine.progress = progress.update
        engine.run(typed_lines() if is_prompt else lines_as_they_come(file, name))
        if SCORE.value:
            say(engine.summary())
