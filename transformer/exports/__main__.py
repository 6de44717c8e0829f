"""Writes a trained model in the form of another system.

    python -m transformer.exports --workdir=runs/demo --format=ctranslate2 --output=models/demo-ct2
    python -m transformer.exports --workdir=runs/demo --format=ctranslate2 --quantization=int8 \\
        --output=models/demo-int8
    python -m transformer.exports --workdir=runs/opus --format=huggingface --output=models/opus-hf
    python -m transformer.exports --workdir=runs/demo --format=stablehlo --output=models/demo-jax

docs/exporting.md says how the other systems use it. `evaluate.py --export` writes a work directory,
for this project.
"""

import os
from pathlib import Path

from absl import flags

from transformer.exports import ctranslate2, marian, stablehlo
from transformer.exports.folder import check_is_new, new_folder
from transformer.models.transformer import TransformerConfig
from transformer.runs import cli
from transformer.runs.restore import define_flags
from transformer.system import distributed
from transformer.system.errors import UserError

restore_model = define_flags()
FORMAT = flags.DEFINE_enum(
    "format",
    None,
    ("ctranslate2", "huggingface", "stablehlo"),
    "The system that is to run the model.",
)
OUTPUT = flags.DEFINE_string("output", None, "The folder to make.")
QUANTIZATION = flags.DEFINE_enum(
    "quantization", None, ctranslate2.QUANTIZATIONS, "Of CTranslate2's weights (float32)."
)
WIDTHS = flags.DEFINE_list(
    "widths", None, "Source tokens of StableHLO's programs, EOS included (16,32,64)."
)


def main() -> None:
    if distributed.job() is not None:
        raise UserError("an export is made in one process; start it once, without srun or mpirun")
    for flag in (FORMAT, OUTPUT):
        if not flag.value:
            raise UserError(f"--{flag.name} is missing; see python -m transformer.exports --help")
    for flag, owner in ((QUANTIZATION, "ctranslate2"), (WIDTHS, "stablehlo")):
        if flag.value and FORMAT.value != owner:
            raise UserError(f"--{flag.name} is for --format={owner} alone; leave it out")
    widths = WIDTHS.value or list(map(str, stablehlo.WIDTHS))
    if not all(width.isdecimal() and int(width) > 1 for width in widths):
        raise UserError(f"--widths is {','.join(widths)}; give numbers above 1, such as 16,32,64")
    output = Path(os.path.normpath(os.path.expanduser(OUTPUT.value)))
    check_is_new(output)
    model = restore_model()
    if model.others:
        raise UserError("--ensemble cannot be exported; export one model")
    if model.config.task.name != "seq2seq":
        raise UserError(
            f"task.name is {model.config.task.name!r}; models of sentences (seq2seq) are exported"
        )
    is_transformer = isinstance(model.config.model, TransformerConfig)
    if FORMAT.value != "stablehlo" and not is_transformer:
        raise UserError(
            f"{FORMAT.value} has Transformers, and model.family is "
            f"{model.config.model.family!r}; use --format=stablehlo"
        )
    with new_folder(output) as folder:
        if FORMAT.value == "ctranslate2":
            ctranslate2.write(model, folder, QUANTIZATION.value or "float32")
        elif FORMAT.value == "huggingface":
            marian.write(model, folder)
        else:
            stablehlo.write(model, folder, sorted(set(map(int, widths))))
    print(f"written  {output}, the {model.checkpoint} of {model.workdir}")


if __name__ == "__main__":
    cli.run(main)
