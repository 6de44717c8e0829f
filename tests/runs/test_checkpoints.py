import contextlib
import errno
import gc
import json
import os
import random
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from processes import no_room_beyond

from transformer.runs.checkpoint_store import Store
from transformer.runs.checkpoints import Checkpoints
from transformer.runs.integrity import signed
from transformer.system.errors import UserError
from transformer.system.files import write_json
from transformer.system.sharding import data_mesh, replicated
from transformer.training.step import TrainState

ADAM = optax.adam(0.1)

# Where reading or writing fails, Orbax leaves coroutines behind that nobody waits for.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine"
)


@pytest.fixture(autouse=True, scope="module")
def leave_nothing_behind():
    """Millions of objects that were there before are not searched at the end."""
    gc.freeze()
    yield
    gc.unfreeze()
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
    # People can read the record.
    record = json.loads((tmp_path / "checkpoints/7/record/record.json").read_text())
    assert list(record) == ["step", "scheduled", "notes", "shapes", "digests", "sha256"]
    assert record["shapes"]["params"]["bias"] == "float32[5]"


def test_an_optimizer_without_state(tmp_path):
    whole = state(7)._replace(opt_state=optax.sgd(0.1).init({}))
    with contextlib.closing(checkpoints(tmp_path)) as manager:
        manager.save(whole, {}, scheduled=True)
        assert manager.restore_newest(whole).state.opt_state == whole.opt_state
    assert not (tmp_path / "checkpoints/7/opt_state").exists()


def test_extra_state_and_the_mean_of_several(tmp_path):
    manager = checkpoints(tmp_path)
    for step in (10, 20):
        whole = state(step, float(step))
        extra = jax.device_put({"u": jnp.arange(3.0) + step}, whole.step.sharding)
        manager.save(whole._replace(extra=extra), {}, scheduled=True)
    like = whole._replace(extra=extra)
    np.testing.assert_array_equal(manager.restore_newest(like).state.extra["u"], [20, 21, 22])
    # Of an average it is that of the last.
    for steps, value in (([20], 20.0), ([10, 20], 15.0)):
        mean, found = manager.average_params(steps, like.params, like.extra)
        assert jax.tree.structure(mean) == jax.tree.structure(like.params)
        np.testing.assert_array_equal(mean["layers"][0]["kernel"], np.full((2, 3), value))
        np.testing.assert_allclose(mean["bias"], np.arange(5) / 7, rtol=1e-6)
        np.testing.assert_array_equal(found["u"], [20, 21, 22])
    with pytest.raises(UserError, match="in its extra, u is there, which this model does not"):
        manager.restore_newest(like._replace(extra={}))
    manager.close()


# --- Which are kept -----------------------------------------------------------------------


@pytest.fixture
def without_arrays(monkeypatch):
    """Checkpoints have only their record, on which depends which are kept."""

    def begin(self, step, items, **said):
        self.saving, record = step, {"step": step, **said, "shapes": {}, "digests": {}}
        write_json(self.directory / str(step) / "record/record.json", signed(record))

    monkeypatch.setattr(Store, "begin", begin)
    monkeypatch.setattr(Store, "wait", lambda self: setattr(self, "saving", None))


NAN = float("nan")


@pytest.mark.parametrize(
    ("metric", "scores", "best"),
    [
        ("bleu", {10: 3.0, 20: 9.0, 30: 1.0, 40: 7.0, 50: 6.0}, 20),
        ("nll", {10: 3.0, 20: 9.0, 30: 1.0, 40: 7.0, 50: 6.0}, 30),
        ("bleu", {10: None, 20: 0.0, 30: NAN, 40: None, 50: None}, 20),
    ],
)
def test_the_last_few_and_the_best_are_kept(tmp_path, without_arrays, metric, scores, best):
    given = {step: {"f1": 0.5} | ({} if x is None else {metric: x}) for step, x in scores.items()}
    manager = saved(tmp_path, given, best_metric=metric)
    assert kept(tmp_path) == [str(best), "40", "50"]
    assert manager.best_step() == best
    manager.close()
    assert checkpoints(tmp_path, best_metric=metric).best_step() == best  # in a new process


def test_a_new_best_takes_the_place_of_the_old(tmp_path, without_arrays):
    manager = saved(tmp_path, {10: {"bleu": 3.0}, 20: {"bleu": 2.0}}, keep_last=1)
    assert kept(tmp_path) == ["10", "20"]
    manager.save(state(30), {}, scheduled=True)
    manager.wait()
    assert kept(tmp_path) == ["10", "30"]  # its score is not known yet
    manager.record_scores(30, {"bleu": 4.0})
    assert kept(tmp_path) == ["30"]


def test_no_best_without_a_score(tmp_path, without_arrays):
    manager = saved(tmp_path, {10: {"nll": 1.0}, 20: {"nll": 2.0}, 30: {"nll": 3.0}})
    assert kept(tmp_path) == ["20", "30"]
    with pytest.raises(UserError, match=r"no checkpoint in .* has a validation bleu; use .*last"):
        manager.best_step()


def test_what_was_saved_in_between_lasts_until_the_next(tmp_path):
    manager = saved(tmp_path, {10: {"bleu": 1.0}, 20: {"bleu": 2.0}})
    for step in (23, 27):
        manager.save(state(step), {}, scheduled=False)
        manager.wait()
        assert (manager.steps(), manager.scheduled_steps()) == ([10, 20, step], [10, 20])
    # A rollback goes to a scheduled one, and forgets the others.
    assert int(manager.restore_newest(state(0)).state.step) == 27
    assert int(manager.restore_newest(state(0), scheduled_only=True).state.step) == 20
    manager.remove_unscheduled()
    assert kept(tmp_path) == ["10", "20"]
    # It must not take it for a run without a checkpoint, and begin again.
    again = checkpoints(tmp_path)
    again.restore_newest(state(0))
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    for it in (manager, again):
        with pytest.raises(UserError, match=r"the checkpoints in .* are gone"):
            it.restore_newest(state(0), scheduled_only=True)


def test_what_was_saved_in_between_is_scheduled_once_it_has_scores(tmp_path, without_arrays):
    """As when a run is stopped, and then told to end at that step."""
    manager = saved(tmp_path, {10: {"bleu": 1.0}, 20: {"bleu": 2.0}})
    manager.save(state(23), {}, scheduled=False)
    manager.record_scores(23, {"bleu": 1.0})
    assert manager.scheduled_steps() == [20, 23]
    manager.save(state(27), {}, scheduled=False)
    manager.wait()
    assert kept(tmp_path) == ["20", "23", "27"]


def test_another_start_keeps_what_it_is_asked_to(tmp_path):
    saved(tmp_path, {10: {"bleu": 9.0}, 20: {"bleu": 1.0}}, keep_last=7).close()
    saved(tmp_path, {30: {"bleu": 2.0}, 40: {"bleu": 3.0}}).close()
    assert kept(tmp_path) == ["10", "30", "40"]
    assert int(newest(tmp_path, keep_last=1).state.step) == 40
    assert kept(tmp_path) == ["10", "40"]


def test_half_written_and_half_deleted_checkpoints_are_cleaned_away(tmp_path, without_arrays):
    saved(tmp_path, {10: {"bleu": 1.0}})
    for name in ("20.orbax-checkpoint-tmp", "30.orbax-checkpoint-tmp-17", "5.deleted"):
        shutil.copytree(tmp_path / "checkpoints" / "10", tmp_path / "checkpoints" / name)
    reader = checkpoints(tmp_path, read_only=True)
    assert reader.steps() == [10]
    assert len(kept(tmp_path)) == 4  # a reader changes nothing
    assert checkpoints(tmp_path).steps() == [10]
    assert kept(tmp_path) == ["10"]


# --- Damage -------------------------------------------------------------------------------


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[7 * len(content) // 11] ^= 16
    path.write_bytes(bytes(content))


DAMAGE = {
    "a bit": flip,
    "removed": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "one byte cut": lambda path: os.truncate(path, path.stat().st_size - 1),
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


def test_damage_is_named_and_the_checkpoint_before_is_used(good, tmp_path, caplog):
    """Or the damage was to what Orbax does not read: then the state is what was saved."""
    checkpoint = good[0] / "checkpoints" / "20"
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    # Every byte of these counts.
    read = [checkpoint / "record/record.json"]
    read += [*checkpoint.glob("params/d/*"), *checkpoint.glob("opt_state/d/*")]
    assert len(read) == 3 < len(files)
    kinds = list(DAMAGE)
    cases = [(path, kinds[i % len(kinds)]) for i, path in enumerate(files) if path not in read]
    cases += [(path, how) for i, path in enumerate(read) for how in (*kinds[:2], kinds[2 + i])]
    for path, how in cases:
        if not path.stat().st_size:
            continue
        workdir = tmp_path / "damaged"
        shutil.copytree(good[0], workdir)
        DAMAGE[how](workdir / path.relative_to(good[0]))
        caplog.clear()
        restored = newest(workdir)
        if int(restored.state.step) == 20:
            assert path not in read, how
            for x, y in zip(jax.tree.leaves(restored.state), good[1], strict=True):
                np.testing.assert_array_equal(x, y)
        else:
            assert int(restored.state.step) == restored.notes["note"] == 10
            assert "the checkpoint of step 20 is damaged" in caplog.text
            assert kept(workdir) == ["10", "20.damaged"]
        shutil.rmtree(workdir)


def without_notes(checkpoint: Path) -> None:
    path = checkpoint / "record/record.json"
    record = json.loads(path.read_text())
    del record["notes"], record["sha256"]
    path.write_text(json.dumps(signed(record)))


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize(
    "change",
    [
        empty,
        lambda path: shutil.rmtree(path / "params"),
        lambda path: shutil.rmtree(path / "opt_state"),
        lambda path: path.rename(path.with_name("2000")),
        without_notes,
    ],
)
def test_other_damage(change, copy):
    change(copy / "checkpoints/20")
    assert int(newest(copy).state.step) == 10


def test_when_all_are_damaged_nothing_is_touched(copy):
    for step in (10, 20):
        (copy / "checkpoints" / str(step) / "record" / "record.json").write_text("{}")
    with pytest.raises(UserError, match=r"no checkpoint in .* can be used \(20: its record"):
        newest(copy)
    with pytest.raises(UserError, match=r"checkpoints/20 is damaged .* choose another"):
        checkpoints(copy).average_params([20], state(0).params, {})
    assert kept(copy) == ["10", "20"]


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/dev/zero"), os.mkfifo])
def test_a_link_or_a_pipe_in_a_checkpoint_is_refused(make, copy):
    path = copy / "checkpoints/20/params/manifest.ocdbt"
    path.unlink()
    make(path)
    with pytest.raises(UserError, match=r"manifest\.ocdbt is a link or no file"):
        newest(copy)


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
@pytest.mark.parametrize("name", ["record.json", "scores.json", "arrays"])
def test_what_cannot_be_read_is_not_damaged(error, name, copy, monkeypatch):
    """Simulated, since root may read everything."""
    opened, reason = os.open, os.strerror(error)

    def refuse(path, *args, **kwargs):
        if Path(path).name == name:
            raise OSError(error, reason, str(path))
        return opened(path, *args, **kwargs)

    def restore(*args, **kwargs):
        raise ValueError(f"NOT_FOUND: opening x: {reason} [source locations=...]")

    if name == "arrays":
        monkeypatch.setattr(ocp.AsyncCheckpointer, "restore", restore)
    monkeypatch.setattr(os, "open", refuse)
    use = newest if name != "scores.json" else lambda copy: checkpoints(copy).best_step()
    with pytest.raises((UserError, OSError), match=reason):
        use(copy)
    monkeypatch.undo()
    assert kept(copy) == ["10", "20"]


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
def test_a_checkpoint_of_another_model_is_named_as_that(change, message, good):
    like = state(0)
    other = jax.device_put(change(like.params), like.step.sharding)
    with pytest.raises(UserError, match=rf"20 is of another model: in its params, {message}"):
        checkpoints(good[0]).restore_newest(like._replace(params=other))
    with pytest.raises(UserError, match=message):
        checkpoints(good[0]).average_params([20], other, {})
    assert kept(good[0]) == ["10", "20"]  # not set aside


# --- Disks that fail ----------------------------------------------------------------------


def test_saves_that_fail_destroy_nothing_and_are_tried_again(tmp_path, capsys, caplog):
    manager = saved(tmp_path, {10: {"bleu": 1.0}}, keep_last=1)
    for step, size in ((20, 10), (30, 0), (40, 200)):
        with no_room_beyond(size):
            manager.save(state(step), {}, scheduled=True)
            manager.record_scores(step, {"bleu": float(step)})
        assert f"the checkpoint of step {step} could not be saved" in caplog.text
        assert kept(tmp_path) == ["10"]
    # The folder is gone, or is a file.
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    (tmp_path / "checkpoints").write_text("in the way")
    manager.save(state(50), {}, scheduled=True)
    manager.record_scores(50, {"bleu": 2.0})
    assert "the checkpoint of step 50 could not be saved" in caplog.text
    (tmp_path / "checkpoints").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "checkpoints")
    manager.save(state(60), {"note": 60}, scheduled=True)
    manager.record_scores(60, {"bleu": 3.0})
    manager.close()
    assert kept(tmp_path) == ["60"]
    assert newest(tmp_path).notes == {"note": 60}


def test_an_error_that_is_not_of_the_disk_ends_the_run(tmp_path, caplog, monkeypatch):
    manager = saved(tmp_path, {10: {"bleu": 1.0}})
    with pytest.raises(TypeError):  # this one can only be a defect
        manager.save(state(20), {"note": object()}, scheduled=True)
    manager.wait()

    def failing(reason: str) -> None:
        def fail(*args, **kwargs):
            raise ValueError(reason)

        monkeypatch.setattr(ocp.AsyncCheckpointer, "save", fail)

    failing("a shape is wrong")
    for step in (20, 30):
        manager.save(state(step), {}, scheduled=True)
        assert f"step {step} could not be saved" in caplog.text
    with pytest.raises(ValueError, match="a shape is wrong"):
        manager.save(state(40), {}, scheduled=True)
    # Of the disk, as many as there may be.
    manager = checkpoints(tmp_path)
    failing(f"UNKNOWN: write failed: {os.strerror(errno.ENOSPC)}")
    for step in (50, 60, 70, 80):
        manager.save(state(step), {}, scheduled=True)
    assert kept(tmp_path) == ["10"]
