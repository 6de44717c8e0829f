"""Pictures of attention: which words a trained model looks at.

    python -m transformer.reports.visualize --workdir=runs/demo --source="the old man sleeps ."
    python -m transformer.reports.visualize --workdir=runs/demo --source="..." --target="..." \\
        --figure=encoder.svg --attention=encoder --layer=2

The page (attention.html) is one file that any browser opens, without a network: all layers and
heads, as lines, as matrices or all at once; tokens or whole words; the mean of the heads; attention
rollout; below, the model's positional encodings, the masks and the learning rate. Figures, PNG or
SVG, are for papers: the heads of one layer, or another picture of the page (--picture). Without
--target the model's own translation is shown. BERT takes --source alone, or with --target as
sentence B.
"""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from transformer.reports.figures import (
    Picture,
    attention_figure,
    draw_attention,
    masks_figure,
    positions_figure,
    schedule_figure,
    steps_figure,
)
from transformer.reports.pages import image
from transformer.runs import cli
from transformer.runs.restore import TrainedModel, define_flags
from transformer.streams.attention_maps import SIDES, Attention, attention_of, by_words
from transformer.system.errors import UserError
from transformer.system.files import folder_allows, write_atomically

__all__ = ["attention_figure", "attention_page", "pictures"]

TEMPLATE = Path(__file__).with_name("attention_page.html")
# A page of more weights than this has them in 8 bits in place of 16.
MANY_WEIGHTS = 4_000_000
# Masks of more tokens than these would not be readable.
MOST_MASKED = 24

# What a picture shows, for those who read the page.
ABOUT = {
    "steps": "How many steps the model takes to read each source token and to write each token.",
    "positions": "What is added to the embedding of a token, position by position (Section 3.5).",
    "masks": f"Who may attend to whom (Section 3.2.3): blue may, white may not. Here for the first "
    f"{MOST_MASKED} tokens of this pair, in a batch with longer ones, whence the padding; and for "
    "two sentences that share a row.",
    "learning_rate": "The learning rate of this run; beside it that of Equation 3 (Section 5.3), "
    "for other sizes and warm-ups.",
}

restore_model = define_flags()
SOURCE = flags.DEFINE_string("source", None, "The source sentence.")
TARGET = flags.DEFINE_string("target", None, "A translation (default: the model's own).")
OUT = flags.DEFINE_string("out", "attention.html", "The page to write; empty: none.")
FIGURE = flags.DEFINE_string("figure", None, "A PNG or SVG file to write as well.")
PICTURE = flags.DEFINE_enum("picture", "attention", ["attention", *ABOUT], "What the figure shows.")
ATTENTION = flags.DEFINE_enum(
    "attention", None, list(SIDES), "Which one it shows (default: cross, if there is one)."
)
LAYER = flags.DEFINE_integer("layer", None, "Its layer, from 1 (default: the last).")
HEADS = flags.DEFINE_list("heads", None, "Its heads, from 1, e.g. 1,4 (default: all).")
WORDS = flags.DEFINE_boolean("words", False, "Whether the figure has words in place of tokens.")


def attention_page(model: TrainedModel, found: Attention, source: str, target: str) -> str:
    """One self-contained HTML file about a pair of sentences."""
    bits = 16 if sum(x.size for x in found.maps.values()) <= MANY_WEIGHTS else 8
    data: dict[str, Any] = {
        "name": model.workdir.resolve().name,
        "source": source,
        "target": target,
        "layer": found.layer,
        "steps": {side: np.asarray(steps).tolist() for side, steps in found.steps.items()},
        "tokens": {side: getattr(found, side) for side in ("source", "target", "inputs")},
        "maps": {
            key: {
                "shape": weights.shape,
                "queries": SIDES[key][0],
                "keys": SIDES[key][1],
                "bits": bits,
                "data": _packed(weights, bits),
            }
            for key, weights in found.maps.items()
        },
    }
    # Within a script element only these could end it, or begin a comment.
    text = json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    drawn = {name: draw() for name, draw in pictures(model, found).items()}
    more = "".join(
        f"<h2>{name.replace('_', ' ').capitalize()}</h2><p>{ABOUT[name]}</p>"
        f'<div class="wide">{image(picture.drawn("png"), ABOUT[name])}</div>'
        for name, picture in drawn.items()
        if picture
    )
    return TEMPLATE.read_text().replace("__PICTURES__", more).replace("__DATA__", text)


def pictures(model: TrainedModel, found: Attention) -> dict[str, Callable[[], Picture | None]]:
    """What there is beside attention, by name; drawing may find that there is nothing to draw."""
    config = model.config.model
    drawn = {
        "positions": lambda: positions_figure(model),
        "masks": lambda: masks_figure(found.source[:MOST_MASKED], found.target[:MOST_MASKED]),
        "learning_rate": lambda: schedule_figure(model.config),
    }
    if found.steps:
        limits = config.encoder_steps, config.decoder_steps
        return {"steps": lambda: steps_figure(found, limits), **drawn}
    return drawn


def _figure(model: TrainedModel, found: Attention, heads: list[int] | None) -> Picture:
    """The one that the flags ask for."""
    if PICTURE.value == "attention":
        return draw_attention(found, ATTENTION.value, LAYER.value, heads, WORDS.value)
    drawn = pictures(model, found)
    figure = drawn[PICTURE.value]() if PICTURE.value in drawn else None
    if figure is None:
        raise UserError(f"{model.workdir} has a model without {PICTURE.value}; choose another")
    return figure


def _packed(weights: np.ndarray, bits: int) -> str:
    dtype = np.dtype("<u2") if bits == 16 else np.dtype("u1")
    return base64.b64encode(np.rint(weights * np.iinfo(dtype).max).astype(dtype)).decode()


def _writable(name: str, endings: tuple[str, ...]) -> Path:
    path = Path(name).expanduser()
    if path.suffix.lower() not in endings:
        raise UserError(f"{path} must end in {' or '.join(endings)}")
    if (path.exists() and not path.is_file()) or not folder_allows(path):
        raise UserError(f"{path} cannot be written; name a file in another place")
    return path


def main() -> None:
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
        figure = _figure(model, found, heads)
        write_atomically(picture, figure.drawn(picture.suffix[1:].lower()))
        if not figure.fonts.complete:
            print("some letters are in no font of this machine; install one, such as Noto")
        print(f"wrote {picture}")
    if page:
        write_atomically(page, attention_page(model, found, SOURCE.value, target))
        print(f"wrote {page}")


if __name__ == "__main__":
    cli.run(main)
