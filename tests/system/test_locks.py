import contextlib
import errno
import fcntl
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import pytest

from transformer.system.errors import UserError
from transformer.system.locks import lock_file, lock_workdir

ROOT = pathlib.Path(__file__).parents[2]
# Says "ready", starts at a line of input, holds the lock until the end of it.
HOLDER = """
import pathlib, subprocess, sys
from transformer.system.errors import UserError
from transformer.system.locks import lock_workdir

print("ready", flush=True)
sys.stdin.readline()
try:
    with lock_workdir(pathlib.Path(sys.argv[1])):
        child = subprocess.Popen(["cat"], close_fds=False)
        print("held", flush=True)
        sys.stdin.read()
except UserError as error:
    print(error, flush=True)
"""


@pytest.fixture
def holders(tmp_path):
    """Starts processes that lock a work directory at once; returns them and what they say."""
    with contextlib.ExitStack() as stack:

        def start(workdir, count=1):
            command = [sys.executable, "-c", HOLDER, workdir]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            processes = [
                stack.enter_context(subprocess.Popen(command, cwd=ROOT, **pipes))
                for _ in range(count)
            ]
            assert [process.stdout.readline() for process in processes] == ["ready\n"] * count
            for process in processes:
                stack.callback(process.kill)
                process.stdin.write("\n")
                process.stdin.flush()
            return processes, [process.stdout.readline().strip() for process in processes]

        yield start


def files(directory):
    return sorted(path.name for path in directory.iterdir())


def refused(by):
    return pytest.raises(UserError, match=rf"is in use by {by}")


def test_a_live_holder_is_named_and_stays(tmp_path, holders):
    (other,), said = holders(tmp_path)
    assert said == ["held"]
    message = (
        f"^{tmp_path} is in use by process {other.pid} on {socket.gethostname()}; wait for it, "
        "stop it, or give another --workdir$"
    )
    with pytest.raises(UserError, match=message), lock_workdir(tmp_path):
        pass
    assert files(tmp_path) == ["lock"]
    other.stdin.close()
    assert other.wait(timeout=60) == 0
    assert files(tmp_path) == []


def test_a_killed_holder_does_not_block_nor_does_its_child(tmp_path, holders):
    (other,), _ = holders(tmp_path)
    other.kill()  # its child lives until its input ends
    other.wait()
    assert files(tmp_path) == ["lock"]
    with lock_workdir(tmp_path):
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")
        with refused(by=f"process {os.getpid()} "), lock_workdir(tmp_path):
            pass
    assert files(tmp_path) == []


@pytest.mark.parametrize("left", [None, b"process 7 on elsewhere"])
def test_one_of_many_that_start_at_once_wins(tmp_path, holders, left):
    workdir = tmp_path / "new"
    if left is not None:  # by a dead holder
        workdir.mkdir()
        (workdir / "lock").write_bytes(left)
    processes, lines = holders(workdir, 4)
    assert sum("is in use by" in line for line in lines) == 3, lines
    winner = processes[lines.index("held")]
    assert f"process {winner.pid} " in (workdir / "lock").read_text()
    assert files(workdir) == ["lock"]


@pytest.mark.parametrize("again", [False, True])
def test_a_lock_that_is_released_while_it_is_being_locked(tmp_path, holders, monkeypatch, again):
    path, flock = tmp_path / "lock", fcntl.flock
    path.touch()

    def late(file, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        assert not again or holders(tmp_path)[1] == ["held"]
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with refused(by="process ") if again else contextlib.nullcontext(), lock_workdir(tmp_path):
        assert f"process {os.getpid()} " in path.read_text()


def test_waiting(tmp_path):
    order, path = [], tmp_path / "a.lock"

    def wait():
        with lock_file(path, wait=True):
            order.append("second")

    thread = threading.Thread(target=wait)
    with lock_file(path, wait=True):
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join(timeout=60)
    assert order == ["first", "second"]
    assert files(tmp_path) == []


def test_without_flock_it_warns(tmp_path, monkeypatch, caplog):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_workdir(tmp_path):
        assert files(tmp_path) == ["lock"]
    (said,) = caplog.messages
    assert (
        said == f"{tmp_path}/lock cannot be locked (No locks available); do not train there twice"
    )


def test_a_link_is_not_written_to(tmp_path):
    (tmp_path / "precious").write_text("years of work")
    (tmp_path / "lock").symlink_to("precious")
    with pytest.raises(UserError, match="lock is a link"), lock_workdir(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "years of work"


def test_a_directory_of_ours_goes_if_the_body_leaves_no_file(tmp_path):
    (tmp_path / "old").mkdir()
    for name in ("old", "new"):
        with pytest.raises(OSError, match="the body's"), lock_workdir(tmp_path / name):
            raise OSError("the body's")
    assert files(tmp_path) == ["old"]
    with lock_workdir(tmp_path / "new"):
        (tmp_path / "new" / "config.json").write_text("{}")
    assert files(tmp_path / "new") == ["config.json"]


def test_a_disk_that_does_not_let_us(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        message = rf"^cannot write {path}/lock: Not a directory; mend that, or give another --work"
        with pytest.raises(UserError, match=message), lock_workdir(path):
            pass

    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    message = rf"^cannot write {tmp_path}/new/lock: No space left on device; mend that"
    with pytest.raises(UserError, match=message), lock_workdir(tmp_path / "new"):
        pass
    assert files(tmp_path) == ["file"]
