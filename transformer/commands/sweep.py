"""Trains and evaluates many runs: rows of settings, each with several seeds.

    python sweep.py --config=configs/sweeps/table3.py
    python sweep.py --config=configs/multi30k_tiny.py --seeds=1,2,3 --results=results
    python sweep.py --config=configs/sweeps/table3.py --table=md

A sweep file is a config file with a second function, get_sweep: see docs/sweeps.md. To continue a
sweep, repeat its command: finished runs are not repeated, the others resume. With --table or
--dry_run nothing is trained.
"""

import dataclasses
import fnmatch
import re
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags
from ml_collections import ConfigDict, config_flags

from transformer.reports.tables import FORMATS
from transformer.system.commands import command, script
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path, local

if TYPE_CHECKING:
    from transformer.runs.launcher import Launcher
    from transformer.runs.sweep import Run

CONFIG = config_flags.DEFINE_config_file("config", None, "A sweep file, or any config file.")
OUT = DEFINE_path(
    "out", None, "For the work directories (default: runs/<config>).", in_buckets=False
)
SEEDS = flags.DEFINE_list("seeds", None, "Seeds of each row, in place of those of the file.")
ONLY = flags.DEFINE_list("only", ["*"], "Names of runs or rows; * stands for anything.")
EVALUATE = flags.DEFINE_string(
    "evaluate", None, "Flags of evaluate, in place of those of the file; none: only train."
)
RESULTS = DEFINE_path(
    "results", None, "A folder of the ledger: records each run there.", in_buckets=False
)
SHARD = flags.DEFINE_string("shard", None, "As 0/8: of all runs every 8th, beginning with run 0.")
TOGETHER = flags.DEFINE_integer("together", None, "How many runs at once (default: 1).", 1, 1000)
GPUS = flags.DEFINE_list("gpus", [], "Numbers of GPUs, each of which has one run at a time.")
TABLE = flags.DEFINE_enum("table", None, FORMATS, "Prints the table of what there is.")
METRIC = flags.DEFINE_list("metric", [], "Columns of the table.")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Prints the command of each run.")


def main() -> None:
    from transformer.runs import sweep
    from transformer.runs.launcher import Launcher, Options
    from transformer.system import distributed

    if not flags.FLAGS["config"].present:
        raise UserError("--config is missing; give a sweep file, such as sweeps/table3")
    if GPUS.value and TOGETHER.value:
        raise UserError("--gpus and --together are both given; there is one run on each of --gpus")
    if len(set(GPUS.value)) < len(GPUS.value):
        raise UserError(f"--gpus={','.join(GPUS.value)} names a GPU twice; each has one run")
    file = config_flags.get_config_filename(flags.FLAGS["config"])
    given = {
        field: value.to_dict() if isinstance(value, ConfigDict) else value
        for field, value in config_flags.get_override_values(flags.FLAGS["config"]).items()
    }
    if sweep.SEED in given:
        raise UserError(f"--config.{sweep.SEED} is given; give --seeds={given[sweep.SEED]}")
    plan, name = sweep.read_plan(file), Path(file).stem
    if SEEDS.value is not None:
        plan = dataclasses.replace(plan, seeds=numbers(SEEDS.value))
    wanted = [
        run
        for run in sweep.runs_of(plan, file, given)
        if any(fnmatch.fnmatchcase(x, glob) for x in (run.name, run.row) for glob in ONLY.value)
    ]
    if not wanted:
        raise UserError(f"--only={','.join(ONLY.value)} names no run; --dry_run shows the names")
    wanted = of_shard(wanted)
    options = Options(
        out=Path(local(OUT.value or f"runs/{name}", "--out")),
        flags=[f"--config.{field}={value}" for field, value in given.items()],
        evaluate=plan.evaluate if EVALUATE.value is None else EVALUATE.value,
        results=RESULTS.value and Path(RESULTS.value).expanduser(),
        together=TOGETHER.value or 1,
        gpus=GPUS.value,
    )
    launcher = Launcher(options)
    if DRY_RUN.value:
        for run in wanted:
            print(command("train", *launcher.training_flags(run)))
    elif TABLE.value:
        show(launcher, wanted)
    else:
        distributed.refuse_jobs(script("sweep"))
        launcher.check_evaluation(wanted)
        failed = launcher.launch(wanted)
        show(launcher, wanted)
        if failed:
            raise SystemExit(1)


def numbers(words: list[str]) -> list[int]:
    if not all(word.isdecimal() and len(word) <= 10 for word in words) or not words:
        raise UserError(f"--seeds={','.join(words)} must be whole numbers, as in --seeds=1,2,3")
    return [int(word) for word in words]


def of_shard(runs: list["Run"]) -> list["Run"]:
    if SHARD.value is None:
        return runs
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", SHARD.value)
    if not match or not int(match[1]) < int(match[2]):
        raise UserError(f"--shard={SHARD.value} must be N/M with N < M, such as 0/8 up to 7/8")
    return runs[int(match[1]) :: int(match[2])]


def show(launcher: "Launcher", runs: list["Run"]) -> None:
    """Prints the table that the flags ask for."""
    from transformer.reports import sweep_report, tables

    rows = sweep_report.rows_of(launcher, runs)
    form = TABLE.value or "text"
    print(tables.formatted(*sweep_report.table(rows, METRIC.value, form), form), end="")
