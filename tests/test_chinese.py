"""A Chinese config, as a user runs it."""

import json
from pathlib import Path

import pytest
from scripts import ROOT, metrics, run, succeeded

NUMBERS = {
    "one": "一", "two": "二", "three": "三", "four": "四", "five": "五", "six": "六", "seven": "七",
}  # fmt: skip


def write_pairs(folder: Path) -> list[tuple[str, str]]:
    """Pairs such as "Two, one?" and "二，一？", without spaces and with full-width punctuation."""
    pairs = [
        (f"{a.capitalize()}, {b}{end_en}", f"{NUMBERS[a]}，{NUMBERS[b]}{end_zh}")
        for a in NUMBERS
        for b in NUMBERS
        for end_en, end_zh in (("?", "？"), (".", "。"), ("!", "！"))
    ]
    folder.mkdir()
    for i, language in enumerate(("en", "zh")):
        text = "".join(f"{pair[i]}\n" for pair in pairs)
        (folder / f"train.{language}").write_text(text, encoding="utf-8")
    return pairs


def flags() -> list[str]:
    fields = {
        "data.raw_dir": "raw",
        "data.data_dir": "data",
        "tokenizer.vocab_size": 300,
        "training.tokens_per_update": 5 * 65,
        "training.steps": 2,
        "training.checkpoint_every": 2,
        "training.full_validation_every": 2,
        "decoding.max_extra_length": 3,
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.d_model": 14,
        "model.d_ff": 11,
        "model.num_heads": 2,
    }
    values = [f"--config.{name}={value}" for name, value in fields.items()]
    return [f"--config={ROOT / 'configs' / 'tatoeba_zh.py'}", "--workdir=run", *values]


@pytest.mark.slow
def test_from_files_to_scores_and_translations(tmp_path):
    pairs = write_pairs(tmp_path / "raw")
    succeeded(run("train.py", *flags(), cwd=tmp_path))
    assert "eval/validation/bleu" in metrics(tmp_path / "run")[-1]

    succeeded(run("evaluate.py", "--workdir=run", "--split=test", cwd=tmp_path))
    folder = tmp_path / "run" / "eval" / "test"
    texts = {}
    for kind in ("sources", "references", "hypotheses"):
        texts[kind] = (folder / f"{kind}.txt").read_text(encoding="utf-8").split("\n")[:-1]
    test = list(zip(texts["sources"], texts["references"], strict=True))
    assert len(test) == len(texts["hypotheses"]) == 5  # of 49, apart from punctuation
    assert set(test) <= {*pairs}
    scores = json.loads((folder / "scores.json").read_text())
    assert "|tok:zh|" in scores["bleu"]["signature"]
    assert "|nc:6|nw:0|" in scores["chrf"]["signature"]
    assert "bleu_tokenized_compound_split" not in scores

    # The same through standard input: Chinese without spaces, and an empty line.
    given = [*texts["sources"], "", "\u3000", "机器学习，「全角」：" * 20]
    text = "".join(f"{line}\n" for line in given).encode()
    result = succeeded(run("translate.py", "--workdir=run", cwd=tmp_path, stdin=text))
    translated = result.out.decode().split("\n")
    assert translated[:5] == texts["hypotheses"]
    assert translated[5:7] == ["", ""]
    assert len(translated) == len(given) + 1
