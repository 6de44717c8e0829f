import contextlib
import errno
import gc
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from transformer.runs.checkpoints import Checkpoints
from transformer.runs.integrity import signed, write_inventory
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh, replicated
from transformer.training.step import TrainState

ROOT = Path(__file__).parents[2]
ADAM = optax.adam(0.1)

# Where reading or writing fails, Orbax leaves coroutines behind that nobody waits for.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine"
)


@pytest.fixture(autouse=True, scope="module")
def only_what_is_new():
    """Millions of objects that were there before are not searched after each test."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def leave_nothing_behind():
    yield
    gc.collect()  # now, and not in a test that knows nothing of them


def state(step: int, value: float = 0.0) -> TrainState:
    """A small state in which no two arrays are equal."""
    params = {"layers": {0: {"kernel": jnp.full((2, 3), value)}}, "bias": jnp.arange(5.0) / 7}
    opt_state = ADAM.init(params)
    gradient = jax.tree.map(lambda x: x + value + 1 / 3, params)
    _, opt_state = ADAM.update(gradient, opt_state, params)
    whole = TrainState(jnp.int32(step), params, opt_state, {})
    return jax.device_put(whole, replicated(data_mesh(jax.devices()[:1])))


def checkpoints(workdir, keep_last=2, best_metric="bleu", read_only=False) -> Checkpoints:
    direction = "lower" if best_metric == "nll" else "higher"
    return Checkpoints(
        workdir,
        keep_last=keep_last,
        best_metric=best_metric,
        direction=direction,
        read_only=read_only,
    )


def saved(workdir, scores: dict[int, dict[str, float]], **options) -> Checkpoints:
    """Scheduled checkpoints with these scores; the parameters of step k are k."""
    manager = checkpoints(workdir, **options)
    for step, values in scores.items():
        manager.save(state(step, float(step)), {"note": step}, scheduled=True)
        manager.record_scores(step, values)
    return manager


def kept(workdir) -> list[str]:
    names = [path.name for path in (workdir / "checkpoints").iterdir()]
    return sorted(names, key=lambda name: (len(name), name))


def newest(workdir, **options):
    return checkpoints(workdir, **options).restore_newest(state(0))


# --- Saving and restoring -----------------------------------------------------------------


def test_restored_is_equal_to_the_bit(tmp_path):
    assert newest(tmp_path) is None
    original = state(7, 0.1)
    expected = jax.tree.map(np.array, original)
    notes = {"average": 1 / 3, "list": [1, None, "ä"]}
    manager = checkpoints(tmp_path)
    manager.save(original, notes, scheduled=True)
    jax.tree.map(lambda x: x.delete(), original.params)  # as a step does that is given them
    manager.close()

    restored = newest(tmp_path)
    assert jax.tree.structure(restored.state) == jax.tree.structure(original)
    for x, y in zip(jax.tree.leaves(restored.state), jax.tree.leaves(expected)):
        assert (x.dtype, x.sharding) == (y.dtype, original.step.sharding)
        np.testing.assert_array_equal(x, y)
    assert (restored.notes, restored.scores) == (notes, None)
    # One that is there is not saved again; its scores are kept beside it.
    manager = checkpoints(tmp_path)
    manager.save(state(7), {"note": "other"}, scheduled=False)
    manager.record_scores(7, {"nll": 1 / 3, "bleu": 27.25})
    assert newest(tmp_path).notes == notes
    assert newest(tmp_path).scores == {"nll": 1 / 3, "bleu": 27.25}


def test_parameters_of_one_and_the_mean_of_several(tmp_path):
    scores = {step: {"bleu": float(step)} for step in (10, 20, 60)}
    manager = saved(tmp_path, scores, keep_last=3)
    like = state(0).params
    for steps, value in (([20], 20.0), ([10, 20, 60], 30.0)):
        mean, extra = manager.average_params(steps, like, {})
        assert jax.tree.structure(mean) == jax.tree.structure(like)
        np.testing.assert_array_equal(mean["layers"][0]["kernel"], np.full((2, 3), value))
        np.testing.assert_allclose(mean["bias"], np.arange(5) / 7, rtol=1e-6)
        assert extra == {}


def test_an_optimizer_without_state(tmp_path):
    whole = state(7)._replace(opt_state=optax.sgd(0.1).init({}))
    with contextlib.closing(checkpoints(tmp_path)) as manager:
        manager.save(whole, {}, scheduled=True)
        assert manager.restore_newest(whole).state.opt_state == whole.opt_state
    assert not (tmp_path / "checkpoints/7/opt_state").exists()


# --- Which are kept -----------------------------------------------------------------------


@pytest.mark.parametrize(("best_metric", "best"), [("bleu", 20), ("nll", 30)])
def test_the_last_few_and_the_best_are_kept(tmp_path, best_metric, best):
    scores = zip((10, 20, 30, 40, 50), (3.0, 9.0, 1.0, 7.0, 6.0), strict=True)
    scores = {step: {"bleu": value, "nll": value} for step, value in scores}
    manager = saved(tmp_path, scores, best_metric=best_metric)
    assert kept(tmp_path) == [str(best), "40", "50"]
    assert manager.best_step() == best
    manager.close()
    assert checkpoints(tmp_path, best_metric=best_metric).best_step() == best  # in a new process


def test_a_new_best_takes_the_place_of_the_old(tmp_path):
    manager = saved(tmp_path, {10: {"bleu": 3.0}, 20: {"bleu": 2.0}}, keep_last=1)
    assert kept(tmp_path) == ["10", "20"]
    manager.save(state(30), {}, scheduled=True)
    manager.wait()
    assert kept(tmp_path) == ["10", "30"]  # its score is not known yet
    manager.record_scores(30, {"bleu": 4.0})
    assert kept(tmp_path) == ["30"]


def test_checkpoints_without_a_finite_bleu_are_never_the_best(tmp_path):
    none, nan = {"nll": 0.5}, {"bleu": float("nan")}
    scores = {10: none, 20: {"bleu": 0.0, "nll": 1.0}, 30: nan, 40: none, 50: none}
    manager = saved(tmp_path, scores)
    assert kept(tmp_path) == ["20", "40", "50"]
    assert manager.best_step() == 20


def test_no_best_without_a_score(tmp_path):
    manager = saved(tmp_path, {10: {"nll": 1.0}, 20: {"nll": 2.0}, 30: {"nll": 3.0}})
    assert kept(tmp_path) == ["20", "30"]
    with pytest.raises(UserError, match=r"no checkpoint in .* has a validation bleu; use .*last"):
        manager.best_step()


def test_what_was_saved_in_between_lasts_until_the_next(tmp_path):
    manager = saved(tmp_path, {10: {"bleu": 1.0}, 20: {"bleu": 2.0}})
    manager.save(state(23), {}, scheduled=False)
    manager.wait()
    assert (manager.steps(), manager.scheduled_steps()) == ([10, 20, 23], [10, 20])
    manager.save(state(27), {}, scheduled=False)
    manager.wait()
    assert manager.steps() == [10, 20, 27]
    # A rollback goes to a scheduled one, and forgets the others.
    assert int(manager.restore_newest(state(0)).state.step) == 27
    assert int(manager.restore_newest(state(0), scheduled_only=True).state.step) == 20
    manager.remove_unscheduled()
    assert kept(tmp_path) == ["10", "20"]


def test_what_was_saved_in_between_is_scheduled_once_it_has_scores(tmp_path):
    """As when a run is stopped, and then told to end at that step."""
    manager = saved(tmp_path, {10: {"bleu": 1.0}, 20: {"bleu": 2.0}})
    manager.save(state(23), {}, scheduled=False)
    manager.record_scores(23, {"bleu": 1.0})
    assert manager.scheduled_steps() == [20, 23]
    manager.save(state(27), {}, scheduled=False)
    manager.wait()
    assert kept(tmp_path) == ["20", "23", "27"]


def test_checkpoints_that_were_there_must_not_be_gone(tmp_path):
    """A rollback must not take it for a run without a checkpoint, and begin again."""
    manager = saved(tmp_path, {10: {"bleu": 1.0}})
    again = checkpoints(tmp_path)
    again.restore_newest(state(0))
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    for it in (manager, again):
        with pytest.raises(UserError, match=r"the checkpoints in .* are gone"):
            it.restore_newest(state(0), scheduled_only=True)


def test_another_start_keeps_what_it_is_asked_to(tmp_path):
    saved(tmp_path, {10: {"bleu": 9.0}, 20: {"bleu": 1.0}}, keep_last=7).close()
    saved(tmp_path, {30: {"bleu": 2.0}, 40: {"bleu": 3.0}}).close()
    assert kept(tmp_path) == ["10", "30", "40"]
    assert int(newest(tmp_path, keep_last=1).state.step) == 40
    assert kept(tmp_path) == ["10", "40"]


# --- Leftovers and damage -----------------------------------------------------------------


def test_half_written_and_half_deleted_checkpoints_are_cleaned_away(tmp_path):
    saved(tmp_path, {10: {"bleu": 1.0}})
    for name in ("20.orbax-checkpoint-tmp", "30.orbax-checkpoint-tmp-17", "5.deleted"):
        shutil.copytree(tmp_path / "checkpoints" / "10", tmp_path / "checkpoints" / name)
    reader = checkpoints(tmp_path, read_only=True)
    assert reader.steps() == [10]
    assert len(kept(tmp_path)) == 4  # a reader changes nothing
    assert checkpoints(tmp_path).steps() == [10]
    assert kept(tmp_path) == ["10"]


def files(directory: Path) -> list[Path]:
    """The files of a checkpoint, but for the scores, which are not needed to go on."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    unused = [directory / name for name in ("scores.json", "commit_success.txt")]
    return [path for path in files if path not in unused]


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << (place % 8)
    path.write_bytes(bytes(content))


DAMAGE = {
    "emptied": lambda path: path.write_bytes(b""),
    "removed": Path.unlink,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "one byte cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "noise": lambda path: path.write_bytes(random.Random(3).randbytes(path.stat().st_size)),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A work directory with two checkpoints, and the leaves of the newer one's state."""
    workdir = tmp_path_factory.mktemp("good")
    saved(workdir, {10: {"bleu": 1.0}, 20: {"bleu": 2.0}}).close()
    return workdir, jax.tree.leaves(newest(workdir).state)


@pytest.fixture
def copy(good, tmp_path):
    return shutil.copytree(good[0], tmp_path / "copy")


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_named_and_the_checkpoint_before_is_used(how, good, tmp_path, caplog):
    """Each file in turn."""
    found = files(good[0] / "checkpoints" / "20")
    assert len(found) > 10
    for path in found:
        workdir = tmp_path / "damaged"
        shutil.copytree(good[0], workdir)
        DAMAGE[how](workdir / path.relative_to(good[0]))
        caplog.clear()
        restored = newest(workdir)
        # An empty file cannot be emptied; and what is in this one, Orbax alone reads.
        is_harmless = path.stat().st_size == 0 or path.name == "_CHECKPOINT_METADATA"
        if is_harmless and int(restored.state.step) == 20:
            for x, y in zip(jax.tree.leaves(restored.state), good[1], strict=True):
                np.testing.assert_array_equal(x, y)
        else:
            assert int(restored.state.step) == restored.notes["note"] == 10
            assert "the checkpoint of step 20 is damaged" in caplog.text
            assert kept(workdir) == ["10", "20.damaged"]
        shutil.rmtree(workdir)


def test_what_files_do_not_show_digests_do(good, tmp_path, monkeypatch):
    """If the inventory misses something: what is restored is what was saved."""
    monkeypatch.setattr("transformer.runs.checkpoint_store.difference", lambda directory: None)
    rng = random.Random(1)
    checkpoint = good[0] / "checkpoints" / "20"
    noticed = set()
    for path in [path for path in files(checkpoint) if path.stat().st_size]:
        workdir = tmp_path / "damaged"
        shutil.copytree(good[0], workdir)
        flip(workdir / path.relative_to(good[0]), rng.randrange(path.stat().st_size))
        restored = newest(workdir)
        if int(restored.state.step) == 10:
            noticed.add(path)
        else:
            for x, y in zip(jax.tree.leaves(restored.state), good[1], strict=True):
                np.testing.assert_array_equal(x, y)
        shutil.rmtree(workdir)
    # Orbax reads these, and every byte of them counts; of most others it reads none.
    read = {checkpoint / "record" / "record.json"}
    read |= {*checkpoint.glob("params/d/*"), *checkpoint.glob("opt_state/d/*")}
    assert len(read) == 3
    assert read <= noticed


@pytest.mark.parametrize("part", ["params", "opt_state", "record", "."])
def test_whole_parts_may_be_missing(part, copy):
    shutil.rmtree(copy / "checkpoints" / "20" / part)
    (copy / "checkpoints" / "20").mkdir(exist_ok=True)
    assert int(newest(copy).state.step) == 10


def test_a_checkpoint_under_another_name_is_damaged(copy):
    (copy / "checkpoints" / "20").rename(copy / "checkpoints" / "2000")
    assert int(newest(copy).state.step) == 10


def test_when_all_are_damaged_nothing_is_touched(copy):
    for step in (10, 20):
        (copy / "checkpoints" / str(step) / "record" / "record.json").write_text("{}")
    with pytest.raises(UserError, match=r"no checkpoint in .* can be used \(20: record"):
        newest(copy)
    assert kept(copy) == ["10", "20"]


def test_damaged_scores_are_named(copy, caplog):
    path = copy / "checkpoints" / "20" / "scores.json"
    for content in (b"", b"[]", b'{"bleu": 99.0}', b"\xff"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"20/scores.json is damaged, .*--checkpoint=last"):
            checkpoints(copy).best_step()
    # A run goes on, and keeps what may be its best.
    manager = checkpoints(copy, keep_last=1)
    assert manager.restore_newest(state(0)).scores is None
    for step in (30, 40):
        manager.save(state(step), {}, scheduled=True)
        manager.record_scores(step, {"bleu": 5.0 + step})
    manager.close()
    assert kept(copy) == ["20", "40"]
    assert [record.message for record in caplog.records] == [f"{path} is damaged"]


def test_missing_scores_are_named(copy, caplog):
    assert checkpoints(copy).best_step() == 20
    (copy / "checkpoints" / "10" / "scores.json").unlink()
    assert checkpoints(copy).best_step() == 20
    assert "no validation scores of step(s) 10; the best of the others" in caplog.text


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("name", ["record.json", "manifest.ocdbt", "scores.json", "params"])
def test_what_cannot_be_read_is_not_damaged(error, name, copy, monkeypatch):
    """Simulated, since root may read everything."""

    def refuse(function, path):
        if Path(path).name == name:
            raise OSError(error, os.strerror(error), str(path))
        return function

    opened, listed = os.open, os.scandir
    monkeypatch.setattr(os, "open", lambda path, *a, **k: refuse(opened, path)(path, *a, **k))
    monkeypatch.setattr(os, "scandir", lambda path: refuse(listed, path)(path))
    use = newest if name != "scores.json" else lambda copy: checkpoints(copy).best_step()
    with pytest.raises((UserError, OSError), match=os.strerror(error)):
        use(copy)
    monkeypatch.undo()
    assert kept(copy) == ["10", "20"]


@pytest.mark.parametrize("reason", ["Permission denied", "Input/output error"])
def test_what_orbax_cannot_read_is_not_damaged(reason, copy, monkeypatch):
    def restore(*args, **kwargs):
        raise ValueError(f"NOT_FOUND: opening x: {reason} [source locations=...]")

    monkeypatch.setattr(ocp.AsyncCheckpointer, "restore", restore)
    with pytest.raises(UserError, match=f"cannot read the checkpoint .*20: {reason}; mend"):
        newest(copy)
    assert kept(copy) == ["10", "20"]


def test_evaluation_of_a_damaged_checkpoint_is_refused(copy):
    for path in (copy / "checkpoints" / "20" / "params").rglob("d/*"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"checkpoints/20 is damaged .* choose another"):
        checkpoints(copy).average_params([20], state(0).params, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: {"bias": p["bias"]}, "layers/0/kernel is there, which this model does not have"),
        (lambda p: p | {"scale": p["bias"]}, "scale is missing"),
        (
            lambda p: p | {"bias": jnp.zeros(7)},
            r"bias is float32\[5\], and this model's is float32",
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_named_as_that(change, message, copy):
    like = state(0)
    other = jax.device_put(change(like.params), like.step.sharding)
    with pytest.raises(UserError, match=rf"20 is of another model: in its params, {message}"):
        checkpoints(copy).restore_newest(like._replace(params=other))
    with pytest.raises(UserError, match=message):
        checkpoints(copy).average_params([20], other, {})
    assert kept(copy) == ["10", "20"]  # not set aside


def test_extra_state_is_saved_and_restored(tmp_path):
    manager = checkpoints(tmp_path)
    for step in (10, 20):
        whole = state(step, float(step))
        extra = jax.device_put({"u": jnp.arange(3.0) + step}, whole.step.sharding)
        manager.save(whole._replace(extra=extra), {}, scheduled=True)
    like = whole._replace(extra=extra)
    np.testing.assert_array_equal(manager.restore_newest(like).state.extra["u"], [20, 21, 22])
    # Of an average it is that of the last.
    params, found = manager.average_params([10, 20], like.params, like.extra)
    np.testing.assert_array_equal(params["layers"][0]["kernel"], np.full((2, 3), 15.0))
    np.testing.assert_array_equal(found["u"], [20, 21, 22])
    with pytest.raises(UserError, match="in its extra, u is there, which this model does not"):
        manager.restore_newest(like._replace(extra={}))
    manager.close()


# --- Disks that fail ----------------------------------------------------------------------

_SAVES = """
import resource, signal, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}]
from test_checkpoints import checkpoints, state

manager = checkpoints(Path({workdir!r}), keep_last=1)
for step, limit in {limits!r}:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if limit is None else limit, hard))
    manager.save(state(step, float(step)), {{"note": step}}, scheduled=True)
    manager.record_scores(step, {{"bleu": float(step)}})
    print(step, manager.steps(), flush=True)
manager.close()
"""


def save_with_limits(workdir: Path, limits: list[tuple[int, int | None]]):
    """Saves steps one after the other while no file may be longer than so many bytes."""
    script = _SAVES.format(
        root=str(ROOT), tests=str(Path(__file__).parent), workdir=str(workdir), limits=limits
    )
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )


def test_saves_that_fail_destroy_nothing_and_are_tried_again(tmp_path):
    done = save_with_limits(tmp_path, [(10, None), (20, 10), (30, 0), (40, 200), (50, None)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:5] == [
        "10 [10]",
        "20 [10]",
        "30 [10]",
        "40 [10]",
        "50 [50]",
    ]
    for step in (20, 30, 40):
        assert f"the checkpoint of step {step} could not be saved" in done.stderr
    assert kept(tmp_path) == ["50"]
    assert newest(tmp_path).notes == {"note": 50}


def test_a_folder_that_is_gone_or_unwritable(tmp_path, caplog):
    manager = saved(tmp_path, {10: {"bleu": 1.0}})
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    (tmp_path / "checkpoints").write_text("in the way")
    manager.save(state(20), {}, scheduled=True)
    manager.record_scores(20, {"bleu": 2.0})
    assert "the checkpoint of step 20 could not be saved" in caplog.text
    (tmp_path / "checkpoints").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "checkpoints")
    manager.save(state(30), {"note": 30}, scheduled=True)
    manager.record_scores(30, {"bleu": 3.0})
    manager.close()
    assert kept(tmp_path) == ["10", "30"]


def test_an_error_that_is_not_of_the_disk_ends_the_run(tmp_path, caplog, monkeypatch):
    manager = saved(tmp_path, {10: {"bleu": 1.0}})

    def broken(*args, **kwargs):
        raise ValueError("a shape is wrong")

    with pytest.raises(TypeError):  # this one can only be a defect
        manager.save(state(20), {"note": object()}, scheduled=True)
    manager.wait()
    with monkeypatch.context() as patch:
        patch.setattr(ocp.AsyncCheckpointer, "save", broken)
        for step in (20, 30):
            manager.save(state(step), {}, scheduled=True)
            assert f"step {step} could not be saved" in caplog.text
        with pytest.raises(ValueError, match="a shape is wrong"):
            manager.save(state(40), {}, scheduled=True)
        # Of the disk, as many as there may be.
        manager = checkpoints(tmp_path)
        for step in (50, 60, 70, 80):
            patch.setattr(ocp.AsyncCheckpointer, "save", full)
            manager.save(state(step), {}, scheduled=True)
    assert kept(tmp_path) == ["10"]


def full(*args, **kwargs):
    raise ValueError(f"UNKNOWN: write failed: {os.strerror(errno.ENOSPC)}")


def test_a_record_without_notes_is_damaged(copy):
    path = copy / "checkpoints/20/record/record.json"
    record = json.loads(path.read_text())
    del record["notes"], record["sha256"]
    path.write_text(json.dumps(signed(record)))
    write_inventory(copy / "checkpoints/20", later=["scores.json"])
    assert int(newest(copy).state.step) == 10
    assert kept(copy) == ["10", "20.damaged"]


def test_a_record_is_readable_by_people(tmp_path):
    saved(tmp_path, {10: {"bleu": 1.0}})
    record = json.loads((tmp_path / "checkpoints/10/record/record.json").read_text())
    assert list(record) == ["step", "scheduled", "notes", "shapes", "digests", "sha256"]
    assert record["shapes"]["params"]["bias"] == "float32[5]"
