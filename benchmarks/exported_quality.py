"""Translations of an exported model beside ours: how many are the same, and BLEU of both.

    pip install -r requirements-exports.txt
    python benchmarks/exported_quality.py --workdir=runs/multi30k --exported=models/multi30k-ct2 \\
        --length_penalty=0
    python benchmarks/exported_quality.py --workdir=runs/multi30k --exported=models/multi30k-ct2 \\
        --their_length_penalty=0.5

The export is one of CTranslate2 or of Hugging Face's Marian. Without length penalties both search
for the same; the second command leaves ours as the run has it. Prints one line of JSON.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from absl import flags

from transformer.data.sources import open_source
from transformer.exports.folder import optional_module
from transformer.runs import cli
from transformer.runs.model_flags import define_flags
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

MAX_LENGTH = 512
ROWS = 32


def ctranslate2_translations(
    model: TrainedModel, folder: Path, sentences: Sequence[str], length_penalty: float
) -> list[str]:
    ctranslate2 = optional_module("ctranslate2")
    translator = ctranslate2.Translator(str(folder))
    source, target = model.task.tokenizers
    ids = {piece: i for i, piece in enumerate(target.pieces)}
    results = translator.translate_batch(
        [[source.pieces[i] for i in line] for line in source.encode_batch(sentences, -1)],
        beam_size=model.config.decoding.beam_size,
        length_penalty=length_penalty,
        min_decoding_length=0,
        max_decoding_length=MAX_LENGTH,
        max_batch_size=ROWS,
    )
    return [target.decode([ids[piece] for piece in found.hypotheses[0]]) for found in results]


def marian_translations(
    model: TrainedModel, folder: Path, sentences: Sequence[str], length_penalty: float
) -> list[str]:
    transformers = optional_module("transformers")
    theirs = transformers.MarianMTModel.from_pretrained(folder).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    found = []
    for first in range(0, len(sentences), ROWS):
        lines = list(sentences[first : first + ROWS])
        tokens = theirs.generate(
            **tokenizer(lines, return_tensors="pt", padding=True),
            num_beams=model.config.decoding.beam_size,
            length_penalty=length_penalty,
            early_stopping=False if length_penalty else "never",
            max_length=MAX_LENGTH,
        )
        found += tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return found


def compare(
    model: TrainedModel,
    split: str,
    theirs: Callable[[Sequence[str]], list[str]],
) -> dict[str, float]:
    """The share of identical lines, in per cent, and BLEU of ours and of `theirs`."""
    sources, references = map(list, zip(*open_source(model.config.data, split).pairs()))
    variables = model.params, model.extra
    outputs = {"ours": model.task.translate(*variables, sources), "theirs": theirs(sources)}

    def bleu(hypotheses: list[str]) -> float:
        texts = sources, references, hypotheses
        return model.task.validation_scores(variables, split, *texts)["bleu"]

    same = sum(a == b for a, b in zip(*outputs.values(), strict=True))
    return {
        "lines": len(sources),
        "identical": 100 * same / len(sources),
        **{f"bleu_{name}": bleu(hypotheses) for name, hypotheses in outputs.items()},
    }


def main() -> None:
    if not EXPORTED.value:
        raise UserError("--exported is missing; give the folder of an export")
    folder = Path(EXPORTED.value).expanduser()
    if (folder / "model.bin").exists():
        translate = ctranslate2_translations
    elif (folder / "model.safetensors").exists():
        translate = marian_translations
    else:
        raise UserError(f"--exported={folder} holds no export to CTranslate2 or to Marian")
    model = restore_model()
    penalty = THEIR_LENGTH_PENALTY.value
    found = compare(model, SPLIT.value, lambda lines: translate(model, folder, lines, penalty))
    print(json.dumps(found))


if __name__ == "__main__":
    restore_model = define_flags()
    EXPORTED = DEFINE_path("exported", None, "The folder of an export.")
    SPLIT = flags.DEFINE_string("split", "test", "The split to translate.")
    THEIR_LENGTH_PENALTY = flags.DEFINE_float("their_length_penalty", 0, "Of the other system.")
    cli.run(main)
