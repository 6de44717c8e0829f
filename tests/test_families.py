"""Every family lives the same life: it learns, is scored and looked at.

The Transformer's is in the tests of each command; stops, kills and several devices in
test_resume.py and test_sharding.py, for all families but where one differs.
"""

import functools
import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from processes import run_together
from scripts import ROOT, assert_refused, final_state, metrics, run, succeeded, write_toy

TRAINING = {
    "optimizer.warmup_steps": 20,
    "training.tokens_per_update": 5 * 31,
    "training.steps": 60,
    "training.log_every": 10,
    "training.checkpoint_every": 30,
    "training.full_validation_every": 0,
    "training.best_metric": "nll",
}
DATA = TRAINING | {
    **{f"data.{split}_source": f"{split}.en" for split in ("train", "validation", "test")},
    **{f"data.{split}_target": f"{split}.de" for split in ("train", "validation", "test")},
    "data.data_dir": "data",
    "data.max_source_length": 31,
    "data.max_target_length": 31,
    "tokenizer.vocab_size": 300,
    "decoding.max_extra_length": 3,
}
DOCUMENTS = TRAINING | {
    **{f"data.{split}_file": f"{split}.txt" for split in ("train", "validation", "test")},
    "data.max_length": 31,
    "data.max_predictions": 5,
    "data.masking": "dynamic",
    "tokenizer.vocab_size": 50,
}
LABELLED = TRAINING | {
    **{f"data.{split}_file": f"{split}.tsv" for split in ("train", "validation", "test")},
    "data.max_length": 31,
    "tokenizer.vocab_size": 50,
}
for fields in (DOCUMENTS, LABELLED):
    fields["optimizer.peak_learning_rate"] = 0.01
BERT = {"d_model": 14, "d_ff": 11, "num_heads": 2, "num_layers": 1}
# By family: its demo's config, and small sizes.
FAMILIES = {
    "rnn": (
        "demo_rnn",
        {
            "embedding_size": 10,
            "hidden_size": 14,
            "attention_size": 6,
            "readout_size": 22,
            "embedding_dropout": 0.2,
            "memory_dropout": 0.2,
            "output_dropout": 0.2,
        },
    ),
    "convolutional": (
        "demo_convs2s",
        {
            "embedding_size": 14,
            "encoder_blocks": "10x3x1",
            "decoder_blocks": "10x3x1",
            "output_size": 6,
            "dropout": 0.2,
        },
    ),
    "universal": ("demo_universal", {"d_model": 14, "d_ff": 11, "num_heads": 2, "dropout": 0.2}),
    "decoder_only": (
        "demo_decoder_only",
        {
            "d_model": 14,
            "d_ff": 11,
            "num_heads": 2,
            "dropout": 0.2,
            "layers": "LMF",
            "block_length": 7,
            "expert_layer": 2,
            "num_experts": 3,
            "expert_d_ff": 5,
        },
    ),
    "bert": ("bert_tiny", BERT),
    "bert, classes": ("classification", BERT),
}
OTHER_DATA = {"bert": DOCUMENTS, "bert, classes": LABELLED | {"data.packing": False}}
OTHER_DATA["convolutional"] = DATA | {"data.packing": False}  # one pair a row


def flags(family: str, **changes) -> list[str]:
    config, sizes = FAMILIES[family]
    fields = OTHER_DATA.get(family, DATA) | {f"model.{name}": size for name, size in sizes.items()}
    fields |= {name.replace("_", ".", 1): value for name, value in changes.items()}
    path = f"--config={ROOT / 'configs' / config}.py"
    return [path, *(f"--config.{name}={value}" for name, value in fields.items())]


def losses(workdir: Path) -> list[float]:
    return [line["train/nll"] for line in metrics(workdir) if "train/nll" in line]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """trained(family): the work directory of a run with dropout, made once."""

    @functools.cache
    def train(family: str) -> Path:
        directory = tmp_path_factory.mktemp(family)
        write_toy(directory, train=97, validation=5, test=7)
        for split in ("train", "validation", "test"):
            lines = (directory / f"{split}.en").read_text().splitlines()
            parts = ["\n".join(lines[i : i + 4]) for i in range(0, len(lines), 4)]
            (directory / f"{split}.txt").write_text("\n\n".join(parts))
            rows = [f"{line}\t{int(line.startswith('one'))}\n" for line in lines]
            (directory / f"{split}.tsv").write_text("".join(rows))
        arguments = [*flags(family), "--workdir=whole"]
        said = succeeded(run("train.py", *arguments, cwd=directory, pictures=True)).out
        is_packed = "data.packing" not in OTHER_DATA.get(family, {})
        assert (float(re.search(rb"([\d.]+)% full", said)[1]) > 80) == is_packed
        return directory / "whole"

    return train


@pytest.fixture(params=FAMILIES)
def whole(request, trained) -> tuple[str, Path]:
    return request.param, trained(request.param)


@pytest.mark.slow
def test_it_learns_and_is_evaluated(whole):
    family, workdir = whole
    assert losses(workdir)[-1] < 0.8 * losses(workdir)[0]
    succeeded(run("evaluate.py", "--workdir=whole", cwd=workdir.parent))
    scores = json.loads((workdir / "eval/test/scores.json").read_text())
    assert scores["examples"] == (3 if family == "bert" else 7)
    report = (workdir / "report.html").read_text()
    assert "The data of whole" in report
    assert "Curves" in report


def only(*families: str):
    return pytest.mark.parametrize("whole", families, indirect=True)


@pytest.mark.slow
@only("universal", "bert")
def test_its_pages_are_made(whole):
    family, workdir = whole
    command = ["--workdir=whole", "--source=one two three", "--figure=x.svg", "--target=Eno"]
    succeeded(run("visualize", *command, cwd=workdir.parent))
    options = ["--source=one two three", "--target=Eno", "--output=x", "--only=steps,masks"]
    lines = succeeded(run("pictures", "--workdir=whole", *options, cwd=workdir.parent)).out
    assert (b"left out  steps" in lines) == (family != "universal")
    page = (workdir.parent / "attention.html").read_text()
    assert "<h2>Positions</h2>" in page
    assert ("<h2>Steps</h2>" in page) == (family == "universal")
    assert '"encoder"' in page or '"cross"' in page


@pytest.mark.slow
@only("bert")
def test_it_resumes_bit_for_bit(whole):
    """With masks that are new in each epoch."""
    family, workdir = whole
    parts = shutil.copytree(workdir, workdir.parent / "parts")
    shutil.rmtree(parts / "checkpoints" / "60")
    result = succeeded(run("train.py", *flags(family), "--workdir=parts", cwd=workdir.parent))
    assert b"at step 30 of 60" in result.out
    assert metrics(parts) == metrics(workdir)
    jax.tree.map(np.testing.assert_array_equal, final_state(parts), final_state(workdir))


@pytest.mark.slow
@only("decoder_only")
def test_four_devices_are_one(whole):
    """Its experts balance the tokens of all rows."""
    family, workdir = whole
    mesh = {"mesh_fsdp": 2, "mesh_tensor": 2, "training_steps": 10, "training_checkpoint_every": 10}
    command = [ROOT / "train.py", *flags(family, **mesh), "--workdir=four"]
    succeeded(*run_together([command], workdir.parent, devices=4))
    assert metrics(workdir.parent / "four")[0] == pytest.approx(metrics(workdir)[0], rel=1e-3)


def test_a_field_of_another_family_is_refused(tmp_path):
    arguments = [f"--config={ROOT / 'configs/demo_rnn.py'}", "--config.model.num_heads=3"]
    refused = run("train.py", *arguments, "--workdir=x", cwd=tmp_path)
    assert_refused(refused, "the config file has no field num_heads, which another model.family")
    assert list(tmp_path.iterdir()) == []
