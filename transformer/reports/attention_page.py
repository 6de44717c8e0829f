"""The page about the attention of a sentence pair; commands/visualize.py is the command."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from transformer.inference.attention_maps import SIDES, Attention
from transformer.reports.figures import (
    masks_figure,
    positions_figure,
    schedule_figure,
    steps_figure,
)
from transformer.reports.pages import Picture, image
from transformer.runs.restore import TrainedModel

TEMPLATE = Path(__file__).with_name("attention_page.html")
# A page with more weights has them in 8 bits instead of 16.
MANY_WEIGHTS = 4_000_000
# Of a file, which no server serves.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
# Masks of more tokens would not be readable.
MOST_MASKED = 24

# Explanations of the pictures for readers of the page.
ABOUT = {
    "steps": "How many steps the model takes to read each source token and to write each token.",
    "positions": "What is added to the embedding of a token, position by position (Section 3.5).",
    "masks": f"Who may attend to whom (Section 3.2.3): blue may, white may not. Here for the first "
    f"{MOST_MASKED} tokens of this pair, in a batch with longer ones, whence the padding; and for "
    "two sentences that share a row.",
    "learning_rate": "The learning rate of this run; beside it that of Equation 3 (Section 5.3), "
    "for other sizes and warm-ups.",
}


def attention_page(model: TrainedModel, found: Attention, source: str, target: str) -> str:
    """One self-contained HTML file about a sentence pair."""
    text = as_script(page_data(model, found, source, target))
    drawn = {name: draw() for name, draw in pictures(model, found).items()}
    more = "".join(
        f"<h2>{name.replace('_', ' ').capitalize()}</h2><p>{ABOUT[name]}</p>"
        f'<div class="wide">{image(picture.drawn("png"), ABOUT[name])}</div>'
        for name, picture in drawn.items()
        if picture
    )
    return page_of(text, POLICY, pictures=more)


def page_of(data: str, policy: str, lab: str = "", pictures: str = "") -> str:
    """The page of attention, for data from `as_script`; lab: the rest of the live page."""
    page = TEMPLATE.read_text(encoding="utf-8").replace("__POLICY__", policy)
    page = page.replace("__LAB__", lab).replace("__PICTURES__", pictures)
    return page.replace("__DATA__", data)


def as_script(data: Any) -> str:
    """JSON for a script element, which only these characters could end or make a comment of."""
    text = json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e")
    return text.replace("&", "\\u0026")


def page_data(model: TrainedModel, found: Attention, source: str, target: str) -> dict[str, Any]:
    """The numbers and tokens that the page draws."""
    bits = 16 if sum(x.size for x in found.maps.values()) <= MANY_WEIGHTS else 8
    return {
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


def pictures(model: TrainedModel, found: Attention) -> dict[str, Callable[[], Picture | None]]:
    """The pictures beside attention, by name; a drawing function may find nothing to draw."""
    is_decoder_alone = list(found.maps) == ["decoder"]
    masked = ([], found.inputs) if is_decoder_alone else (found.source, found.target)
    drawn = {
        "positions": lambda: positions_figure(model),
        "masks": lambda: masks_figure(*(side[:MOST_MASKED] for side in masked)),
        "learning_rate": lambda: schedule_figure(model.config),
    }
    return {"steps": lambda: steps_figure(found), **drawn} if found.steps else drawn


def _packed(weights: np.ndarray, bits: int) -> str:
    dtype = np.dtype("<u2") if bits == 16 else np.dtype("u1")
    return base64.b64encode(np.rint(weights * np.iinfo(dtype).max).astype(dtype)).decode()
