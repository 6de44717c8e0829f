"""Pictures of a model's words as points, or of what each layer would predict.

    python -m transformer look --workdir=runs/demo --words=farmer,doctor,always,never
    python -m transformer look --workdir=runs/demo --source="The old man sleeps." --out=layers.svg

Without --source: the embeddings of words in two dimensions, by PCA (principal component analysis).
With it: the token that each layer would predict at each position, and its probability, for
--target or the model's own translation. --workdir may also be a folder of Hugging Face's hub with a
BERT, whose --source may contain [MASK].
"""

from pathlib import Path

from absl import flags

from transformer.runs.model_flags import define_flags
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

restore_model = define_flags()
WORDS = flags.DEFINE_list("words", None, "Words to draw (default: the most frequent ones).")
SOURCE = flags.DEFINE_string("source", None, "A sentence to look at, layer by layer.")
TARGET = flags.DEFINE_string("target", None, "A translation (default: the model's own).")
OUT = DEFINE_path("out", "look.png", "The PNG or SVG file to write.")


def main() -> None:
    from transformer.reports.figures import embeddings_figure, logit_lens_figure
    from transformer.runs.init_from import bert_or_run
    from transformer.system.files import check_can_write

    if SOURCE.value is not None and WORDS.value is not None:
        raise UserError("--words and --source are for two pictures; give one of them")
    if SOURCE.value is None and TARGET.value is not None:
        raise UserError("--target is given without its --source; give both")
    path = Path(OUT.value).expanduser()
    check_can_write(path, ".png", ".svg")
    model = bert_or_run(flags.FLAGS.workdir, restore_model)
    if SOURCE.value is None:
        figure = embeddings_figure(model, WORDS.value)
    else:
        figure = logit_lens_figure(model, SOURCE.value, TARGET.value)
    figure.write(path)
    print(f"wrote {path}")
