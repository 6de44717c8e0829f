"""Trains a model.

    python train.py                                              the demo
    python train.py --config=configs/base.py --workdir=runs/base
    python train.py --config=configs/base.py --config.model.num_heads=16 --workdir=runs/h16

A second start with the same --workdir continues where the first one stopped. It needs only
--workdir, and flags such as --config.training.steps=20000 change the fields that may change.

Every field of a config is a flag. This lists them with their values and explanations:

    python train.py --config=configs/base.py --help-config
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from transformer import configs
from transformer.system import job_flags
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path, local

DEFAULT = configs.FOLDER / "demo.py"

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The config file (default: configs/demo.py, or the config of --workdir's run)."
)
WORKDIR = DEFINE_path("workdir", None, "Where the run lives (default: runs/<name of the config>).")
HELP_CONFIG = flags.DEFINE_bool("help-config", False, "Only list the fields of the config.")
flags.DEFINE_alias("fields", "help-config")
PREPARE = flags.DEFINE_bool(
    "prepare", False, "Only prepare data and work directory; training then needs no network."
)
PROFILE = flags.DEFINE_string(
    "profile", None, "START:STOP; traces the updates between these steps into WORKDIR/profile."
)
flags.adopt_module_key_flags(job_flags)  # for --help


def _leaves(overrides: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields that flags set; one may set all corpora at once."""
    for name, value in overrides.items():
        if isinstance(value, ConfigDict):
            yield from _leaves({f"{name}.{part}": x for part, x in value.items()})
        else:
            yield name, value


def main() -> None:
    from transformer.reports import run_report
    from transformer.reports.plots import learning_curve
    from transformer.runs import cli, fields, init_from, provenance, train, trusted_paths
    from transformer.runs.run_config import Config
    from transformer.system import distributed
    from transformer.system.profiling import step_range

    distributed.initialize()
    config_file, _, own = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    config_path = Path(config_file)
    sections = cli.config_of(CONFIG)
    if WORKDIR.value == "":
        raise UserError("--workdir is empty; name a folder, or leave the flag out")
    workdir = Path(local(WORKDIR.value or f"runs/{config_path.stem}", "--workdir"))
    if own and WORKDIR.value is None:
        raise UserError("--workdir is missing; name a folder for the run that begins there")
    overrides = dict(_leaves(config_flags.get_override_values(flags.FLAGS["config"])))
    if HELP_CONFIG.value:
        listed = fields.sections_of(sections, overrides)
        if listed["training"].init_from:
            listed = init_from.with_its_model(Config(**listed), workdir, overrides).sections
        print(fields.listing(listed))
        return
    config = Config.from_dict(sections)
    if config.training.init_from:
        config = init_from.with_its_model(config, workdir, overrides)
    steps = config.training.steps
    if distributed.is_first():
        trusted_paths.remember(config, overrides if own else None)
    if PREPARE.value:
        distributed.refuse_jobs("--prepare")
        train.prepare(config, workdir)
        return
    profiled = range(0) if PROFILE.value is None else step_range(PROFILE.value, steps)
    # Recorded now: the files that this process has read may soon be of another commit.
    start = {
        **provenance.conditions(),
        "config_file": provenance.relative(str(config_path)),
        "overrides": overrides,
    }
    if own and (earlier := provenance.starts(Path(own))):
        start["config_file"] = earlier[-1]["config_file"]
        start["overrides"] = {**earlier[-1]["overrides"], **overrides}
    directions = {name: metric.better for name, metric in config.kind.metrics.items()}

    def draw() -> None:
        learning_curve(workdir / "metrics.jsonl", workdir / "learning_curve.png", directions)

    train.run(config, workdir, profiled, start, draw)
    if distributed.is_first():
        draw()
        run_report.write(workdir)
