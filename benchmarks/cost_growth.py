"""How the memory and time of a training step grow with length, batch and depth.

    python benchmarks/cost_growth.py --out=RESULTS
    python benchmarks/cost_growth.py --out=RESULTS --config=configs/base.py --longest_timed=1024

Of the config, the model and its vocabulary; configs/demo.py if none. Measured are steps of one
row of 128 to 16,384 source and as many target tokens; of 1 to 32 rows of 256; of 8 rows of 256
with 1 to 8 layers in encoder and decoder each, unless flags say otherwise. Rows are full, and one
sentence each. For comparison, long rows are also measured with the plain form of attention, all
queries at once.

Memory is what XLA plans for a step besides parameters, Adam's moments and the batch; it is known
without running the step. Time is the median of 5 steps after a first, or of as many as fit into
20 seconds, at least one.

RESULTS gets cost_growth.json, written after each measurement, and cost_growth.png. The same
command goes on with the measurements that are not in there yet.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

if __name__ == "__main__":
    from transformer.system.startup import use_huge_pages

    use_huge_pages()  # before JAX is imported

import dataclasses
import io
import json
import statistics
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import flags
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from ml_collections import config_flags

from benchmarks import timing
from benchmarks.program import Program, sizes_of
from benchmarks.synthetic import full_rows
from transformer.models import attention
from transformer.runs import cli
from transformer.runs.provenance import conditions
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.system.paths import DEFINE_path

DEMO = Path(__file__).parents[1] / "configs" / "demo.py"
SECONDS_FOR_A_TIME = 20

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The config file; configs/demo.py if none."
)
OUT = DEFINE_path("out", None, "The folder for the results.")
LENGTHS = flags.DEFINE_list(
    "lengths", [2**n for n in range(7, 15)], "Source and as many target tokens of one row."
)
ROWS = flags.DEFINE_list("rows", [2**n for n in range(6)], "Rows of 256 + 256 tokens.")
DEPTHS = flags.DEFINE_list("depths", [1, 2, 4, 8], "Layers of encoder and of decoder, with 8 rows.")
for name in ("lengths", "rows", "depths"):
    flags.register_validator(
        name,
        lambda numbers: all(str(n).isdecimal() and int(n) for n in numbers),
        message="give whole numbers of at least 1, with commas between them",
    )
LONGEST_TIMED = flags.DEFINE_integer("longest_timed", 16384, "Longer rows are not run.")
LONGEST_TIMED_PLAIN = flags.DEFINE_integer(
    "longest_timed_plain", 4096, "Longer rows are not run in the plain form: it needs much memory."
)


class Case(NamedTuple):
    """A training step to measure. The form of attention is 'blocks' or 'plain'."""

    rows: int
    length: int  # of source and of target
    layers: int  # of encoder and of decoder
    form: str


def cases(layers: int) -> dict[str, list[Case]]:
    """What to measure, by what grows."""
    lengths, rows, depths = ([int(n) for n in f.value] for f in (LENGTHS, ROWS, DEPTHS))
    return {
        "length": [Case(1, n, layers, form) for form in ("plain", "blocks") for n in lengths],
        "rows": [Case(n, 256, layers, "blocks") for n in rows],
        "layers": [Case(8, 256, n, "blocks") for n in depths],
    }


def measure(case: Case, config: Config) -> dict[str, Any]:
    """Bytes and, unless the rows are too long to run, seconds of a step."""
    # 1. The compiled step.
    layers = dict(num_encoder_layers=case.layers, num_decoder_layers=case.layers)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, **layers))
    vocab_size = config.tokenizer.vocab_size
    program = Program(config, sizes_of(config, vocab_size), jax.devices()[:1])
    batch = full_rows(case.rows, case.length, case.length, vocab_size)
    most = attention.MAX_QUERIES
    if case.form == "plain":
        attention.MAX_QUERIES = case.length
    compiled = program.compile(batch)
    attention.MAX_QUERIES = most
    result = {**case._asdict(), "bytes": compiled.memory_analysis().temp_size_in_bytes}

    # 2. The step itself.
    longest = LONGEST_TIMED if case.form == "blocks" else LONGEST_TIMED_PLAIN
    if case.length > longest.value:
        return {**result, "seconds": None}
    batch = jax.tree.map(jnp.asarray, batch)
    program.start()

    def step() -> None:
        program.step(batch)
        jax.block_until_ready(program.state)

    seconds = timing.seconds_of(step, 6, limit=SECONDS_FOR_A_TIME)
    return {**result, "seconds": statistics.median(seconds[1:] or seconds)}


def main() -> None:
    if OUT.value is None:
        raise UserError("--out is missing; name a folder for the results")
    config = Config.from_dict(cli.config_of(CONFIG))
    if config.model.family != "transformer":
        raise UserError(
            f"model.family is {config.model.family}; only the Transformer's layers and attention "
            "are measured"
        )
    about = {
        **{name: value for name, value in conditions().items() if name != "command"},
        "model": dataclasses.asdict(config.model),
        "vocab_size": config.tokenizer.vocab_size,
    }
    path = Path(OUT.value) / "cost_growth.json"
    results = {"about": about, "steps": []}
    if path.exists():
        results = json.loads(path.read_text())
        if results["about"] != about:
            raise UserError(f"{path} is of another model, commit or machine; give another --out")

    wanted = cases(config.model.num_encoder_layers)
    every = dict.fromkeys(case for group in wanted.values() for case in group)
    for case in sorted(every, key=lambda case: case.length):
        if find(results, case) is None:
            results["steps"].append(measure(case, config))
            write_atomically(path, json.dumps(results, indent=1) + "\n")
            print(json.dumps(results["steps"][-1]), flush=True)
    write_atomically(path.with_suffix(".png"), picture(results, wanted))


def find(results: dict[str, Any], case: Case) -> dict[str, Any] | None:
    steps = [step for step in results["steps"] if case._asdict().items() <= step.items()]
    return steps[0] if steps else None


def picture(results: dict[str, Any], wanted: dict[str, list[Case]]) -> bytes:
    """The results as a PNG file: memory and time against length, batch and depth."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 3, sharex="col")
    units = {"bytes": (1e6, "memory of a step (MB)"), "seconds": (1, "time of a step (s)")}
    for (quantity, (unit, label)), row in zip(units.items(), panels):
        row[0].set_ylabel(label)
        for grows, axes in zip(wanted, row):
            curves = {"blocks": [], "plain": []}
            for case in wanted[grows]:
                value = find(results, case)[quantity]
                if value is not None:
                    curves[case.form].append((getattr(case, grows), value / unit))
            _draw(axes, curves)
    panels[1, 0].set_xlabel("length (tokens), one row")
    panels[1, 1].set_xlabel("batch (rows), length 256")
    panels[1, 2].set_xlabel("depth (layers each), 8 rows of 256")
    panels[0, 0].legend(frameon=False)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=100)
    return png.getvalue()


def _draw(axes: Axes, curves: dict[str, list[tuple[int, float]]]) -> None:
    """Curves on logarithmic axes, and through the middle of the first what grows as x or x^2."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    points = curves["blocks"]
    if not points:  # none was short enough to be timed
        return
    axes.plot(*zip(*points), color="C0", marker="o", markersize=4, label="this code")
    if curves["plain"]:
        style = dict(color="C3", marker="s", markersize=4)
        axes.plot(*zip(*curves["plain"]), label="attention not in blocks", **style)
    limits = axes.get_ylim()
    x_middle, y_middle = points[len(points) // 2]
    xs = [x for x, _ in points]
    powers = ((1, "--", "linear"), (2, ":", "quadratic"))
    for power, style, label in powers if curves["plain"] else powers[:1]:
        ys = [y_middle * (x / x_middle) ** power for x in xs]
        axes.plot(xs, ys, color="0.5", linestyle=style, linewidth=1, label=label)
    axes.set_ylim(limits)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=20))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1024:g}k" if x >= 1024 else f"{x:g}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    cli.run(main, default_config=DEMO)
