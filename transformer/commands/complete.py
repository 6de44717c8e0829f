"""Continues prompts with a language model.

    python -m transformer complete --workdir=runs/lm --prompt="It was a" --samples=3
    python -m transformer complete --workdir=runs/lm --input=in.txt --temperature=0.7 --top_p=0.9

A prompt is a line; an empty one lets the model begin freely. Each output is a line, the prompt
included. The config's decoding section sets the search, and its flags override it: --temperature=0
searches for the most probable text instead of sampling, and another --seed gives other samples.
"""

import os

from absl import flags

from transformer.decoding.config import MOST_OUTPUTS
from transformer.runs.model_flags import define_flags
from transformer.system.commands import script
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

restore_model = define_flags()
PROMPT = flags.DEFINE_string("prompt", None, "How the text begins; empty: as the model likes.")
INPUT = DEFINE_path("input", None, "UTF-8 text, plain or packed, a prompt a line.")
SAMPLES = flags.DEFINE_integer("samples", 1, "Texts for each prompt.", 1, MOST_OUTPUTS)
SEED_BY = flags.DEFINE_enum(
    "seed_by",
    "text",
    ("text", "line"),
    "What the samples of a prompt depend on, beside --seed: its text, so that equal ones have "
    "equal samples; or its text and its number.",
)


def main() -> None:
    from transformer.data.text_files import read_lines
    from transformer.decoding.inputs import Request
    from transformer.system import distributed

    distributed.refuse_jobs(script("complete"))
    if (PROMPT.value is None) == (INPUT.value is None):
        raise UserError("give --prompt or --input, and not both")
    prompts = [PROMPT.value]
    if INPUT.value is not None:
        prompts = list(read_lines(os.path.expanduser(INPUT.value)))
    model = restore_model(task="language_model")
    has_numbers = SEED_BY.value == "line"
    requests = [
        Request(prompt, number=number if has_numbers else None)
        for number, prompt in enumerate(prompts, 1)
    ]
    for found in model.task.search(model.params, model.extra, requests, nbest=SAMPLES.value):
        for text in found:
            print(text.text)
