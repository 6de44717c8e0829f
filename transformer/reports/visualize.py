"""Pictures of attention: which words a trained model looks at.

    python -m transformer.reports.visualize --workdir=runs/demo --source="the old man sleeps ."
    python -m transformer.reports.visualize --workdir=runs/demo --source="..." --target="..." \\
        --figure=cross.svg --attention=cross --layer=2

The page (attention.html) is one file that any browser opens, without a network: all layers and
heads, as lines, as matrices or all at once; tokens or whole words; the mean of the heads; attention
rollout. A figure, PNG or SVG, is for papers: the heads of one layer. Without --target the model's
own translation is shown.
"""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from transformer.runs import cli
from transformer.runs.restore import define_flags
from transformer.streams.attention_maps import (
    SIDES,
    Attention,
    attention_of,
    by_words,
    merge_words,
)
from transformer.streams.model import Model
from transformer.system.errors import UserError
from transformer.system.files import check_can_write, write_named

TEMPLATE = Path(__file__).with_name("attention_page.html")
# A page of more weights than this has them in 8 bits in place of 16.
MANY_WEIGHTS = 4_000_000

restore_model = define_flags()
SOURCE = flags.DEFINE_string("source", None, "The source sentence.")
TARGET = flags.DEFINE_string("target", None, "A translation (default: the model's own).")
OUT = flags.DEFINE_string("out", "attention.html", "The page to write; empty: none.")
FIGURE = flags.DEFINE_string("figure", None, "A PNG or SVG file to write as well.")
ATTENTION = flags.DEFINE_enum("attention", "cross", list(SIDES), "Which one the figure shows.")
LAYER = flags.DEFINE_integer("layer", None, "Its layer, from 1 (default: the last).")
HEADS = flags.DEFINE_list("heads", None, "Its heads, from 1, e.g. 1,4 (default: all).")
WORDS = flags.DEFINE_boolean("words", False, "Whether the figure has words in place of tokens.")


def attention_page(attention: Attention, name: str, source: str, target: str) -> str:
    """One self-contained HTML file. name: of the model."""
    bits = 16 if sum(x.size for x in attention.maps.values()) <= MANY_WEIGHTS else 8
    data: dict[str, Any] = {
        "name": name,
        "source": source,
        "target": target,
        "tokens": {side: getattr(attention, side) for side in ("source", "target", "inputs")},
        "maps": {
            key: {
                "shape": weights.shape,
                "queries": SIDES[key][0],
                "keys": SIDES[key][1],
                "bits": bits,
                "data": _packed(weights, bits),
            }
            for key, weights in attention.maps.items()
        },
    }
    # Within a script element only these could end it, or begin a comment.
    text = json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return TEMPLATE.read_text().replace("__DATA__", text)


def attention_figure(
    model: Model,
    source: str,
    target: str | None = None,
    *,
    attention: str = "cross",
    layer: int | None = None,
    heads: list[int] | None = None,
    words: bool = False,
) -> Figure:
    """The heads of a layer as matrices, queries down and keys across; a notebook shows it.

    attention: "encoder", "decoder" or "cross". layer, heads: from 1; default: the last, and all.
    Raises UserError for those that there are not.
    """
    return _figure(model.attention(source, target), attention, layer, heads, words)


def _figure(found: Attention, name: str, layer: int | None, heads: Any, words: bool) -> Figure:
    if name not in found.maps:
        raise UserError(f"the model has no attention {name!r}; it has: {', '.join(found.maps)}")
    weights_LHQK = found.maps[name]
    L, H = weights_LHQK.shape[:2]
    layer = L if layer is None else layer
    heads = list(range(1, H + 1)) if heads is None else heads
    if not 1 <= layer <= L:
        raise UserError(f"layer {layer} is asked for; the model has 1 to {L}")
    for head in heads:
        if not 1 <= head <= H:
            raise UserError(f"head {head} is asked for; the model has 1 to {H}")
    queries, keys = found.tokens(name)
    weights_hQK = weights_LHQK[layer - 1, [head - 1 for head in heads]]
    names = [[token.text for token in tokens] for tokens in (queries, keys)]
    if words:
        names, members = zip(*map(by_words, (queries, keys)), strict=True)
        weights_hQK = merge_words(weights_hQK, *members)
    columns = min(4, len(heads))
    rows = -(-len(heads) // columns)
    across, down = (max(1.6, 0.24 * len(side)) for side in (names[1], names[0]))
    figure = Figure(figsize=(columns * across + 1.2, rows * (down + 0.9) + 0.3))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(heads) :]:
        panel.axis("off")
    for i, (panel, head) in enumerate(zip(panels, heads)):
        panel.imshow(weights_hQK[i], cmap="Blues", vmin=0, vmax=1, aspect="auto")
        texts = [[text.replace("$", r"\$") for text in side] for side in names]
        panel.set_xticks(
            range(len(texts[1])),
            texts[1],
            rotation=60,
            fontsize=8,
            ha="right",
            rotation_mode="anchor",
        )
        is_first = i % columns == 0
        panel.set_yticks(range(len(texts[0])), texts[0] if is_first else [], fontsize=8)
        panel.set_title(f"layer {layer}, head {head}", fontsize=9)
    return figure


def _packed(weights: np.ndarray, bits: int) -> str:
    dtype = np.dtype("<u2") if bits == 16 else np.dtype("u1")
    return base64.b64encode(np.rint(weights * np.iinfo(dtype).max).astype(dtype)).decode()


def _writable(name: str, endings: tuple[str, ...]) -> Path:
    path = Path(name).expanduser()
    check_can_write(path, *endings)
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
    content = io.BytesIO()
    if picture:  # first, since it may be refused
        figure = _figure(found, ATTENTION.value, LAYER.value, heads, WORDS.value)
        form = "svg" if picture.suffix.lower() == ".svg" else "png"  # a pipe has any name
        figure.savefig(content, format=form, dpi=150)
        write_named(picture, content.getvalue())
        print(f"wrote {picture}")
    if page:
        write_named(page, attention_page(found, model.workdir.name, SOURCE.value, target))
        print(f"wrote {page}")


if __name__ == "__main__":
    cli.run(main)
