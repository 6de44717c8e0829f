"""A picture of how many steps a Universal Transformer takes for each token of a sentence.

    python -m transformer.reports.ponder --workdir=runs/demo_universal \\
        --sentence="the old house sees the young man ." --out=steps.png

The upper panel has the source, the lower one its translation by the model. EOS ends both.
"""

import io
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from absl import flags
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from transformer.data.vocabulary import BOS, EOS
from transformer.runs import cli
from transformer.runs.restore import TrainedModel, define_flags
from transformer.system.errors import UserError
from transformer.system.files import check_can_write, write_named

restore_model = define_flags()
SENTENCE = flags.DEFINE_string("sentence", None, "The source sentence.")
OUT = flags.DEFINE_string("out", "steps.png", "The PNG file to write.")

Steps = Sequence[tuple[str, float]]  # of each token, its text and its number of steps


def count_steps(model: TrainedModel, sentence: str) -> tuple[Steps, Steps]:
    """The steps of source and translation; raises UserError for a model without halting."""
    if getattr(model.config.model, "halting", "none") == "none" or model.others:
        raise UserError(
            f"{model.workdir} has no adaptive computation time: every token takes as many steps; "
            "give a run with model.family=universal and model.halting=paper or tensor2tensor"
        )
    (translation,) = model.task.translate(model.params, model.extra, [sentence])
    tokenizers = model.task.tokenizers
    ids = [
        [*tokenizer.encode_batch([text], num_threads=1)[0], EOS]
        for tokenizer, text in zip(tokenizers, (sentence, translation), strict=True)
    ]
    src_BS, tgt_in_BT = jnp.array([ids[0]]), jnp.array([[BOS, *ids[1][:-1]]])

    @jax.jit
    def steps(params, extra):
        return model.task.model.bind(params, extra).num_steps(src_BS, tgt_in_BT)

    found = steps(model.params, model.extra)
    return tuple(
        [
            (tokenizer.decode([i]) or "·" if i != EOS else "EOS", float(number))
            for i, number in zip(side, numbers[0], strict=True)
        ]
        for tokenizer, side, numbers in zip(tokenizers, ids, found, strict=True)
    )


def draw(path: Path, title: str, source: Steps, target: Steps, limits: tuple[int, int]) -> None:
    """A bar for each token. limits: the most steps there can be, of encoder and decoder."""
    width = max(5.0, 1 + 0.55 * max(len(source), len(target)))
    figure = Figure(figsize=(width, 5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = zip(
        figure.subplots(2), ("source", "translation"), (source, target), limits, strict=True
    )
    for axes, name, steps, limit in panels:
        places = range(len(steps))
        axes.bar(places, [number for _, number in steps], color="C0", width=0.7)
        # A word may have dollar signs.
        axes.set_xticks(places, [text.replace("$", r"\$") for text, _ in steps], rotation=60)
        axes.set_ylim(0, limit)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(f"{name}: steps")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, parse_math=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    write_named(path, picture.getvalue())


def main() -> None:
    if not SENTENCE.value:
        raise UserError("no sentence is given; add --sentence='...'")
    path = Path(OUT.value).expanduser()
    check_can_write(path, ".png")
    model = restore_model()
    config = model.config.model
    source, target = count_steps(model, SENTENCE.value)
    draw(path, model.workdir.name, source, target, (config.encoder_steps, config.decoder_steps))
    for name, steps in (("source", source), ("translation", target)):
        print(f"{name:12}" + "  ".join(f"{text} {number:.0f}" for text, number in steps))
    print(f"wrote {path}")


if __name__ == "__main__":
    cli.run(main)
