"""Draws how many steps a Universal Transformer takes for each token.

    python -m transformer ponder --workdir=runs/demo_universal \\
        --sentence="the old house sees the young man ." --out=steps.png

The upper panel has the source, the lower one its translation by the model. EOS ends both.
"""

from pathlib import Path

from absl import flags

from transformer.runs.model_flags import define_flags
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

restore_model = define_flags()
SENTENCE = flags.DEFINE_string("sentence", None, "The source sentence.")
OUT = DEFINE_path("out", "steps.png", "The PNG file to write.")


def main() -> None:
    from transformer.inference.attention_maps import attention_of
    from transformer.reports.figures import steps_figure
    from transformer.system.files import check_can_write

    if not SENTENCE.value:
        raise UserError("no sentence is given; add --sentence='...'")
    path = Path(OUT.value).expanduser()
    check_can_write(path, ".png")
    model = restore_model()
    found = attention_of(model, SENTENCE.value)
    if not found.steps:
        raise UserError(
            f"{model.workdir} has no adaptive computation time: every token takes as many steps; "
            "give a run with model.family=universal and model.halting=paper or tensor2tensor"
        )
    figure = steps_figure(found)
    figure.suptitle(model.workdir.name, parse_math=False)
    figure.write(path)
    for name, side in (("source", "source"), ("translation", "target")):
        steps = zip(getattr(found, side), found.steps[side], strict=True)
        print(f"{name:12}" + "  ".join(f"{token.text} {number:.0f}" for token, number in steps))
    print(f"wrote {path}")
