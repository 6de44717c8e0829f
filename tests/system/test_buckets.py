"""Copies of what lies in a bucket, here one in the memory of the test."""

import os
import threading
from pathlib import Path

import fsspec
import pytest

from transformer.runs.checkpoint_store import ITEMS
from transformer.system import buckets, locks, terminal
from transformer.system.errors import UserError
from transformer.system.locks import lock_workdir
from transformer.system.paths import checked, local, named_files

RUN = "memory://bucket/run"


class Bucket:
    """A bucket whose connection is lost after some changes: `left` of them are still made."""

    def __init__(self):
        self.files, self.changes, self.left = fsspec.filesystem("memory"), [], 1000

    def __getattr__(self, name):
        return getattr(self.files, name)

    def _changing(name):
        def change(self, *args, **kwargs):
            if self.left == 0:
                raise ConnectionError("503")
            self.left -= 1
            getattr(self.files, name)(*args, **kwargs)
            self.changes.append(
                f"{name} {args[name == 'put_file'].removeprefix('memory://bucket/')}"
            )

        return change

    pipe_file, put_file, rm_file = map(_changing, ("pipe_file", "put_file", "rm_file"))

    def has(self) -> dict[str, bytes]:
        return {
            name.removeprefix("/bucket/"): self.files.cat_file(name)
            for name in self.files.find("/bucket")
        }

    def put(self, **files: bytes) -> None:
        for name, content in files.items():
            self.files.pipe_file(f"/bucket/{name}", content)


def forget(monkeypatch) -> None:
    """From now on this is another process."""
    monkeypatch.setattr(buckets, "_root", None)
    for name in ("_fetched", "_known", "_synced", "_leases"):
        monkeypatch.setattr(buckets, name, type(getattr(buckets, name))())
    monkeypatch.setattr(buckets, "_lost", None)


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(buckets.PACKAGES, "memory", "fsspec")
    monkeypatch.setattr(terminal, "_shown_as", {})
    # Two processes in one: their names differ.
    numbers = iter(range(100))
    beside = buckets.temporary_beside
    monkeypatch.setattr(
        buckets, "temporary_beside", lambda base: beside(base).with_suffix(f".{next(numbers)}")
    )
    forget(monkeypatch)
    made = Bucket()
    monkeypatch.setattr(buckets, "system", lambda address: made)
    yield made
    made.files.rm("/bucket", recursive=True) if made.files.exists("/bucket") else None


def test_what_lies_there_is_brought_down(bucket, monkeypatch):
    bucket.put(**{"a.txt": b"a", "b.txt": b"b", "folder/c/d.txt": b"d", "run2/x": b"x"})
    assert named_files("memory://bucket/[ab].txt", "data.x") == [
        local(f"memory://bucket/{name}", "data.x") for name in ("a.txt", "b.txt")
    ]
    pair = "memory://bucket/b.txt,memory://bucket/folder/c/d.txt"
    assert [Path(x).read_bytes() for x in named_files(pair, "data.x")] == [b"b", b"d"]
    folder = Path(local("memory://bucket/folder/", "data.x"))
    assert [x.relative_to(folder) for x in folder.rglob("*.txt")] == [Path("c/d.txt")]
    assert buckets.address_of(folder / "c") == "memory://bucket/folder/c"
    assert buckets.address_of(Path("/x")) == "/x"
    assert terminal.named(f"see {folder}/c, {folder}") == (
        "see memory://bucket/folder/c, memory://bucket/folder"
    )
    with pytest.raises(UserError, match="there is no file"):
        named_files("memory://bucket/no.txt", "data.x")
    # Each address is asked once; another process sees the new content.
    bucket.put(**{"a.txt": b"new", "run/metrics.jsonl": b"1\n"})
    assert Path(local("memory://bucket/a.txt", "data.x")).read_bytes() == b"a"
    assert not Path(local("memory://bucket/ru", "data.x")).exists()
    buckets.fetch_again()
    assert Path(local("memory://bucket/a.txt", "data.x")).read_bytes() == b"new"
    assert bucket.changes == []


def test_changes_go_up(bucket, monkeypatch):
    bucket.put(**{"run/config.json": b"1", "run/metrics.jsonl": b"1\n"})
    run = buckets.fetch(RUN)
    names = "record.json", "files.json", "scores.json", "config.json", "lock", "x.tmp", "a.txt"
    for name in ("metrics.jsonl", *(f"new/{name}" for name in names)):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(name)
    (run / "link").symlink_to("new")
    monkeypatch.setattr(buckets, "_SMALL", 9)
    buckets.push()
    made = [change.replace("run/", "") for change in bucket.changes]
    first, last = made[:-3], made[-3:]
    assert sorted(first) == [
        "pipe_file new/a.txt",
        "put_file metrics.jsonl",
        "put_file new/config.json",
    ]
    assert last == [f"put_file new/{name}.json" for name in ("files", "scores", "record")]
    (run / "config.json").unlink()  # without a lease nothing is removed
    buckets.push()
    assert len(bucket.changes) == 6
    assert "run/config.json" in bucket.has()
    # What a user names goes up under any name.
    Path(local("memory://bucket/de.tmp", "--output")).write_text("a")
    buckets.push()
    assert "de.tmp" in bucket.has()


def checkpoint(run: Path, step: int) -> None:
    """As a run does it: metrics first, then the checkpoint as a whole."""
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f"{step}\n")
    new = run / f"checkpoints/{step}.orbax-checkpoint-tmp"
    names = "_METADATA", "commit_success.txt", "scores.json"
    for name in (*names, "params/a", "params/d/b", "opt_state/c", "record/record.json"):
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        (new / name).write_text(str(step))
    new.rename(run / f"checkpoints/{step}")


def remove(run: Path, step: int) -> None:
    gone = (run / f"checkpoints/{step}").rename(run / f"checkpoints/{step}.deleted")
    for path in sorted(gone.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def steps_of(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("checkpoints/*"))


def test_a_checkpoint_is_whole_or_absent_whenever_the_process_dies(bucket, monkeypatch):
    monkeypatch.setattr(locks, "is_alive", lambda process: False)  # the one that died
    moments, died = 0, True
    small = {"_METADATA", "commit_success.txt", "scores.json", "record.json"}
    while died:
        forget(monkeypatch)
        if bucket.has():
            bucket.files.rm("/bucket", recursive=True)
        bucket.left = moments
        died = False
        try:
            with lock_workdir(run := buckets.fetch(RUN)):
                for step in (1, 2, 3):
                    checkpoint(run, step)
                    if step > 1:
                        remove(run, step - 1)
                    buckets.push()
        except UserError:  # 503
            died = True
        bucket.left = 1000
        # Another process.
        forget(monkeypatch)
        with lock_workdir(run := buckets.fetch(RUN)):
            found = steps_of(run)
            for step in found:
                folder = run / "checkpoints" / step
                names = {x.name for x in folder.rglob("*") if x.is_file()}
                assert names == small
                buckets.fetch_arrays(folder, ["params"])
                names = {x.name for x in folder.rglob("*") if x.is_file()}
                assert names == {*small, "a", "b"}
                buckets.fetch_arrays(folder, ["params", "opt_state"])
                whole = {x.read_text() for x in folder.rglob("*") if x.is_file()}
                assert whole == {step}
                assert f"{step}\n" in (run / "metrics.jsonl").read_text()
            buckets.push()  # removes the half-written
        kept = {name.split("/")[2] for name in bucket.has() if "checkpoints" in name}
        assert kept == set(found)
        assert found or moments < 9
        moments += 1
    assert found == ["3"]
    assert moments > 20


def test_arrays_leave_the_disk_and_a_damaged_checkpoint_stays_there(bucket, monkeypatch):
    with lock_workdir(run := buckets.fetch(RUN)):
        checkpoint(run, 1)
        checkpoint(run, 2)
        assert buckets.is_pushed()
        assert not list(run.glob("checkpoints/*/params/a"))
        assert steps_of(run) == ["1", "2"]  # the records stay
        before = bucket.has()
        assert buckets.is_pushed()
        assert bucket.has() == before
        for items in (["params"], ["opt_state", "params"]):
            buckets.fetch_arrays(run / "checkpoints/2", items)
        (run / "checkpoints/2").rename(run / "checkpoints/2.damaged")
        assert buckets.is_pushed()
        expected = {name.replace("/2/", "/2.damaged/") for name in before}
        assert bucket.has().keys() == expected
    forget(monkeypatch)
    with lock_workdir(run := buckets.fetch(RUN)):
        assert steps_of(run) == ["1"]
        buckets.push()
    assert bucket.has().keys() == expected - {"run/lock"}
    # What another process has removed goes here, too.
    bucket.files.rm("/bucket/run/checkpoints/1", recursive=True)
    buckets.fetch_again()
    assert steps_of(run) == []


def test_a_lost_connection_is_a_warning(bucket, capsys):
    with lock_workdir(run := buckets.fetch(RUN)):
        checkpoint(run, 1)
        bucket.left = 2
        assert not buckets.is_pushed()
        said = capsys.readouterr().err
        assert said.startswith("warning: cannot write memory://bucket/run/")
        assert said.endswith("the work goes on, and the next checkpoint tries again\n")
        assert said.count("\n") == 1
        buckets.push_soon()
        with pytest.raises(UserError, match=r"^cannot write memory:.*: 503; check the address"):
            buckets.push()
        bucket.left = 1000
        assert buckets.is_pushed()
    assert "run/checkpoints/1/record/record.json" in bucket.has()


# --- One run at a time --------------------------------------------------------------------


def test_one_process_holds_a_folder(bucket, monkeypatch):
    monkeypatch.setattr(locks, "HEARTBEAT", 0.2)
    monkeypatch.setattr(locks.time, "sleep", lambda _: threading.Event().wait(0.5))
    with lock_workdir(buckets.fetch(RUN)):
        forget(monkeypatch)
        second, said = buckets.fetch(RUN), r"^memory://bucket/run is in use by process \d+ on "
        with pytest.raises(UserError, match=said), lock_workdir(second):
            pass
    assert bucket.has() == {}


@pytest.mark.parametrize("is_here", [True, False])
def test_the_lease_of_a_dead_process_is_taken(is_here, bucket, monkeypatch):
    monkeypatch.setattr(locks, "STALE", -1 if not is_here else 1000)
    monkeypatch.setattr(locks, "is_alive", lambda process: process != 7)
    host = locks.host_id() if is_here else "another"
    lease = f'{{"holder": "x", "host": "{host}", "process": 7, "id": "y", "time": 1}}'
    bucket.put(**{"run/lock": lease.encode()})
    with lock_workdir(buckets.fetch(RUN)):
        assert b'"y"' not in bucket.has()["run/lock"]
    assert bucket.has() == {}


def test_a_run_that_lost_its_lease_writes_nothing(bucket):
    with lock_workdir(run := buckets.fetch(RUN)):
        other = b'{"holder": "process 7 on x", "id": "y"}'
        bucket.put(**{"run/lock": other})
        (run / "metrics.jsonl").write_text("1\n")
        said = "memory://bucket/run is now held by process 7 on x; this run ends"
        with pytest.raises(buckets.LeaseLost, match=said):
            buckets.is_pushed()
        with pytest.raises(buckets.LeaseLost, match=said):
            buckets.push_soon()
    assert bucket.has() == {"run/lock": other}


# --- Refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "part"),
    [
        ("gs://", "is gs://, which is no address; give one such as gs://bucket/runs"),
        ("s3:///run", "which is no address"),
        ("memory://bucket/../x", "which is no address"),
        ("az://bucket/x", "and only local files and folders can be used, not az://"),
        ("no://bucket/x", "no_such_package is not installed; pip install 'transformer[cloud]'"),
    ],
)
def test_addresses_that_cannot_be_used(address, part, bucket, monkeypatch):
    monkeypatch.setitem(buckets.PACKAGES, "no", "no_such_package")
    with pytest.raises(UserError) as raised:
        checked(address, "--workdir")
    assert str(raised.value).startswith(f"--workdir is {address}")
    assert part in str(raised.value)


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (FileNotFoundError("bucket"), "there is no such bucket, or it went away (bucket)"),
        (PermissionError("x"), "no permission (x)"),
        (RuntimeError("Anonymous caller,\n 401"), "no permission (Anonymous caller, 401)"),
        (ConnectionError("Cannot connect to host"), "Cannot connect to host"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_errors_of_a_bucket_are_one_line(error, part, bucket, monkeypatch):
    def find(*args, **kwargs):
        raise error

    monkeypatch.setattr(bucket, "find", find, raising=False)
    with pytest.raises(UserError) as raised:
        buckets.fetch(RUN)
    assert str(raised.value) == (
        f"cannot read {RUN}: {part}; check the address, the credentials and the connection"
    )
    assert not os.path.exists(buckets._root / "memory/bucket/run")


@pytest.mark.parametrize("item", ITEMS)
def test_all_arrays_of_a_checkpoint_are_known(item):
    """Otherwise a half-written one would be brought down, and taken for a whole one."""
    assert buckets._STEP.match(f"/runs/x/checkpoints/7/{item}/d/0")[2] == item
