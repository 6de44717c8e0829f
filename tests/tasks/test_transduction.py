import json
import random

import pytest
from scripts import ROOT, assert_refused, metrics, run, succeeded

from configs import algorithmic
from transformer.data.sources import DataConfig
from transformer.tasks import transduction

# Digits to copy, of lengths 1 to 5; sizes that learn them within seconds.
FIELDS = {
    **{f"data.{split}_{side}": split for split in ("train", "validation", "test")
       for side in ("source", "target")},
    "data.data_dir": "data",
    "data.max_source_length": 12,
    "data.max_target_length": 12,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 32,
    "model.d_ff": 64,
    "model.num_heads": 2,
    "model.dropout": 0.0,
    "optimizer.peak_learning_rate": 1e-2,
    "optimizer.warmup_steps": 20,
    "training.tokens_per_update": 512,
    "training.steps": 200,
    "training.log_every": 100,
    "training.checkpoint_every": 200,
    "training.full_validation_every": 200,
    "decoding.max_extra_length": 3,
}  # fmt: skip


def write_digits(path, count: int, longest: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    lines = [" ".join(rng.choices("0123456789", k=rng.randint(1, longest))) for _ in range(count)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return lines


@pytest.fixture(scope="module")
def copier(tmp_path_factory):
    """The folder of a run that has learned to copy up to 5 digits; it is tested on up to 10."""
    folder = tmp_path_factory.mktemp("copy")
    for seed, (split, count, longest) in enumerate(
        [("train", 3000, 5), ("validation", 100, 5), ("test", 50, 10)]
    ):
        write_digits(folder / split, count, longest, seed)
    flags = [f"--config.{name}={value}" for name, value in FIELDS.items()]
    config = f"--config={ROOT / 'configs' / 'algorithmic.py'}"
    succeeded(run("train.py", config, *flags, "--workdir=run", cwd=folder))
    return folder


def evaluated(folder, split, *flags):
    succeeded(run("evaluate.py", "--workdir=run", f"--split={split}", *flags, cwd=folder))
    directory = folder / "run" / "eval" / split
    texts = [(directory / f"{name}.txt").read_text() for name in ("references", "hypotheses")]
    found = json.loads((directory / "scores.json").read_text())
    names = [name for name in transduction.TASK.metrics if name != "nll"]
    return {name: found[name]["score"] for name in names}, *(t.splitlines() for t in texts)


def test_it_learns_to_copy(copier):
    *_, last = metrics(copier / "run")
    assert last["eval/validation/nll"] < 0.05
    assert last["eval/validation/sequence_accuracy"] > 90
    scores, references, hypotheses = evaluated(copier, "validation")
    assert scores == {
        name: pytest.approx(last[f"eval/validation/{name}"]) for name in scores
    }  # evaluate.py measures what training has measured
    same = sum(a == b for a, b in zip(references, hypotheses, strict=True))
    assert scores["sequence_accuracy"] == same  # of 100


def test_a_sequence_is_right_free_running_if_it_is_right_forced(copier):
    scores, _, _ = evaluated(copier, "test")
    assert 0 < scores["sequence_accuracy"] < 100
    assert scores["sequence_accuracy"] == scores["forced_sequence_accuracy"]
    # One error leads to others, unless the true prefix is given back.
    assert scores["forced_accuracy"] > scores["accuracy"] > scores["sequence_accuracy"]


def test_saved_outputs_have_the_free_running_scores(copier):
    scores, _, hypotheses = evaluated(copier, "test")
    paths = {f"test_{side}": str(copier / "test") for side in ("source", "target")}
    data = DataConfig(**algorithmic.get_config().data.to_dict() | paths)
    found = transduction.TASK.rescore(data, "test", hypotheses)
    assert {name: score["score"] for name, score in found.items()} == {
        name: score for name, score in scores.items() if not name.startswith("forced")
    }
    written = json.loads((copier / "run/eval/test/scores.json").read_text())
    forced = [name for name in scores if written[name].get("needs_model")]
    assert forced == ["forced_accuracy", "forced_sequence_accuracy"]


def test_it_transduces_what_has_unknown_symbols(copier):
    result = run("translate.py", "--workdir=run", cwd=copier, stdin=b"1 x 2\n3 4\n")
    first, second = succeeded(result).out.splitlines()
    assert first.split()[0] == b"1"
    assert second == b"3 4"


def test_it_has_no_bleu(copier):
    config = f"--config={ROOT / 'configs' / 'algorithmic.py'}"
    flags = [config, "--config.training.best_metric=bleu", "--workdir=no"]
    message = "'bleu', which the task transduction does not measure"
    assert_refused(run("train.py", *flags, cwd=copier), message)
