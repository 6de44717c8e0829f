"""The standard pictures of a run for slides, as SVG and PNG.

    python -m transformer pictures --workdir=runs/demo --output=slides
    python -m transformer pictures --workdir=runs/demo --output=slides --only=attention,masks \\
        --source="The kitchen will be quiet next week."

Without --source the sentence is one of the evaluated split. What a model does not have, such as the
attention of an LSTM, is left out, and a line says so. alt.md describes the pictures for those who
cannot see them; an SVG holds its own text.
"""

from absl import flags

from transformer.runs.model_flags import define_flags
from transformer.system.errors import UserError
from transformer.system.files import check_can_write
from transformer.system.paths import DEFINE_path, given

restore_model = define_flags()
OUTPUT = DEFINE_path("output", None, "The folder to write; existing pictures are replaced.")
ONLY = flags.DEFINE_list("only", None, "Names of pictures, e.g. curves,masks (default: all).")
SOURCE = flags.DEFINE_string("source", None, "The sentence of the pictures that show one.")
TARGET = flags.DEFINE_string("target", None, "A translation (default: the model's own).")


def main() -> None:
    from transformer.reports.run_pictures import PICTURES, Run, write_pictures

    (folder,) = given(OUTPUT)
    names = ONLY.value or list(PICTURES)
    for name in names:
        if name not in PICTURES:
            raise UserError(f"there is no picture {name!r:.60}; there are: {', '.join(PICTURES)}")
    check_can_write(folder / "alt.md")
    for line in write_pictures(Run(restore_model(), SOURCE.value, TARGET.value), folder, names):
        print(line, flush=True)
