"""How memory and time grow with length, batch and depth, and with the length of long documents.

    python benchmarks/cost_growth.py --out=RESULTS
    python benchmarks/cost_growth.py --out=RESULTS --config=configs/base.py --most_gigabytes=2
    python benchmarks/cost_growth.py --out=RESULTS --study=memory_by_length

The study cost_growth measures training steps of a Transformer, of which --config gives the model
and its vocabulary: one row of 128 to 16,384 source and as many target tokens; 1 to 32 rows of 256;
8 rows of 256 with 1 to 8 layers in encoder and decoder each. For comparison, long rows are also
measured with the plain form of attention, all queries at once.

The study memory_by_length measures configs/dialogsum.py (T-ED), dialogsum_decoder.py (T-D) and
dialogsum_dmca.py (T-DMCA), with local blocks of 256 as in the paper; 512 to 16,384 source tokens
and 128 target tokens in one row. Training is measured twice: as this code does it, and with
attention and logits of a whole row at once, as in 2018 (the local attention is in blocks either
way). Decoding is a beam search of 4.

Rows are full, and one sentence each. Memory is counted besides parameters, Adam's moments and the
batch, in two ways: what XLA plans, and by how much the resident memory of the process rises at its
highest (Linux says so). Time is the median of 5 runs after a first, or of as many as fit into 20
seconds, at least one. What is planned to take more than --most_gigabytes is not run.

Each measurement is a process of its own. RESULTS gets STUDY.json, written after each measurement,
and STUDY.png; the same command goes on with what is missing.
"""

import dataclasses
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from ml_collections import config_flags

from benchmarks import timing
from benchmarks.program import Program, sizes_of
from benchmarks.synthetic import IDS, full_rows
from transformer.configs import dialogsum, dialogsum_decoder, dialogsum_dmca
from transformer.decoding.inputs import SearchInputs
from transformer.decoding.translation import Translator
from transformer.models import attention, loss
from transformer.models.family import build_model
from transformer.runs import cli
from transformer.runs.provenance import conditions
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.system.paths import DEFINE_path
from transformer.system.sharding import data_mesh, split_rows
from transformer.system.startup import use_huge_pages

GROWTH, DOCUMENTS = "cost_growth", "memory_by_length"
ROWS, DEPTHS = [1, 2, 4, 8, 16, 32], [1, 2, 4, 8]
MODELS = {"T-ED": dialogsum, "T-D": dialogsum_decoder, "T-DMCA": dialogsum_dmca}
FORMS = {
    "whole": "training, a row at once",
    "blocks": "training, this code",
    "search": "beam search",
}
TARGET = 128  # tokens beside a document
LIMITS = [0.25, 0.5, 1, 2, 4, 8]  # GB, of the table
SECONDS_FOR_A_TIME = 20

CONFIG = config_flags.DEFINE_config_file("config", None, "Of cost_growth; configs/demo.py if none.")
STUDY = flags.DEFINE_enum("study", GROWTH, [GROWTH, DOCUMENTS], "What to measure.")
OUT = DEFINE_path("out", None, "The folder for the results.")
LENGTH = flags.DEFINE_multi_integer(
    "length", [], "Source tokens of one row; then nothing else grows.", lower_bound=1
)
MOST = flags.DEFINE_float("most_gigabytes", 10, "What is planned to take more is not run.")
CASE = flags.DEFINE_list("case", None, "Used by this script itself.")
OUTPUT = DEFINE_path("output", None, "Used by this script itself.")


class Case(NamedTuple):
    """A program to measure."""

    model: str  # of a document's MODELS; "" for the config's
    form: str  # of FORMS, or "plain": only attention is not in blocks
    length: int  # of source
    rows: int = 1
    layers: int = 0  # of encoder and of decoder; 0: as in the config


def cases() -> dict[str, list[Case]]:
    """What to measure, by what grows."""
    powers = range(7 if STUDY.value == GROWTH else 9, 15)
    lengths = LENGTH.value or [2**n for n in powers]
    if STUDY.value == DOCUMENTS:
        return {"length": [Case(m, form, n) for n in lengths for form in FORMS for m in MODELS]}
    by_length = {"length": [Case("", form, n) for form in ("plain", "blocks") for n in lengths]}
    if LENGTH.value:
        return by_length
    return by_length | {
        "rows": [Case("", "blocks", 256, n) for n in ROWS],
        "layers": [Case("", "blocks", 256, 8, n) for n in DEPTHS],
    }


def main() -> None:
    if CASE.value:
        if STUDY.value == GROWTH:  # of a document, memory by the usual pages is of interest
            use_huge_pages()
        model, form, *numbers = CASE.value
        timing.write(OUTPUT.value, measure(Case(model, form, *map(int, numbers))))
        return
    if OUT.value is None:
        raise UserError("--out is missing; name a folder for the results")
    about = {name: value for name, value in conditions().items() if name != "command"}
    if STUDY.value == GROWTH:
        config = Config.from_dict(cli.config_of(CONFIG))
        if config.model.family != "transformer":
            raise UserError(
                f"model.family is {config.model.family}; only the Transformer's layers and "
                "attention are measured"
            )
        about["model"] = dataclasses.asdict(config.model)
        about["vocab_size"] = config.tokenizer.vocab_size
    path = Path(OUT.value) / f"{STUDY.value}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"about": about, "cases": []}
    if path.exists():
        results = json.loads(path.read_text())
        if results["about"] != about:
            raise UserError(f"{path} is of another commit, machine or model; give another --out")
    every = dict.fromkeys(case for group in cases().values() for case in group)
    for case in sorted(every, key=lambda case: case.length):
        if case not in by_case(results["cases"]):
            arguments = [*sys.argv[1:], f"--case={','.join(map(str, case))}"]
            try:
                found = timing.run_benchmark("cost_growth.py", arguments)
            except timing.Failed as error:
                raise UserError(f"{case} failed ({error}); it says above why") from error
            results["cases"].append({**case._asdict(), **found})
            write_atomically(path, json.dumps(results, indent=1) + "\n")
            print(json.dumps(results["cases"][-1]), flush=True)
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    (draw_growth if STUDY.value == GROWTH else draw_documents)(figure, by_case(results["cases"]))
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=100)
    write_atomically(path.with_suffix(".png"), png.getvalue())
    if STUDY.value == DOCUMENTS:
        print(table(by_case(results["cases"])))


Found = dict[Case, dict[str, Any]]


def by_case(rows: list[dict[str, Any]]) -> Found:
    return {Case(*(row[name] for name in Case._fields)): row for row in rows}


# --- A measurement ------------------------------------------------------------------------


def measure(case: Case) -> dict[str, float]:
    """Bytes that are planned; those that are used, and seconds, unless they are too many to run."""
    if case.model:
        config = MODELS[case.model].get_config()
        config.data.train_file = "none"  # there are no data
        if case.model == "T-DMCA":
            config.model.block_length = 256
        config = Config.from_dict(config.to_dict())
    else:
        config = Config.from_dict(cli.config_of(CONFIG))
    if case.layers:
        layers = dict(num_encoder_layers=case.layers, num_decoder_layers=case.layers)
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, **layers))
    compiled, run = (prepare_search if case.form == "search" else prepare_training)(config, case)
    planned = compiled.memory_analysis().temp_size_in_bytes
    if planned > MOST.value * 1e9:
        return {"planned": planned}
    Path("/proc/self/clear_refs").write_text("5")  # the highest begins at now
    before = resident("VmRSS")
    seconds = timing.median_of(lambda: jax.block_until_ready(run()), 6, SECONDS_FOR_A_TIME)
    return {"planned": planned, "used": resident("VmHWM") - before, "seconds": seconds}


Prepared = tuple[jax.stages.Compiled, Callable[[], Any]]


def prepare_training(config: Config, case: Case) -> Prepared:
    """The program, and what runs it on arguments that are there already."""
    vocab_size = config.tokenizer.vocab_size
    program = Program(config, sizes_of(config, vocab_size), jax.devices()[:1])
    target = TARGET if case.model else case.length
    batch = full_rows(case.rows, case.length, target, vocab_size)
    if case.form in ("plain", "whole"):
        attention.MAX_QUERIES = case.length + target
    if case.form == "whole":
        loss.MAX_POSITIONS = case.length + target
    compiled = program.compile(batch)
    on_device = jax.device_put(batch, split_rows(program.mesh, axis=1))
    program.start()
    return compiled, lambda: program.step(on_device)


def prepare_search(config: Config, case: Case) -> Prepared:
    model = build_model(config.model, sizes_of(config, config.tokenizer.vocab_size))
    decoding = dataclasses.replace(config.decoding, max_length=TARGET, max_extra_length=TARGET)
    search = Translator(model, IDS, decoding, data_mesh()).programs.jitted(beam_size=4, nbest=1)
    src = jax.ShapeDtypeStruct((1, case.length), np.int32)
    inputs = SearchInputs(jax.ShapeDtypeStruct((1,), np.int32))
    shapes = (model.abstract_params(), model.abstract_extra()), src, inputs
    compiled = search.lower(*shapes).compile()
    arguments = jax.tree.map(lambda x: jnp.full(x.shape, TARGET, x.dtype), shapes)
    return compiled, lambda: compiled(*arguments)


def resident(which: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{which}:\s*(\d+) kB", status)[1])


# --- Pictures -----------------------------------------------------------------------------


def draw_growth(figure: Figure, found: Found) -> None:
    """Memory and time against length, batch and depth."""
    figure.set_size_inches(10, 6)
    labels = {
        "length": "length (tokens), one row",
        "rows": "batch (rows), length 256",
        "layers": "depth (layers each), 8 rows of 256",
    }
    units = {"planned": (1e6, "memory of a step (MB)"), "seconds": (1, "time of a step (s)")}
    styles = {
        "blocks": dict(color="C0", marker="o", label="this code"),
        "plain": dict(color="C3", marker="s", label="attention not in blocks"),
    }
    panels = figure.subplots(2, len(cases()), sharex="col", squeeze=False)
    for (quantity, (unit, label)), row in zip(units.items(), panels):
        row[0].set_ylabel(label)
        for (grows, wanted), axes in zip(cases().items(), row):
            curves = {form: [] for form in styles}
            for case in wanted:
                if quantity in found[case]:
                    point = getattr(case, grows), found[case][quantity] / unit
                    curves[case.form].append(point)
            for form, points in curves.items():
                if points:
                    axes.plot(*zip(*points), markersize=4, **styles[form])
            finish(axes, labels[grows] if quantity == "seconds" else "")
    panels[0, 0].legend(frameon=False)


def draw_documents(figure: Figure, found: Found) -> None:
    """Memory against the length of the source; what was planned, and what was used."""
    figure.set_size_inches(11, 3.6)
    for (form, title), axes in zip(FORMS.items(), figure.subplots(1, 3)):
        for number, model in enumerate(MODELS):
            own = sorted(case for case in found if (case.model, case.form) == (model, form))
            for which, style in (("planned", "-"), ("used", "o")):
                points = [(c.length, found[c][which] / 1e6) for c in own if which in found[c]]
                label = f"{model}, {which}" if form == "whole" else None
                axes.plot(*zip(*points), style, color=f"C{number}", markersize=4, label=label)
        axes.set_title(title)
        finish(axes, "source (tokens)")
    figure.axes[0].set_ylabel("memory (MB)")
    figure.axes[0].legend(frameon=False)


def finish(axes: Axes, label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=20))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1024:g}k" if x >= 1024 else f"{x:g}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def table(found: Found) -> str:
    """The longest source, of those tried, that fits in a limit; what was not run is as planned."""
    lines = []
    for form, title in FORMS.items():
        lines.append(f"{title}: longest source that fits in")
        for limit in LIMITS:
            longest = dict.fromkeys(MODELS, 0)
            for case, row in found.items():
                fits = row.get("used", row["planned"]) <= limit * 1e9
                if case.form == form and fits:
                    longest[case.model] = max(longest[case.model], case.length)
            fits = ", ".join(f"{model} {length:,}" for model, length in longest.items())
            lines.append(f"  {limit:5} GB: {fits}")
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(main, default_config=Path(__file__).parents[1] / "configs" / "demo.py")
