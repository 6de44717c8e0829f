"""Writes a trained model in the form of another system.

    python -m transformer export --workdir=runs/demo --format=ctranslate2 --output=models/demo-ct2
    python -m transformer export --workdir=runs/demo --format=ctranslate2 --quantization=int8 \\
        --output=models/demo-int8
    python -m transformer export --workdir=runs/opus --format=huggingface --output=models/opus-hf
    python -m transformer export --workdir=runs/demo --format=stablehlo --output=models/demo-jax
    python -m transformer export --workdir=runs/bert_tiny --format=bert --output=models/bert-tiny

docs/exporting.md and docs/bert.md explain the formats. `evaluate.py --export` writes a work
directory for this project.
"""

import os
from pathlib import Path

from absl import flags

from transformer.runs.model_flags import define_flags
from transformer.system.commands import command, script
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

restore_model = define_flags()
FORMAT = flags.DEFINE_enum(
    "format",
    None,
    ("ctranslate2", "huggingface", "stablehlo", "bert"),
    "The system that is to run the model.",
)
OUTPUT = DEFINE_path("output", None, "The folder to make.")
QUANTIZATION = flags.DEFINE_enum(
    "quantization", None, ("float32", "float16", "int8"), "Of CTranslate2's weights (float32)."
)
WIDTHS = flags.DEFINE_list(
    "widths",
    None,
    "Source tokens of StableHLO's programs, EOS included (16,32,64; of summaries, as many as a "
    "document is cut to, a half, and a quarter).",
)


def main() -> None:
    from transformer.exports import bert_folder, ctranslate2, m2m100, marian, stablehlo
    from transformer.exports.folder import check_is_new, new_folder
    from transformer.models.marian_weights import is_m2m100
    from transformer.system import distributed

    distributed.refuse_jobs(script("export"))
    for flag in (FORMAT, OUTPUT):
        if not flag.value:
            raise UserError(f"--{flag.name} is missing; see {command('export', '--help')}")
    for flag, owner in ((QUANTIZATION, "ctranslate2"), (WIDTHS, "stablehlo")):
        if flag.value and FORMAT.value != owner:
            raise UserError(f"--{flag.name} is for --format={owner} alone; leave it out")
    widths = WIDTHS.value or []
    if not all(x.isdecimal() and len(x) <= 6 and int(x) > 1 for x in widths):
        raise UserError(f"--widths is {','.join(widths)}; give numbers above 1, such as 16,32,64")
    output = Path(os.path.normpath(os.path.expanduser(OUTPUT.value)))
    check_is_new(output)
    model = restore_model()
    if model.others:
        raise UserError("--ensemble cannot be exported; export one model")
    _check(model.config.model.family, model.config.task.name)
    with new_folder(output) as folder:
        if FORMAT.value == "bert":
            bert_folder.write(model, folder)
        elif FORMAT.value == "ctranslate2":
            ctranslate2.write(model, folder, QUANTIZATION.value or "float32")
        elif FORMAT.value == "huggingface":
            (m2m100 if is_m2m100(model.config.model) else marian).write(model, folder)
        else:
            chosen = sorted(set(map(int, widths))) or stablehlo.default_widths(model)
            stablehlo.write(model, folder, chosen)
    print(f"written  {output}, the {model.chosen.checkpoint} of {model.workdir}")


def _check(family: str, task: str) -> None:
    """Raises UserError if the format cannot hold such models."""
    if FORMAT.value == "bert":
        return  # it checks for itself
    if task not in ("seq2seq", "summarization"):
        raise UserError(
            f"task.name is {task!r}, and --format={FORMAT.value} is for models of seq2seq and "
            "summarization; --format=bert is for BERT"
        )
    if FORMAT.value != "stablehlo" and family != "transformer":
        raise UserError(
            f"model.family is {family!r}, and {FORMAT.value} has Transformers alone; use "
            "--format=stablehlo"
        )
