"""The models that come with the project."""

import re

import pytest
from scripts import assert_refused, run, succeeded

import transformer
from transformer.models.functional import num_params
from transformer.runs.integrity import digest
from transformer.system.files import PRETRAINED

NAME = "everyday-en-de"
WORKDIR = f"--workdir=pretrained:{NAME}"


def test_translates_and_its_card_has_its_hash_and_size():
    model = transformer.load(f"pretrained:{NAME}")
    assert model.translate(["I love you.", ""]) == ["Ich liebe dich.", ""]
    card = (PRETRAINED / NAME / "README.md").read_text()
    restored = model.restored
    assert f"SHA-256 {digest((restored.params, restored.extra))[:16]}..." in card
    assert f"{num_params(restored.params):,} parameters" in card


def test_is_small_and_names_no_folder_of_its_makers():
    files = [path for path in (PRETRAINED / NAME).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 10_000_000
    for path in files:
        assert not re.search(rb"/(home|tmp|work|root)/", path.read_bytes()), path


def test_a_run_begins_with_it(tmp_path):
    for name, text in (("en", "I am here.\n"), ("de", "Ich bin hier.\n")):
        (tmp_path / name).write_text(200 * text)
    data = [f"--config.data.{split}_{side}={name}" for split in ("train", "validation")
            for side, name in (("source", "en"), ("target", "de"))]  # fmt: skip
    done = run(
        "train.py", f"--config.training.init_from=pretrained:{NAME}", "--workdir=mine", *data,
        "--config.training.steps=2", "--config.training.tokens_per_update=128",
        "--config.optimizer.warmup_steps=1", cwd=tmp_path,
    )  # fmt: skip
    succeeded(done)
    (folder,) = (tmp_path / "mine/checkpoints").iterdir()
    assert folder.name == "2"


@pytest.mark.parametrize(
    ("script", "flags", "message"),
    [
        ("translate.py", ["--workdir=pretrained:everyday-de-en"], "did you mean 'pretrained:"),
        ("train.py", [WORKDIR], "was exported without what training needs"),
        ("evaluate.py", [WORKDIR, "--source=x", "--reference=x"], "Read-only file system"),
        ("report", [WORKDIR], "Read-only file system"),
    ],
)
def test_refused(script, flags, message, tmp_path):
    (tmp_path / "x").write_text("I am here.\n")
    assert_refused(run(script, *flags, cwd=tmp_path), message)
    assert not (PRETRAINED / NAME / "eval").exists()
    assert not (PRETRAINED / NAME / "report.html").exists()
