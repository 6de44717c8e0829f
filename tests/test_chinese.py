"""Both Chinese configs, in both directions, as a user runs them."""

import json
from pathlib import Path

import pytest
from scripts import ROOT, metrics, run, succeeded

NUMBERS = {
    "one": "一", "two": "二", "three": "三", "four": "四", "five": "五", "six": "六", "seven": "七",
}  # fmt: skip
SMALL = {
    "tatoeba_zh": {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "d_model": 14,
        "d_ff": 11,
        "num_heads": 2,
    },
    "tatoeba_zh_rnn": {
        "embedding_size": 10,
        "hidden_size": 14,
        "attention_size": 6,
        "readout_size": 10,
    },
}


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


def flags(config: str, **changes) -> list[str]:
    fields = {
        "data.raw_dir": "raw",
        "data.data_dir": "data",
        "tokenizer.vocab_size": 300,
        "training.tokens_per_update": 5 * 65,
        "training.steps": 2,
        "training.checkpoint_every": 2,
        "training.full_validation_every": 2,
        "decoding.max_extra_length": 3,
    }
    fields |= {f"model.{name}": size for name, size in SMALL[config].items()}
    fields |= {name.replace("_", ".", 1): value for name, value in changes.items()}
    values = [f"--config.{name}={value}" for name, value in fields.items()]
    return [f"--config={ROOT / 'configs' / config}.py", "--workdir=run", *values]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "source", "target"),
    [("tatoeba_zh", "en", "zh"), ("tatoeba_zh_rnn", "zh", "en")],
)
def test_from_files_to_scores_and_translations(config, source, target, tmp_path):
    pairs = write_pairs(tmp_path / "raw")
    languages = {"data_source_language": source, "data_target_language": target}
    succeeded(run("train.py", *flags(config, **languages), cwd=tmp_path))
    assert "eval/validation/bleu" in metrics(tmp_path / "run")[-1]

    succeeded(run("evaluate.py", "--workdir=run", "--split=test", cwd=tmp_path))
    folder = tmp_path / "run" / "eval" / "test"
    texts = {}
    for kind in ("sources", "references", "hypotheses"):
        texts[kind] = (folder / f"{kind}.txt").read_text(encoding="utf-8").split("\n")[:-1]
    test = list(zip(texts["sources"], texts["references"], strict=True))
    assert len(test) == len(texts["hypotheses"]) == 5  # of 49, apart from punctuation
    assert set(test) <= {pair if source == "en" else pair[::-1] for pair in pairs}
    scores = json.loads((folder / "scores.json").read_text())
    tokenizer = {"zh": "zh", "en": "13a"}[target]
    assert f"|tok:{tokenizer}|" in scores["bleu"]["signature"]
    assert "|nc:6|nw:0|" in scores["chrf"]["signature"]
    assert ("bleu_tokenized_compound_split" in scores) == (target == "en")

    # The same through standard input: Chinese without spaces, and an empty line.
    given = [*texts["sources"], "", "\u3000", "机器学习，「全角」：" * 20]
    text = "".join(f"{line}\n" for line in given).encode()
    result = succeeded(run("translate.py", "--workdir=run", cwd=tmp_path, stdin=text))
    translated = result.out.decode().split("\n")
    assert translated[:5] == texts["hypotheses"]
    assert translated[5:7] == ["", ""]
    assert len(translated) == len(given) + 1
