"""When does attention begin to look? Curves over the checkpoints of runs.

    python benchmarks/attention_start.py --make=extraction --length=64
    python benchmarks/attention_start.py --workdir=runs/post,runs/pre --out=start.png

The first command writes text to learn from: sources of --length random words, in which two marks
enclose a span, and targets that are this span. Train with --config.training.keep_last=100 to have
many checkpoints. For each of them, the second command prints a line of JSON with means over
EXAMPLES examples of the validation split:

    source_gain       nats per token, as in validation (docs/evaluation.md); BERT has none
    similarity        cosine between two positions of the encoder's output
    entropy/MAP       of a query's weights, divided by that of uniform weights, so from 0 to 1
    largest/MAP       a query's largest weight

MAP is encoder or cross, and the mean is over layers and heads, too. A model that has no encoder or
does not attend to its source, such as T-D, has only the gain.
"""

import itertools
import json
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from transformer.reports.plots import curves_figure
from transformer.runs import cli
from transformer.runs.checkpoints import saved_steps
from transformer.runs.restore import restore
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path, DEFINE_paths
from transformer.tasks.source_gain import in_batches, sample, source_scores
from transformer.training.step import evaluation_step

EXAMPLES = 64
SPAN, WORDS = 8, 100  # words of a span, and different words
SIZES = {"train": 20_000, "validation": 500}

WORKDIR = DEFINE_paths("workdir", [], "Work directories, whose checkpoints are compared.")
OUT = DEFINE_path("out", None, "A PNG file to write.")
MAKE = DEFINE_path("make", None, "A folder to write data to.")
LENGTH = flags.DEFINE_integer("length", 64, "Words of a source, besides the marks.", SPAN)


def extraction(split: str, length: int) -> list[tuple[str, str]]:
    """Sources and targets, the same on every machine."""
    draw, pairs = random.Random(f"{split} {length}").random, []
    for _ in range(SIZES[split]):
        words = [str(int(WORDS * draw())) for _ in range(length)]
        begin = int((length - SPAN + 1) * draw())
        before, span, after = words[:begin], words[begin : begin + SPAN], words[begin + SPAN :]
        pairs.append((" ".join([*before, "<", *span, ">", *after]), " ".join(span)))
    return pairs


def measures(bound: Any, batch: Any) -> dict[str, jax.Array]:
    """The means over real positions, of a batch of pairs or of BERT's sequences."""
    if hasattr(batch, "masked_BP"):
        src_BS = batch.segments_BS
        memory_BSD, layers = bound.encode(batch.tokens_BS, batch.types_BS, src_BS, None, True)
        maps = {"encoder": layers}
    elif bound.joins_sides or not bound.attends:
        return {}
    else:
        sides = batch.src_BS, batch.tgt_in_BT, batch.src_segments_BS, batch.tgt_segments_BT
        maps = bound.attention_maps(bound(*sides, return_weights=True)[1])
        memory_BSD = bound.encode(batch.src_BS, batch.src_segments_BS)
        src_BS = batch.src_segments_BS[:, :: bound.words]
    found = {}
    for name in maps.keys() & {"encoder", "cross"}:
        queries_BQ = src_BS if name == "encoder" else batch.tgt_segments_BT
        weights_LBHQK = jnp.stack(maps[name]).astype(jnp.float32)
        uniform_BQ = jnp.log(jnp.maximum(_same(queries_BQ, src_BS).sum(-1), 2))
        entropy_LBHQ = jax.scipy.special.entr(weights_LBHQK).sum(-1) / uniform_BQ[None, :, None]
        is_real_LBHQ = (queries_BQ > 0)[None, :, None]
        found[f"entropy/{name}"] = jnp.mean(entropy_LBHQ, where=is_real_LBHQ)
        found[f"largest/{name}"] = jnp.mean(weights_LBHQK.max(-1), where=is_real_LBHQ)
    if isinstance(memory_BSD, jax.Array):
        unit_BSD = memory_BSD / jnp.linalg.norm(memory_BSD, axis=-1, keepdims=True)
        cosine_BST = jnp.einsum("BSD,BTD->BST", unit_BSD, unit_BSD)
        others_BST = _same(src_BS, src_BS) & ~jnp.eye(src_BS.shape[1], dtype=bool)[None]
        found["similarity"] = jnp.mean(cosine_BST, where=others_BST)
    return found


def _same(queries_BQ: jax.Array, keys_BK: jax.Array) -> jax.Array:
    return (queries_BQ[:, :, None] == keys_BK[:, None]) & (queries_BQ[:, :, None] > 0)


def curves(workdir: Path) -> dict[str, list[tuple[int, float]]]:
    """The steps and values of each measure; prints a line for each checkpoint."""
    found, task, sides = defaultdict(list), None, None
    for step in saved_steps(workdir):
        model = restore(workdir, str(step), trust_paths=True)
        if task is None:
            task = model.task
            if hasattr(task, "translator"):
                pairs = task.open_source(task.data, "validation").pairs()
                sides = tuple(map(list, zip(*pairs, strict=True)))
                numbers = sample(sides[0])[0][:EXAMPLES] or [0]
                texts = [[side[i] for i in numbers] for side in sides]
                batches = in_batches(task, *task.translator.token_pairs(*texts))
            elif not hasattr(task, "held_out"):
                raise UserError(
                    f"{workdir} has no text to attend to; give a run with pairs or BERT"
                )
            else:
                batches = task.in_batches(task.held_out("validation"))
            measure = evaluation_step(measures, task.model, task.mesh)
        variables = model.params, model.extra
        some = itertools.islice(task.on_devices(batches), -(-EXAMPLES // len(batches.rows(0))))
        measured = jax.device_get([measure(*variables, batch) for batch in some])
        values = {name: np.mean([one[name] for one in measured]) for name in measured[0]}
        if sides:
            scores = source_scores(task, variables, *sides, sides[1], warns=False)
            values |= {name: x["score"] for name, x in scores.items() if name == "source_gain"}
        values = {name: round(float(value), 4) for name, value in sorted(values.items())}
        print(json.dumps({"workdir": str(workdir), "step": step, **values}), flush=True)
        for name, value in values.items():
            found[name].append((step, value))
    if not found:
        raise UserError(f"{workdir} has no checkpoint; train on, then try again")
    return found


def main() -> None:
    if not (MAKE.value or WORKDIR.value):
        raise UserError("nothing to do; give --workdir, or --make to write data")
    if MAKE.value:
        Path(MAKE.value).mkdir(parents=True, exist_ok=True)
        for split in SIZES:
            for side, texts in zip(("source", "target"), zip(*extraction(split, LENGTH.value))):
                Path(MAKE.value, f"{split}.{side}").write_text("\n".join([*texts, ""]))
    panels = defaultdict(dict)
    for workdir in map(Path, WORKDIR.value):
        for name, curve in curves(workdir).items():
            panels[name][workdir.name] = curve
    if OUT.value:
        figure = curves_figure("When does attention begin to look?", panels)
        figure.write(Path(OUT.value), dpi=130)


if __name__ == "__main__":
    cli.run(main)
