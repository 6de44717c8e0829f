"""A model's modules, with shapes, parameters and FLOPs: a table, and a diagram.

    python -m transformer summary --config=base
    python -m transformer summary --workdir=runs/demo --diagram=demo.svg

A model need not be trained: --config takes a preset or a file, and --config.model.num_heads=16 sets
a field. MFLOPs are millions of floating-point operations of the matrix products in a forward pass,
counted in the model's own program: a multiplication and an addition are two. Training takes about
three times as many.
"""

from pathlib import Path

from absl import flags
from ml_collections import config_flags

from transformer import configs
from transformer.reports.tables import FORMATS, formatted
from transformer.system.files import check_can_write
from transformer.system.paths import DEFINE_path

DEFAULT = configs.FOLDER / "demo.py"
CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The config file (default: configs/demo.py, or the config of --workdir's run)."
)
WORKDIR = DEFINE_path("workdir", None, "A run, whose vocabulary has its true size.")
LENGTH = flags.DEFINE_integer("length", 32, "The tokens of each sentence.", 1, 100_000)
CLASSES = flags.DEFINE_integer("classes", 10, "Of labelled data, without a run.", 1, 1_000_000)
FORMAT = flags.DEFINE_enum("format", "text", FORMATS, "Of the table.")
DIAGRAM = DEFINE_path("diagram", None, "A PNG or SVG file to draw the model in.")


def main() -> None:
    from transformer.reports.diagram import diagram
    from transformer.reports.model_summary import HEAD, abstract_model, summary_of, table
    from transformer.runs import cli, run_config

    path = Path(DIAGRAM.value).expanduser() if DIAGRAM.value else None
    if path:
        check_can_write(path, ".png", ".svg")
    if WORKDIR.value is None:
        config = run_config.Config.from_dict(cli.config_of(CONFIG))
        model = abstract_model(config, CLASSES.value)
    else:
        workdir = Path(WORKDIR.value).expanduser()
        config = run_config.load(workdir)
        model = config.kind.restore(config, workdir).model
    summary = summary_of(config, model, LENGTH.value)
    print(formatted(HEAD, table(summary), FORMAT.value), end="")
    if FORMAT.value == "text":
        print(f"MFLOPs: of matrix products in a forward pass over {' and '.join(summary.inputs)}")
    if path:
        diagram(summary).write(path)
        print(f"wrote {path}")
