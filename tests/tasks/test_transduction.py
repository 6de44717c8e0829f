import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
from scripts import ROOT, assert_refused, metrics, run, succeeded

from configs import algorithmic
from transformer.data.sources import DataConfig
from transformer.tasks import transduction
from transformer.tasks.pair_training import Texts
from transformer.tasks.source_gain import METRICS

CONFIG = f"--config={ROOT / 'configs' / 'algorithmic.py'}"
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
    succeeded(run("train.py", CONFIG, *flags, "--workdir=run", cwd=folder))
    return folder


@pytest.mark.slow
def test_it_learns_to_copy(copier):
    *_, last = metrics(copier / "run")
    assert last["eval/validation/nll"] < 0.05
    assert last["eval/validation/sequence_accuracy"] > 90
    assert last["eval/validation/source_gain"] > 3
    succeeded(run("evaluate.py", "--workdir=run", "--split=validation,test", cwd=copier))
    names = [name for name in transduction.TASK.metrics if name != "nll"]
    scores, texts = {}, {}
    for split in ("validation", "test"):
        folder = copier / "run/eval" / split
        written = json.loads((folder / "scores.json").read_text())
        scores[split] = {name: written[name]["score"] for name in names}
        texts[split] = [
            (folder / f"{name}.txt").read_text().splitlines()
            for name in ("references", "hypotheses")
        ]
    # evaluate.py measures what training has measured.
    assert scores["validation"] == {
        name: pytest.approx(last[f"eval/validation/{name}"]) for name in names
    }
    same = sum(a == b for a, b in zip(*texts["validation"], strict=True))
    assert scores["validation"]["sequence_accuracy"] == same  # of 100

    # A sequence is right free-running if it is right forced. One error leads to others, unless the
    # true prefix is given back.
    found = scores["test"]
    assert 0 < found["sequence_accuracy"] < 100
    assert found["sequence_accuracy"] == found["forced_sequence_accuracy"]
    assert found["forced_accuracy"] > found["accuracy"] > found["sequence_accuracy"]

    # Saved outputs have the free-running scores.
    paths = {f"test_{side}": str(copier / "test") for side in ("source", "target")}
    data = DataConfig(**algorithmic.get_config().data.to_dict() | paths)
    again = transduction.TASK.rescore(data, "test", texts["test"][1])
    forced = [name for name in names if written[name].get("needs_model")]
    assert forced == ["forced_accuracy", "forced_sequence_accuracy", *METRICS]
    assert {n: x["score"] for n, x in again.items()} == {n: found[n] for n in names[:2]}
    result = run("translate.py", "--workdir=run", cwd=copier, stdin=b"1 x 2\n3 4\n")
    first, second = succeeded(result).out.splitlines()  # x is unknown
    assert first.split()[0] == b"1"
    assert second == b"3 4"


def test_forced_scores():
    """Of the references [1, 2] and [3, 4, 5] one token is not the most probable one."""
    task = object.__new__(transduction.Transduction)
    right, wrong = np.array([1, 2]), np.array([3, 7, 5])
    forced = SimpleNamespace(
        decode=lambda *_: [SimpleNamespace(expected_T=x) for x in (right, wrong)]
    )
    pairs = lambda *_: (None, [np.array([1, 2]), np.array([3, 4, 5])])  # noqa: E731
    task.translator, task.data = SimpleNamespace(forced=forced, token_pairs=pairs), None
    texts = Texts("test", ["a", "b"], ["1 2", "3 4"], ["1 2", "3 5"])
    scores = task.validation_scores(None, texts)
    expected = {
        "accuracy": pytest.approx(500 / 6),
        "sequence_accuracy": 50.0,
        "forced_accuracy": 80.0,
    }
    assert scores == expected | {"forced_sequence_accuracy": 50.0}
    assert {"nll", *scores, *METRICS} == set(transduction.TASK.metrics)


def test_it_has_no_bleu(tmp_path):
    flags = [CONFIG, "--config.training.best_metric=bleu", "--workdir=no"]
    message = "'bleu', which the task transduction does not measure"
    assert_refused(run("train.py", *flags, cwd=tmp_path), message)
