"""A page that walks through a Transformer with the numbers of a sentence.

    python -m transformer walkthrough --workdir=runs/demo --source="the old man sleeps ."
    python -m transformer walkthrough --toy

The page (walkthrough.html) is one file without scripts. It shows tokens, embeddings, positions, a
head of decoder self-attention, add & norm, attention to the source, feed-forward network, logits,
loss, and a gradient step; each with the paper's equation and the lines of code that compute it.
Below are measurements of the lecture's arguments. Without --target it follows the model's own
translation. --toy needs no model: it uses numbers that one can check by hand.
"""

from absl import flags

from transformer.runs.model_flags import define_flags
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

restore_model = define_flags()
SOURCE = flags.DEFINE_string("source", None, "The source sentence.")
TARGET = flags.DEFINE_string("target", None, "A translation (default: the model's own).")
LAYER = flags.DEFINE_integer("layer", 1, "The decoder layer that is followed, from 1.")
HEAD = flags.DEFINE_integer("head", 1, "Its head, from 1.")
TOY = flags.DEFINE_boolean("toy", False, "Small numbers in place of a model and a sentence.")
OUT = DEFINE_path(
    "out", None, "The page to write (default: walkthrough.html; of --toy, walkthrough_toy.html)."
)


def main() -> None:
    from transformer.reports import walkthrough

    if not TOY.value and not (SOURCE.value or "").strip():
        raise UserError("no sentence is given; add --source='...', or --toy")
    asked = SOURCE.value, TARGET.value, LAYER.value, HEAD.value
    walkthrough.write(OUT.value, None if TOY.value else restore_model, *asked)
