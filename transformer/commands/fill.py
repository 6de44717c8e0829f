"""Fills in [MASK] with the likeliest words, by a BERT.

    python -m transformer fill --workdir=models/bert-base-uncased --nbest=10 --input=text.txt
    echo "The cat sat on the [MASK]." | python -m transformer fill --workdir=runs/bert_tiny

--workdir is a run of pre-training, or a folder of Hugging Face's hub. Each [MASK] of a line
gives a line: words, each with its probability after it, between tabs.
"""

from absl import flags

from transformer.runs.model_flags import define_flags
from transformer.system.commands import script
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

restore_model = define_flags()
INPUT = DEFINE_path("input", None, "UTF-8 text, plain or packed; standard input if none.")
NBEST = flags.DEFINE_integer("nbest", 5, "How many words for each [MASK].", 1, 1000)


def main() -> None:
    from transformer.data.text_files import input_of, lines_as_they_come
    from transformer.inference.masked_words import check_masked_lm, fill
    from transformer.runs.init_from import bert_or_run
    from transformer.system import distributed

    distributed.refuse_jobs(script("fill"))
    file, name = input_of(INPUT.value)
    model = bert_or_run(flags.FLAGS.workdir, restore_model)
    check_masked_lm(model)
    number = 0
    for line in lines_as_they_come(file, name):
        if line is None:  # the next one is still to come
            continue
        number += 1
        if isinstance(line, UserError):
            raise line
        try:
            found = fill(model, line, NBEST.value)
        except UserError as error:
            raise UserError(f"{name}, line {number}: {error}") from error
        for words in found:
            print(*(f"{word} {p:.3f}" for word, p in words), sep="\t", flush=True)
