"""Fills in [MASK] with the likeliest words, by a BERT.

    echo "The cat sat on the [MASK]." | python -m transformer fill --workdir=runs/bert_tiny
    python -m transformer fill --workdir=models/bert-base-uncased --words=10 < input.txt

--workdir is a run of pre-training, or a folder of Hugging Face's hub. Each [MASK] of a line of
standard input gives a line: words, each with its probability after it, between tabs.
"""

import sys
from pathlib import Path

from absl import flags

from transformer.runs.model_flags import define_flags
from transformer.system.commands import script
from transformer.system.errors import UserError

restore_model = define_flags()
WORDS = flags.DEFINE_integer("words", 5, "How many words for each [MASK].", 1, 1000)


def main() -> None:
    from transformer.configs import bert_base
    from transformer.data.hub_files import is_hub_folder
    from transformer.data.text_files import lines_as_they_come
    from transformer.inference.masked_words import check_masked_lm, fill
    from transformer.runs.init_from import of_hub
    from transformer.runs.run_config import Config
    from transformer.system import distributed

    distributed.refuse_jobs(script("fill"))
    if sys.stdin is None:  # closed by the shell
        raise UserError("standard input is closed; give the text there")
    folder = Path(flags.FLAGS.workdir or "").expanduser()
    if is_hub_folder(folder):
        model = of_hub(folder, Config.from_dict(bert_base.get_config().to_dict()))
    else:
        model = restore_model()
    check_masked_lm(model)
    number = 0
    for line in lines_as_they_come(sys.stdin.buffer, "standard input"):
        if line is None:  # the next one is still to come
            continue
        number += 1
        if isinstance(line, UserError):
            raise line
        try:
            found = fill(model, line, WORDS.value)
        except UserError as error:
            raise UserError(f"standard input, line {number}: {error}") from error
        for words in found:
            print(*(f"{word} {p:.3f}" for word, p in words), sep="\t", flush=True)
