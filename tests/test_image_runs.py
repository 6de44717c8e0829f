"""The task images as a user runs it: train, resume, several devices, generate, score."""

import json
import shutil

import jax
import numpy as np
import pytest
from PIL import Image
from processes import run_together
from scripts import ROOT, assert_refused, final_state, metrics, run, succeeded
from small_configs import config_of

from transformer.data.labelled_images import Shape
from transformer.runs import run_config
from transformer.runs.restore import restore
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh
from transformer.tasks import images
from transformer.tasks.feature_classifier import About, FeatureClassifier, model_of
from transformer.tasks.image_generation import check_number, folders_of, seed_numbers
from transformer.training.divergence import norms_by_layer

CLASSES = {"red": (255, 40, 40), "blue": (40, 40, 255)}
FLAGS = {
    "data.train_images": "images",
    "data.held_out": 0.3,
    "model.generator_width": 8,
    "model.discriminator_width": 8,
    "model.noise_size": 5,
    "training.steps": 4,
    "training.tokens_per_update": 16,
    "training.log_every": 2,
    "training.checkpoint_every": 2,
    "training.full_validation_every": 4,
    "task.samples_every": 2,
    "task.average_from": 1,
    "task.num_scored": 10,
    "task.features": "features.npz",
}


def flags(**changes) -> list[str]:
    fields = FLAGS | {name.replace("_", ".", 1): value for name, value in changes.items()}
    config = f"--config={ROOT / 'configs' / 'sagan_cifar10.py'}"
    return [config, *(f"--config.{name}={value}" for name, value in fields.items())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, random_params):
    """Sixty images of two colours, and a classifier that has learned nothing."""
    directory = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for name, colour in CLASSES.items():
        (directory / "images" / name).mkdir(parents=True)
        for i in range(30):
            pixels = np.clip(np.array(colour) + rng.normal(0, 30, (32, 32, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(directory / "images" / name / f"{i}.png")
    about = About(32, 3, sorted(CLASSES), 100.0, 18, "", 1, 0)
    params = random_params(model_of(3, len(CLASSES)))
    FeatureClassifier.save(directory / "features.npz", params, about)
    return directory


@pytest.fixture(scope="module")
def whole(folder):
    trained = succeeded(run("feature-classifier", *flags(), "--epochs=3", cwd=folder))
    assert "accuracy 100.0" in trained.out.decode()
    succeeded(run("train.py", *flags(), "--workdir=whole", cwd=folder))
    return folder / "whole"


def pixels(path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def assert_same_run(a, b) -> None:
    assert metrics(a) == metrics(b)
    jax.tree.map(np.testing.assert_array_equal, final_state(a), final_state(b))
    for sample in sorted((a / "samples").iterdir()):
        assert (b / "samples" / sample.name).read_bytes() == sample.read_bytes()


@pytest.mark.slow
def test_it_resumes_bit_for_bit(whole):
    """With the vectors, statistics and averages that are no parameters."""
    workdir = shutil.copytree(whole, whole.parent / "parts")
    shutil.rmtree(workdir / "checkpoints" / "4")
    (workdir / "samples" / "00000004.png").unlink()
    result = succeeded(run("train.py", *flags(), "--workdir=parts", cwd=whole.parent))
    assert b"at step 2 of 4" in result.out
    assert "generator loss" in result.err
    assert "discriminator loss" in result.err
    assert_same_run(workdir, whole)


@pytest.mark.slow
def test_four_devices_are_one(whole):
    """Batch statistics are those of the whole batch."""
    changes = {"training_steps": 2, "training_full_validation_every": 0, "task_samples_every": 0}
    changes |= {"training_best_metric": "discriminator_loss", "mesh_fsdp": 2}
    command = [ROOT / "train.py", *flags(**changes), "--workdir=four"]
    succeeded(*run_together([command], whole.parent, devices=4))
    one, four = (metrics(workdir)[0] for workdir in (whole, whole.parent / "four"))
    assert one == pytest.approx(four, rel=2e-3, abs=1e-4)


@pytest.mark.slow
def test_examples_and_layers_of_a_bad_update_are_told(whole, monkeypatch):
    monkeypatch.chdir(whole.parent)
    config = run_config.load(whole)
    task = config.kind.prepare(config, data_mesh(jax.devices()[:1]), whole, None)
    assert task.examples(0)[0]["class"] in CLASSES
    assert "generator/blocks/0" in norms_by_layer(restore(whole).params)


@pytest.mark.slow
def test_it_evaluates_and_generates(whole):
    folder = whole.parent
    last = metrics(whole)[-1]
    succeeded(run("evaluate.py", "--workdir=whole", "--split=validation", cwd=folder))
    directory = whole / "eval" / "validation"
    scores = json.loads((directory / "scores.json").read_text())
    assert scores["fid_ours"]["score"] == pytest.approx(last["eval/validation/fid_ours"])
    assert scores["features"]["accuracy"] == 100.0
    assert "9 generated and 9 real images" in scores["fid_ours"]["definition"]
    own = ["--real=whole/eval/validation/features.npz", "--real_array=reference"]
    own += [own[0].replace("--real", "--generated"), "--generated_array=generated"]
    result = succeeded(run("feature-scores", *own, cwd=folder))
    assert b"4 and 4 real images, features that were given" in result.out

    words = ["--workdir=whole", "--classes=blue", "--seeds=0,1,5", "--grid=grid.png"]
    succeeded(run("generate", *words, "--output=out", cwd=folder))
    one, page = (pixels(folder / name) for name in ("out/blue/5.png", "grid.png"))
    assert page.shape == (36, 104, 3)
    np.testing.assert_array_equal(page[2:34, 70:102], one)
    model = restore(whole)
    ready = model.task.ready(model.params, model.extra)
    again = model.task.images(ready, model.task.noise(np.array([5])), np.array([0]))
    np.testing.assert_array_equal(again[0], one)
    assert np.abs(model.task.noise(np.arange(50), 0.5)).max() <= 0.5
    succeeded(run("generate", *words[:3], "--grid=between.png", "--interpolate=4", cwd=folder))
    assert pixels(folder / "between.png").shape == (36, 8 * 34 + 2, 3)
    words = ["--workdir=whole", "--classes=red", "--seeds=0", "--pixels=3x4", "--figure=a.png"]
    succeeded(run("image-attention", *words, cwd=folder))
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")


def test_classes_have_folders_of_their_own():
    assert folders_of(["cat", "a/b"]) == ["cat", "a_b"]
    assert folders_of(["cat", "..", ""]) == ["0_cat", "1_..", "2_"]
    for classes in (["0_", ""], ["a/b", "a_b", "0_a_b"], ["Cat", "cat"], ["", "1_", "1_1_"]):
        folders = folders_of(classes)
        assert len({folder.casefold() for folder in folders}) == len(classes)
        assert not {"", ".", ".."} & set(folders)


def test_numbers_of_images_to_make_at_once():
    check_number(10, 100_000, None, Shape(8, 1))
    for numbers, message in (
        ((1, 2, 10**9), "--classes x --seeds x --interpolate are 1,000,000,000 images; give fewer"),
        ((1000, 1001, None), "--classes x --seeds are 1,001,000 images; give fewer: at most 1,000"),
        ((1, 10**6, None), "this machine has .*; give fewer images"),
    ):
        with pytest.raises(UserError, match=message):
            check_number(*numbers, Shape(1 << 15, 3))


def test_numbers_of_seeds():
    assert seed_numbers("2:5").tolist() == [2, 3, 4]
    assert seed_numbers("7,3").tolist() == [7, 3]
    for text in ("5:5", "-1:3", "x", "3,-7", "1:2:3"):
        with pytest.raises(UserError, match="give whole numbers from 0 on, such as"):
            seed_numbers(text)
    with pytest.raises(UserError, match="1,000,000,000 of them; give at most 1,000,000 at once"):
        seed_numbers("0:1000000000")  # before a list of them fills the memory


@pytest.mark.filterwarnings("ignore:the load_module")  # of config_flags
def test_what_cannot_be_trained_is_refused(folder, monkeypatch):
    def prepare(**changes):
        config, _ = config_of(["train.py", *flags(**places | changes)], monkeypatch)
        images.prepare(config, data_mesh(jax.devices()[:1]), folder / "refused", None)

    places = {"data_train_images": str(folder / "images")}
    places["task_features"] = str(folder / "features.npz")
    for changes, message in (
        ({"data_train_images": "nowhere"}, "there is no .*nowhere"),
        ({"task_features": "nowhere.npz"}, "cannot read nowhere.npz"),
        (
            {"training_tokens_per_update": 15, "task_discriminator_steps": 2},
            "is 15 images; it must",
        ),
        ({"task_samples_every": 3}, "task.samples_every is 3, which is no multiple"),
        ({"training_label_smoothing": 0.1}, "the task images has none; set it to 0"),
        ({"optimizer_schedule": "noam"}, "optimizer.warmup_steps is 0; it must be at least 1"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(**changes)
    refused = run("train.py", *flags(task_samples_every=3), "--workdir=refused", cwd=folder)
    assert_refused(refused, "task.samples_every is 3, which is no multiple")
    assert not (folder / "refused").exists()
    for words, message in (
        (["generate"], "give --grid, --output or both"),
        (["generate", "--grid=x.jpg"], "x.jpg must end in .png"),
        (["image-attention", "--figure=x.jpg"], "x.jpg must end in .png"),
    ):
        assert_refused(run(*words, "--workdir=x", cwd=folder), message)
