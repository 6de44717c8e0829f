"""A page that walks through a Transformer with the numbers of a sentence.

    python -m transformer walkthrough --workdir=runs/demo --source="the old man sleeps ."

The page (walkthrough.html) is one file without scripts. It shows tokens, embeddings, positions, a
head of decoder self-attention, add & norm, attention to the source, feed-forward network, logits,
loss, and a gradient step; each with the paper's equation and the lines of code that compute it.
Below are measurements of the lecture's arguments. Without --target it follows the model's own
translation.
"""

from pathlib import Path

from absl import flags

from transformer.runs.model_flags import define_flags
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

restore_model = define_flags()
SOURCE = flags.DEFINE_string("source", None, "The source sentence.")
TARGET = flags.DEFINE_string("target", None, "A translation (default: the model's own).")
LAYER = flags.DEFINE_integer("layer", 1, "The decoder layer that is followed, from 1.")
HEAD = flags.DEFINE_integer("head", 1, "Its head, from 1.")
OUT = DEFINE_path("out", "walkthrough.html", "The page to write.")


def main() -> None:
    from transformer.reports.walkthrough import page
    from transformer.system.files import check_can_write, write_named

    path = Path(OUT.value).expanduser()
    check_can_write(path, ".html")
    if not (SOURCE.value or "").strip():
        raise UserError("no sentence is given; add --source='...'")
    model = restore_model()
    if model.others or not hasattr(model.task, "search"):
        raise UserError("give the work directory of one translation model")
    write_named(path, page(model, SOURCE.value, TARGET.value, LAYER.value, HEAD.value))
    print(f"wrote {path}")
