"""Imports a Marian or NLLB model of Hugging Face's as a work directory of ours.

    python -m transformer import-marian --folder=opus-mt-en-de --output=models/opus-en-de

The folder is as downloaded from the hub: config.json, the weights in safetensors, and the files of
its tokenizer. The config file (configs/opus_mt.py) supplies the rest: data, training and search.
--languages and --text make the vocabulary of M2M100 and NLLB smaller (docs/nllb.md).
docs/exporting.md has more.
"""

import os
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from transformer import configs
from transformer.system.commands import script
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path, DEFINE_paths, given

DEFAULT = configs.FOLDER / "opus_mt.py"

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The config file (default: configs/opus_mt.py)."
)
FOLDER = DEFINE_path("folder", None, "The folder of the model.")
OUTPUT = DEFINE_path("output", None, "The work directory to make.")
LANGUAGES = flags.DEFINE_list(
    "languages",
    None,
    "Keep only these languages and the pieces of --text in the vocabulary of M2M100 or NLLB.",
)
TEXT = DEFINE_paths("text", None, "Files whose pieces --languages keeps.")


def main() -> None:
    from transformer.exports.folder import check_is_new
    from transformer.exports.trimming import table, trimmed
    from transformer.exports.workdir import export
    from transformer.runs import cli, init_from
    from transformer.runs.run_config import Config
    from transformer.system import distributed

    distributed.refuse_jobs(script("import-marian"))
    folder, output = given(FOLDER, OUTPUT)
    output = Path(os.path.normpath(output))
    check_is_new(output)
    if bool(LANGUAGES.value) != bool(TEXT.value):
        raise UserError("--languages and --text belong together; give both, or neither")
    config = Config.from_dict(cli.config_of(CONFIG))
    model = init_from.of_hub(
        folder, config, config_flags.get_override_values(flags.FLAGS["config"])
    )
    if LANGUAGES.value:
        full, model = model, trimmed(model, LANGUAGES.value, TEXT.value)
        print(table(full, model))
        del full
    export(model, output)
    print(f"written  {output}, with tokenizer.vocab_size={model.config.tokenizer.vocab_size}")
