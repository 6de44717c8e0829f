"""Fills in [MASK] with the likeliest words, by a BERT.

    python -m transformer fill --workdir=models/bert-base-uncased --nbest=10 < input.txt
    echo "The cat sat on the [MASK]." | python -m transformer fill --workdir=runs/bert_tiny

--workdir is a run of pre-training, or a folder of Hugging Face's hub. Each [MASK] of a line of
standard input gives a line: words, each with its probability after it, between tabs.
"""

import sys

from absl import flags

from transformer.runs.model_flags import define_flags
from transformer.system.commands import script
from transformer.system.errors import UserError

restore_model = define_flags()
NBEST = flags.DEFINE_integer("nbest", 5, "How many words for each [MASK].", 1, 1000)


def main() -> None:
    from transformer.data.text_files import lines_as_they_come
    from transformer.inference.masked_words import check_masked_lm, fill
    from transformer.runs.init_from import bert_or_run
    from transformer.system import distributed

    distributed.refuse_jobs(script("fill"))
    if sys.stdin is None:  # closed by the shell
        raise UserError("standard input is closed; give the text there")
    model = bert_or_run(flags.FLAGS.workdir, restore_model)
    check_masked_lm(model)
    number = 0
    for line in lines_as_they_come(sys.stdin.buffer, "standard input"):
        if line is None:  # the next one is still to come
            continue
        number += 1
        if isinstance(line, UserError):
            raise line
        try:
            found = fill(model, line, NBEST.value)
        except UserError as error:
            raise UserError(f"standard input, line {number}: {error}") from error
        for words in found:
            print(*(f"{word} {p:.3f}" for word, p in words), sep="\t", flush=True)
