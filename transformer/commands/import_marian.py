"""Imports a Marian model of Hugging Face's as a work directory of ours.

    python -m transformer import-marian --folder=opus-mt-en-de --output=models/opus-en-de

The folder is as downloaded from the hub: config.json, model.safetensors, source.spm, target.spm and
vocab.json. The config file (configs/opus_mt.py) supplies the rest: data, training and search.
docs/exporting.md has more.
"""

from ml_collections import config_flags

from transformer import configs
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

DEFAULT = configs.FOLDER / "opus_mt.py"

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The config file (default: configs/opus_mt.py)."
)
FOLDER = DEFINE_path("folder", None, "The folder of the Marian model.")
OUTPUT = DEFINE_path("output", None, "The work directory to make.")


def main() -> None:
    from transformer.exports.import_marian import convert
    from transformer.runs import cli
    from transformer.runs.run_config import Config

    for flag in (FOLDER, OUTPUT):
        if not flag.value:
            raise UserError(f"--{flag.name} is missing; see --help")
    convert(FOLDER.value, OUTPUT.value, lambda: Config.from_dict(cli.config_of(CONFIG)))
