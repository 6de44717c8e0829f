"""What each change since 2017 brings, and what it costs: a table.

    python benchmarks/since_2017.py --measure --output=speed.json
    python benchmarks/since_2017.py --results=results/since_2017 --speed=speed.json --format=md

The first measures a training step of each row of configs/sweeps/since_2017.py, in turns with the
row of 2017. The second makes the table of what sweep.py has recorded in --results; with --picture
also a picture. Means are over seeds. All rows share one standard deviation, pooled over them, so a
difference from 2017 is significant if it is larger than --quantile of its standard errors.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks import results_page, timing
from benchmarks.program import Program, packed_rows, sizes_of
from benchmarks.synthetic import median_length, synthetic_pairs
from transformer.reports.ledger import Result
from transformer.reports.pages import panels
from transformer.reports.tables import FORMATS, formatted
from transformer.runs import cli, sweep
from transformer.runs.provenance import ROOT, conditions
from transformer.system.errors import UserError
from transformer.system.files import check_can_write
from transformer.system.paths import argument

SWEEP = str(ROOT / "configs" / "sweeps" / "since_2017.py")
OLD = "2017"

# Of 46 degrees of freedom and 22 comparisons with one row, 5 per cent in all (Bonferroni).
QUANTILE = 3.24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=argument, help="folder with results of the sweep")
    parser.add_argument("--speed", type=argument, help="what --measure has written")
    parser.add_argument("--measure", action="store_true", help="measure the speed of each row")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each row")
    parser.add_argument("--output", type=argument, help="a JSON file for what is measured")
    parser.add_argument("--picture", type=argument, help="a PNG file of differences from 2017")
    parser.add_argument("--quantile", type=float, default=QUANTILE, help="of standard errors")
    parser.add_argument("--format", choices=FORMATS, default="text", help="of the table")
    args = parser.parse_args()
    if args.measure:
        found = measured(args.rounds)
        if args.output:
            timing.write(args.output, {"conditions": conditions(), "rows": found})
        for name, row in found.items():
            print(f"{name:16} {timing.shown(row['over_first']['values'], unit=1)}")
        return
    if not args.results:
        raise UserError("--results is missing; give the folder that sweep.py has filled")
    recorded = results_page.by_row(results_page.of_folder(Path(args.results)))
    if OLD not in recorded:
        raise UserError(f"--results={args.results} lacks the row {OLD} of {SWEEP}")
    speed = {}
    if args.speed:
        rows = json.loads(Path(args.speed).read_text())["rows"]
        speed = {name: row["over_first"]["median"] for name, row in rows.items()}
    print(formatted(*table(recorded, speed, args.quantile), args.format), end="")
    if args.picture:
        check_can_write(Path(args.picture), ".png")
        draw(recorded, Path(args.picture))


def measured(rounds: int) -> dict[str, Any]:
    """The time of a training step of each row, and over that of 2017."""
    steps = {}
    for run in sweep.runs_of(sweep.read_plan(SWEEP), SWEEP):
        if run.row not in steps:
            config = run.config
            limits = config.data.max_source_length, config.data.max_target_length
            size, median = config.tokenizer.vocab_size, median_length(limits)
            pairs = synthetic_pairs(1000, size, limits, median, seed=0)
            packed, batches, *_ = packed_rows(pairs, config)
            program = Program(
                config, sizes_of(config, size)._replace(row_segments=packed.most_examples)
            )
            steps[run.row] = timing.repeat_for_a_second(*program.begin(batches[0]))
    return timing.contest(
        {name: lambda step=step: step()["seconds"] for name, step in steps.items()}, rounds
    )


def scores(results: Sequence[Result], split: str) -> list[float]:
    return [x["splits"][split]["scores"]["bleu"]["score"] for x in results]


def pooled_deviation(groups: Sequence[Sequence[float]]) -> float:
    """The standard deviation that all groups have in common."""
    squares = sum((len(x) - 1) * statistics.variance(x) for x in groups if len(x) > 1)
    freedom = sum(len(x) - 1 for x in groups)
    return math.sqrt(squares / freedom) if freedom else math.nan


def differences(
    recorded: Mapping[str, Sequence[Result]], split: str
) -> dict[str, tuple[float, float]]:
    """The difference of each row's BLEU from that of 2017, and its standard error."""
    found = {name: scores(results, split) for name, results in recorded.items()}
    deviation, old = pooled_deviation([*found.values()]), found[OLD]
    return {
        name: (
            statistics.mean(values) - statistics.mean(old),
            deviation * math.sqrt(1 / len(values) + 1 / len(old)),
        )
        for name, values in found.items()
        if name != OLD
    }


def table(
    recorded: Mapping[str, Sequence[Result]], speed: Mapping[str, float], quantile: float = QUANTILE
) -> tuple[list[str], list[list[str]]]:
    head = ["change", "seeds", "nll, validation", "BLEU, validation", "BLEU, test", "difference"]
    head += ["significant", "parameters", "time of a step"]
    mean, lines = results_page.mean_and_deviation, []
    from_old = differences(recorded, "test")
    for name, results in ordered(recorded).items():
        nll = [x["curve"]["nll"][-1][1] for x in results]
        gain, error = from_old.get(name, (0.0, math.inf))
        lines.append(
            [
                *(name, f"{len(results)}", mean(nll)),
                *(mean(scores(results, split)) for split in ("validation", "test")),
                "" if name == OLD else f"{gain:+.2f}",
                ("no", "yes")[abs(gain) > quantile * error] if name != OLD else "",
                f"{results[0]['parameters'] / 1e6:.2f} M",
                f"{speed[name]:.2f}" if name in speed else "",
            ]
        )
    return head, lines


def ordered(recorded: Mapping[str, Sequence[Result]]) -> dict[str, Sequence[Result]]:
    """The rows in the order of the sweep; others, of an older sweep, come last."""
    names = [run.row for run in sweep.runs_of(sweep.read_plan(SWEEP), SWEEP)]
    return {name: recorded[name] for name in dict.fromkeys([*names, *recorded]) if name in recorded}


def draw(recorded: Mapping[str, Sequence[Result]], path: Path) -> None:
    """Differences from 2017 with twice their standard errors, on both splits."""
    rows = [name for name in ordered(recorded) if name != OLD]
    figure, (axes,) = panels(1, columns=1, height=1 + 0.32 * len(rows), width=8)
    places = np.arange(len(rows))
    for number, split in enumerate(("validation", "test")):
        found = differences(recorded, split)
        gains, errors = zip(*(found[name] for name in rows), strict=True)
        axes.errorbar(
            gains, places + 0.2 * number - 0.1, xerr=2 * np.array(errors), fmt="o", label=split
        )
    axes.axvline(0, color="0.6")
    axes.set_yticks(places, rows)
    axes.invert_yaxis()
    axes.set_xlabel("BLEU above the model of 2017 (bars: two standard errors)")
    axes.grid(color="0.9")
    axes.legend(frameon=False)
    figure.write(path, dpi=130)


if __name__ == "__main__":
    with cli.one_line_errors():
        main()
