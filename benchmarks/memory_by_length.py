"""Memory of training and of decoding against the length of the source: T-ED, T-D and T-DMCA.

    python benchmarks/memory_by_length.py --out=RESULTS

Of configs/dialogsum.py, dialogsum_decoder.py and dialogsum_dmca.py, with local blocks of 256 as in
the paper; 512 to 16,384 source tokens and 128 target tokens in one row. Training is measured twice:
as this code does it, and with attention and logits of a whole row at once, as in 2018 (the local
attention is in blocks either way). Decoding is a beam search of 4.

Memory is counted besides parameters, Adam's moments and the batch, in two ways: what XLA plans for
a step, and by how much the resident memory of a process that runs the step rises at its highest
(Linux says so; plans of more than 10 GB are not run). RESULTS gets memory_by_length.json, written
after each measurement, and memory_by_length.png; the same command goes on with what is missing.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import dataclasses
import io
import json
import re
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.program import Program, sizes_of
from benchmarks.synthetic import full_rows
from configs import dialogsum, dialogsum_decoder, dialogsum_dmca
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

MODELS = {"T-ED": dialogsum, "T-D": dialogsum_decoder, "T-DMCA": dialogsum_dmca}
FORMS = {
    "whole": "training, a row at once",
    "blocks": "training, this code",
    "search": "beam search",
}
TARGET = 128
MOST = 10e9  # bytes that are tried
LIMITS = [0.25, 0.5, 1, 2, 4, 8]  # GB, of the table

OUT = DEFINE_path("out", None, "The folder for the results.")
LENGTHS = flags.DEFINE_list("lengths", [str(2**n) for n in range(9, 15)], "Source tokens.")
CASE = flags.DEFINE_list("case", None, "Used by this script itself: model, form, length.")


class Case(NamedTuple):
    model: str
    form: str
    length: int


def config_of(model: str) -> Config:
    config = MODELS[model].get_config()
    config.data.train_file = "none"  # there are no data
    if model == "T-DMCA":
        config.model.block_length = 256
    return Config.from_dict(config.to_dict())


def measure(case: Case) -> dict[str, int]:
    """Bytes that are planned, and those that are used, in a process of its own."""
    command = [sys.executable, __file__, f"--case={','.join(map(str, case))}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{' '.join(map(str, case))} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_here(case: Case) -> dict[str, int]:
    config = config_of(case.model)
    prepare = prepare_search if case.form == "search" else prepare_training
    compiled, run = prepare(config, config.tokenizer.vocab_size, case)
    planned = compiled.memory_analysis().temp_size_in_bytes
    if planned > MOST:
        return {"planned": planned}
    return {"planned": planned, "used": rise_of_memory(run)}


Prepared = tuple[jax.stages.Compiled, Callable[[], Any]]


def prepare_training(config: Config, vocab_size: int, case: Case) -> Prepared:
    """The program, and what runs it on arguments that are there already."""
    program = Program(config, sizes_of(config, vocab_size), jax.devices()[:1])
    batch = full_rows(1, case.length, TARGET, vocab_size)
    if case.form == "whole":
        attention.MAX_QUERIES = loss.MAX_POSITIONS = case.length + TARGET
    compiled = program.compile(batch)
    on_device = jax.device_put(batch, split_rows(program.mesh, axis=1))
    program.start()
    return compiled, lambda: program.step(on_device)


def prepare_search(config: Config, vocab_size: int, case: Case) -> Prepared:
    model = build_model(config.model, sizes_of(config, vocab_size))
    decoding = dataclasses.replace(config.decoding, max_length=TARGET, max_extra_length=TARGET)
    search = Translator(model, None, decoding, data_mesh()).programs.jitted(beam_size=4, nbest=1)
    src = jax.ShapeDtypeStruct((1, case.length), np.int32)
    inputs = SearchInputs(jax.ShapeDtypeStruct((1,), np.int32))
    shapes = (model.abstract_params(), model.abstract_extra()), src, inputs
    compiled = search.lower(*shapes).compile()
    arguments = jax.tree.map(lambda x: jnp.full(x.shape, TARGET, x.dtype), shapes)
    return compiled, lambda: compiled(*arguments)


def rise_of_memory(run: Callable[[], Any]) -> int:
    """By how many bytes resident memory is above that of now, at its highest, while `run` works."""
    Path("/proc/self/clear_refs").write_text("5")  # the highest begins at now
    before = resident("VmRSS")
    jax.block_until_ready(run())
    return resident("VmHWM") - before


def resident(which: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{which}:\s*(\d+) kB", status)[1])


def main() -> None:
    if CASE.value:
        model, form, length = CASE.value
        print(json.dumps(measure_here(Case(model, form, int(length)))))
        return
    if OUT.value is None:
        raise UserError("--out is missing; name a folder for the results")
    about = {name: value for name, value in conditions().items() if name != "command"}
    path = Path(OUT.value) / "memory_by_length.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"about": about, "cases": []}
    if path.exists():
        results = json.loads(path.read_text())
        if results["about"] != about:
            raise UserError(f"{path} is of another commit or machine; give another --out")
    done = {Case(*(case[name] for name in Case._fields)) for case in results["cases"]}
    for length in map(int, LENGTHS.value):
        for case in (Case(model, form, length) for form in FORMS for model in MODELS):
            if case not in done:
                results["cases"].append({**case._asdict(), **measure(case)})
                write_atomically(path, json.dumps(results, indent=1) + "\n")
                print(json.dumps(results["cases"][-1]), flush=True)
    write_atomically(path.with_suffix(".png"), picture(results["cases"]))
    print(table(results["cases"]))


def table(cases: list[dict[str, Any]]) -> str:
    """The longest source, of those tried, that fits in a limit; what was not run is as planned."""
    lines = []
    for form, title in FORMS.items():
        lines.append(f"{title}: longest source that fits in")
        for limit in LIMITS:
            longest = {
                model: max(
                    (
                        case["length"]
                        for case in cases
                        if (case["model"], case["form"]) == (model, form)
                        and case.get("used", case["planned"]) <= limit * 1e9
                    ),
                    default=0,
                )
                for model in MODELS
            }
            fits = ", ".join(f"{model} {length:,}" for model, length in longest.items())
            lines.append(f"  {limit:5} GB: {fits}")
    return "\n".join(lines)


def picture(cases: list[dict[str, Any]]) -> bytes:
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for (form, title), axes in zip(FORMS.items(), figure.subplots(1, 3)):
        for number, model in enumerate(MODELS):
            own = [case for case in cases if (case["model"], case["form"]) == (model, form)]
            own.sort(key=lambda case: case["length"])
            for which, style in (("planned", "-"), ("used", "o")):
                points = [(x["length"], x[which] / 1e6) for x in own if which in x]
                label = f"{model}, {which}" if form == "whole" else None
                axes.plot(*zip(*points), style, color=f"C{number}", markersize=4, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(title)
        axes.set_xlabel("source (tokens)")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1024:g}k" if x >= 1024 else f"{x:g}")
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("memory (MB)")
    figure.axes[0].legend(frameon=False)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=100)
    return png.getvalue()


if __name__ == "__main__":
    cli.run(main)
