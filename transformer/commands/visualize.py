"""Pictures of attention: the words at which a trained model looks.

    python -m transformer visualize --workdir=runs/demo --source="the old man sleeps ."
    python -m transformer visualize --workdir=runs/demo --source="..." --target="..." \\
        --figure=encoder.svg --attention=encoder --layer=2

The page (attention.html) is one file that any browser opens, without a network. It shows all layers
and heads, as lines, as matrices or all at once; tokens or whole words; the mean of the heads; and
attention rollout. Below are the model's positional encodings, the masks and the learning rate.
The figure, PNG or SVG, is for papers: the heads of one layer; `pictures` writes the others. Without
--target the model's own translation is shown. BERT takes only --source, or also --target as
sentence B.
"""

from pathlib import Path

from absl import flags

from transformer.runs.model_flags import define_flags
from transformer.system.errors import UserError
from transformer.system.files import check_can_write, write_named
from transformer.system.paths import DEFINE_path

restore_model = define_flags()
SOURCE = flags.DEFINE_string("source", None, "The source sentence.")
TARGET = flags.DEFINE_string("target", None, "A translation (default: the model's own).")
OUT = DEFINE_path("out", "attention.html", "The page to write; empty: none.")
FIGURE = DEFINE_path("figure", None, "A PNG or SVG file to write as well.")
ATTENTION = flags.DEFINE_enum(
    "attention",
    None,
    ("encoder", "decoder", "cross"),
    "Which one it shows (default: cross, if there is one).",
)
LAYER = flags.DEFINE_integer("layer", None, "Its layer, from 1 (default: the last).")
HEADS = flags.DEFINE_list("heads", None, "Its heads, from 1, e.g. 1,4 (default: all).")
WORDS = flags.DEFINE_boolean("words", False, "Whether the figure has words in place of tokens.")


def _writable(name: str, endings: tuple[str, ...]) -> Path:
    path = Path(name).expanduser()
    check_can_write(path, *endings)
    return path


def main() -> None:
    from transformer.inference.attention_maps import attention_of, by_words
    from transformer.reports.attention_page import attention_page
    from transformer.reports.figures import draw_attention

    if not SOURCE.value:
        raise UserError("no sentence is given; add --source='...'")
    page = _writable(OUT.value, (".html",)) if OUT.value else None
    picture = _writable(FIGURE.value, (".png", ".svg")) if FIGURE.value else None
    try:
        heads = [int(head) for head in HEADS.value] if HEADS.value else None
    except ValueError:
        raise UserError(f"--heads={','.join(HEADS.value)} must be numbers, e.g. 1,4") from None
    model = restore_model()
    found = attention_of(model, SOURCE.value, TARGET.value)
    target = TARGET.value or " ".join(by_words(found.target[:-1])[0])
    if picture:  # first, since it may be refused
        figure = draw_attention(found, ATTENTION.value, LAYER.value, heads, WORDS.value)
        figure.write(picture)
        if not figure.fonts.complete:
            print("some letters are in no font of this machine; install one, such as Noto")
        print(f"wrote {picture}")
    if page:
        write_named(page, attention_page(model, found, SOURCE.value, target))
        print(f"wrote {page}")
