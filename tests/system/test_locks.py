import contextlib
import errno
import fcntl
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import pytest

from transformer.system import locks as module
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


class Process:
    """A process that runs HOLDER."""

    def __init__(self, workdir):
        self._popen = subprocess.Popen(
            [sys.executable, "-c", HOLDER, workdir],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._popen.pid
        assert self.line() == "ready"

    def line(self):
        return self._popen.stdout.readline().strip()

    def start(self):
        self._popen.stdin.write("\n")
        self._popen.stdin.flush()
        return self

    def kill(self):
        self._popen.kill()
        self._popen.wait()

    def end(self):
        self._popen.stdin.close()
        assert self._popen.wait(timeout=60) == 0

    def close(self):
        self.kill()
        for file in (self._popen.stdin, self._popen.stdout):
            with contextlib.suppress(OSError):
                file.close()


@pytest.fixture
def process():
    with contextlib.ExitStack() as stack:

        def start(workdir):
            process = Process(workdir)
            stack.callback(process.close)
            return process

        yield start


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(module, "BEAT", 0.1)
    monkeypatch.setattr(module, "STALE", 1.5)


@pytest.fixture
def no_flock(monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)


@contextlib.contextmanager
def beating(path):
    stop = threading.Event()

    def beat():
        while not stop.wait(0.1):
            os.utime(path)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def write_lock(workdir, boot="another"):
    """The lock of a process of another host, or of one that died on this host."""
    path = workdir / "lock"
    path.write_text(json.dumps({"pid": 17, "host": "elsewhere", "boot": boot}))
    return path


def files(directory):
    return sorted(path.name for path in directory.iterdir())


def holder(workdir):
    return json.loads((workdir / "lock").read_text())["pid"]


def assert_held_by_us(workdir):
    assert holder(workdir) == os.getpid()
    assert files(workdir) == ["lock"]
    with (workdir / "lock").open("r+") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def refused(by="process 17 on elsewhere"):
    return pytest.raises(UserError, match=rf"is in use by {by}")


# --- On one host --------------------------------------------------------------------------


def test_a_live_holder_is_named_and_stays(tmp_path, process):
    other = process(tmp_path).start()
    assert other.line() == "held"
    message = (
        f"^{tmp_path} is in use by process {other.pid} on {socket.gethostname()}; wait for it, "
        "stop it, or give another --workdir$"
    )
    with pytest.raises(UserError, match=message), lock_workdir(tmp_path):
        pass
    assert files(tmp_path) == ["lock"]
    other.end()
    assert files(tmp_path) == []


def test_a_killed_holder_does_not_block_nor_does_its_child(tmp_path, process, caplog):
    other = process(tmp_path).start()
    assert other.line() == "held"
    other.kill()  # its child lives until its input ends, in close()
    assert files(tmp_path) == ["lock"]
    with lock_workdir(tmp_path):
        assert_held_by_us(tmp_path)
    assert caplog.messages == []


@pytest.mark.parametrize("dead", [False, True])
def test_one_of_many_that_start_at_once_wins(tmp_path, process, dead):
    workdir = tmp_path / "new"
    if dead:
        workdir.mkdir()
        write_lock(workdir, boot=module.boot_id())
    processes = [process(workdir) for _ in range(6)]
    for each in processes:
        each.start()
    lines = [each.line() for each in processes]
    assert lines.count("held") == 1, lines
    assert sum("is in use by" in line for line in lines) == 5, lines
    winner = processes[lines.index("held")]
    assert holder(workdir) == winner.pid
    assert files(workdir) == ["lock"]
    winner.end()


@pytest.mark.parametrize("again", [False, True])
def test_a_lock_that_is_released_while_it_is_being_locked(tmp_path, process, monkeypatch, again):
    path = write_lock(tmp_path, boot=module.boot_id())
    other, flock = process(tmp_path), fcntl.flock

    def late(file, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        assert not again or other.start().line() == "held"
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    if again:
        with refused(by=f"process {other.pid} "), lock_workdir(tmp_path):
            pass
        assert holder(tmp_path) == other.pid
    else:
        with lock_workdir(tmp_path):
            assert_held_by_us(tmp_path)


def test_the_process_itself_is_refused_too(tmp_path):
    with lock_workdir(tmp_path):
        with refused(by=f"process {os.getpid()} "), lock_workdir(tmp_path):
            pass
        assert_held_by_us(tmp_path)


def test_a_new_lock_takes_no_time_and_one_without_a_name_little(tmp_path, fast, monkeypatch):
    (tmp_path / "lock").write_bytes(b"")
    start = time.monotonic()
    with lock_workdir(tmp_path):
        assert_held_by_us(tmp_path)
    assert time.monotonic() - start < 1  # not STALE
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it sleeps"))
    with lock_workdir(tmp_path / "new"):
        assert_held_by_us(tmp_path / "new")


@pytest.mark.parametrize("flock", ["with", "without"])
def test_waiting(tmp_path, fast, request, flock):
    if flock == "without":
        request.getfixturevalue("no_flock")
    order, path = [], tmp_path / "a.lock"

    def wait():
        with lock_file(path, wait=True):
            order.append("second")

    thread = threading.Thread(target=wait)
    with lock_file(path, wait=True):
        thread.start()
        time.sleep(2.5)  # longer than STALE
        order.append("first")
    thread.join(timeout=60)
    assert order == ["first", "second"]
    assert files(tmp_path) == []


# --- Beyond flock -------------------------------------------------------------------------


def test_a_live_holder_on_another_host_is_refused(tmp_path, fast, caplog):
    path = write_lock(tmp_path)
    with beating(path), refused(), lock_workdir(tmp_path):
        pass
    assert holder(tmp_path) == 17
    assert files(tmp_path) == ["lock"]
    assert caplog.messages == [
        f"{path} is held by process 17 on elsewhere; is it alive? waiting 1.5 s"
    ]


def test_a_silent_holder_on_another_host_is_watched_and_taken_for_dead(tmp_path, fast):
    write_lock(tmp_path)
    start = time.monotonic()
    with lock_workdir(tmp_path):
        assert time.monotonic() - start > 1.5
        assert_held_by_us(tmp_path)


@pytest.mark.parametrize("comes", [False, True])
def test_a_lock_released_while_we_watch(tmp_path, process, monkeypatch, comes):
    path, other, sleep = write_lock(tmp_path), process(tmp_path), time.sleep

    def release(seconds):
        monkeypatch.setattr(time, "sleep", sleep)
        path.unlink()
        assert not comes or other.start().line() == "held"

    monkeypatch.setattr(time, "sleep", release)
    if comes:
        with refused(by=f"process {other.pid} "), lock_workdir(tmp_path):
            pass
        assert holder(tmp_path) == other.pid
    else:
        with lock_workdir(tmp_path):
            assert_held_by_us(tmp_path)


@pytest.mark.parametrize("content", [b'{"pid": 1', b"[1]", b"\xff\x00", b"{}"])
def test_a_damaged_lock_blocks_only_while_it_beats(tmp_path, fast, monkeypatch, content):
    monkeypatch.setattr(module, "BEAT", 1.0)
    path = tmp_path / "lock"
    path.write_bytes(content)
    with beating(path), refused(by="another process"), lock_workdir(tmp_path):
        pass
    with lock_workdir(tmp_path):
        assert_held_by_us(tmp_path)


def test_without_flock_the_beat_decides(tmp_path, fast, no_flock):
    path = write_lock(tmp_path, boot=module.boot_id())
    with beating(path), refused(), lock_workdir(tmp_path):
        pass
    with lock_workdir(tmp_path):
        assert holder(tmp_path) == os.getpid()
        with refused(by=f"process {os.getpid()} "), lock_workdir(tmp_path):
            pass
    assert files(tmp_path) == []


def test_of_two_hosts_that_take_over_at_once_the_last_has_it(tmp_path, fast, monkeypatch):
    path, sleep = write_lock(tmp_path), time.sleep

    def other_host(seconds):
        sleep(seconds)
        if seconds == module.BEAT / 5:  # we have just written our name
            assert holder(tmp_path) == os.getpid()
            write_lock(tmp_path)
            stack.enter_context(beating(path))
            monkeypatch.setattr(time, "sleep", sleep)

    monkeypatch.setattr(time, "sleep", other_host)
    with contextlib.ExitStack() as stack, refused(), lock_workdir(tmp_path):
        pass
    assert holder(tmp_path) == 17


def test_it_beats_and_survives_a_failing_beat(tmp_path, fast, monkeypatch):
    utime, calls = os.utime, []

    def failing(*args):
        calls.append(args)
        if len(calls) % 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        utime(*args)

    with lock_workdir(tmp_path):
        monkeypatch.setattr(os, "utime", failing)
        utime(tmp_path / "lock", (0, 0))
        deadline = time.monotonic() + 30
        while (tmp_path / "lock").stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "lock").stat().st_mtime > 0
    num_calls = len(calls)
    time.sleep(0.3)
    assert len(calls) == num_calls >= 2


# --- What is left -------------------------------------------------------------------------


def test_a_directory_of_ours_goes_if_the_body_leaves_no_file(tmp_path):
    (tmp_path / "old").mkdir()
    for name in ("old", "new"):
        with pytest.raises(OSError, match="the body's"), lock_workdir(tmp_path / name):
            raise OSError("the body's")
    assert files(tmp_path) == ["old"]
    with lock_workdir(tmp_path / "new"):
        (tmp_path / "new" / "config.json").write_text("{}")
    assert files(tmp_path / "new") == ["config.json"]


def test_the_lock_of_who_took_us_for_dead_stays(tmp_path):
    with lock_workdir(tmp_path):
        write_lock(tmp_path)
    assert files(tmp_path) == ["lock"]


def test_a_lock_that_cannot_be_removed_does_not_hide_the_error_of_the_body(tmp_path, monkeypatch):
    def fail(path, missing_ok=False):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(pathlib.Path, "unlink", fail)
    with pytest.raises(OSError, match="the body's"), lock_workdir(tmp_path):
        raise OSError("the body's")


def test_ctrl_c_while_watching_leaves_the_lock_alone(tmp_path, monkeypatch):
    write_lock(tmp_path)

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt), lock_workdir(tmp_path):
        pass
    assert holder(tmp_path) == 17


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
