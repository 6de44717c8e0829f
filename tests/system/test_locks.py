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
from transformer.system.locks import lock_workdir

ROOT = pathlib.Path(__file__).parents[2]
# Says "ready", starts at a line of input, holds the lock until the end of it.
HOLDER = """
import pathlib, sys
from transformer.system.errors import UserError
from transformer.system.locks import lock_workdir

print("ready", flush=True)
sys.stdin.readline()
try:
    with lock_workdir(pathlib.Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.read()
except UserError as error:
    print(error, flush=True)
"""


class Process:
    """A process that runs HOLDER, or another script."""

    def __init__(self, workdir, script=HOLDER):
        self._popen = subprocess.Popen(
            [sys.executable, "-c", script, workdir],
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

        def start(*args):
            process = Process(*args)
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


def write_lock(workdir, silent=0.0, boot="another"):
    """The lock of a process that gave its last sign so many seconds ago."""
    path = workdir / "lock"
    path.write_text(json.dumps({"pid": 17, "host": "elsewhere", "boot": boot}))
    os.utime(path, (time.time() - silent,) * 2)
    return path


def files(directory):
    return sorted(path.name for path in directory.iterdir())


def assert_held_by_us(workdir):
    holder = json.loads((workdir / "lock").read_text())
    assert holder["pid"] == os.getpid()
    assert holder["host"] == socket.gethostname()
    assert files(workdir) == ["lock"]
    with (workdir / "lock").open("r+") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def assert_taken_at_once(workdir, capfd):
    start = time.monotonic()
    with lock_workdir(workdir):
        assert_held_by_us(workdir)
    assert time.monotonic() - start < 4  # it watches for 20 s, and a beat takes 5
    assert capfd.readouterr().out == ""


# --- On one host --------------------------------------------------------------------------


def test_a_live_holder_is_named_and_stays(tmp_path, process):
    holder = process(tmp_path).start()
    assert holder.line() == "held"
    message = (
        f"^{tmp_path} is in use by process {holder.pid} on {socket.gethostname()}, which trains in "
        "it; wait for it, stop it, or give another --workdir$"
    )
    with pytest.raises(UserError, match=message), lock_workdir(tmp_path):
        pass
    assert files(tmp_path) == ["lock"]
    holder.end()
    assert files(tmp_path) == []


def test_a_killed_holder_does_not_block(tmp_path, process, capfd):
    holder = process(tmp_path).start()
    assert holder.line() == "held"
    holder.kill()
    assert files(tmp_path) == ["lock"]
    assert_taken_at_once(tmp_path, capfd)


def test_a_child_of_a_killed_holder_does_not_block(tmp_path, process, capfd):
    child = '    import subprocess; child = subprocess.Popen(["cat"], close_fds=False)\n'
    script = HOLDER.replace('        print("held"', f'    {child}        print("held"')
    holder = process(tmp_path, script).start()
    assert holder.line() == "held"
    holder.kill()  # cat lives until its input ends, in close()
    assert_taken_at_once(tmp_path, capfd)


@pytest.mark.parametrize("dead", [False, True])
def test_one_of_many_that_start_at_once_wins(tmp_path, process, dead):
    workdir = tmp_path / "new"
    if dead:
        workdir.mkdir()
        write_lock(workdir, boot=module._boot_id())
    processes = [process(workdir) for _ in range(6)]
    for each in processes:
        each.start()
    lines = [each.line() for each in processes]
    assert lines.count("held") == 1, lines
    assert sum("is in use by" in line for line in lines) == 5, lines
    winner = processes[lines.index("held")]
    assert json.loads((workdir / "lock").read_text())["pid"] == winner.pid
    assert files(workdir) == ["lock"]
    winner.end()


@pytest.mark.parametrize("again", [False, True])
def test_a_lock_that_is_released_while_it_is_being_locked(tmp_path, process, monkeypatch, again):
    path = write_lock(tmp_path, boot=module._boot_id())
    holder, flock = process(tmp_path), fcntl.flock

    def late(file, operation):
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            monkeypatch.setattr(fcntl, "flock", flock)
            path.unlink()
            assert not again or holder.start().line() == "held"
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    if again:
        with pytest.raises(UserError, match=f"process {holder.pid} "), lock_workdir(tmp_path):
            pass
        assert json.loads(path.read_text())["pid"] == holder.pid
    else:
        with lock_workdir(tmp_path):
            assert_held_by_us(tmp_path)


def test_a_lock_that_is_made_or_released_while_it_is_looked_for(tmp_path, process, monkeypatch):
    path, holder = tmp_path / "lock", process(tmp_path)
    real = os.link

    def made(*names):
        monkeypatch.setattr(os, "link", real)
        assert holder.start().line() == "held"
        return real(*names)

    monkeypatch.setattr(os, "link", made)
    with pytest.raises(UserError, match=f"process {holder.pid} "), lock_workdir(tmp_path):
        pass

    def released(*names):
        monkeypatch.setattr(os, "link", real)
        try:
            return real(*names)
        finally:
            holder.end()

    monkeypatch.setattr(os, "link", released)
    with lock_workdir(tmp_path):
        assert_held_by_us(tmp_path)
    assert not path.exists()


def test_a_file_system_without_links(tmp_path, process, monkeypatch):
    def link(*names):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    with lock_workdir(tmp_path):
        assert_held_by_us(tmp_path)
        other = process(tmp_path).start()
        assert "is in use by" in other.line()
    assert files(tmp_path) == []


def test_who_takes_a_dead_lock_over_is_named_not_the_dead(tmp_path, monkeypatch):
    path = write_lock(tmp_path, boot=module._boot_id())
    with path.open("r+") as dead:
        fcntl.flock(dead, fcntl.LOCK_EX)

        def take_over(seconds):
            path.unlink()
            path.write_text(json.dumps({"pid": 23, "host": "here", "boot": "this"}))

        monkeypatch.setattr(time, "sleep", take_over)
        with pytest.raises(UserError, match="process 23 on here"), lock_workdir(tmp_path):
            pass


def test_the_process_itself_is_refused_too(tmp_path):
    with lock_workdir(tmp_path):
        with pytest.raises(UserError, match=f"process {os.getpid()} "), lock_workdir(tmp_path):
            pass
        assert_held_by_us(tmp_path)


def test_importing_it_does_not_import_jax():
    script = (
        "import transformer.system.locks, sys; print({'jax', 'numpy', 'absl'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == "set()\n", run.stderr


# --- Beyond flock -------------------------------------------------------------------------


def test_a_long_silent_holder_on_another_host_does_not_block(tmp_path, capfd):
    write_lock(tmp_path, silent=21)
    assert_taken_at_once(tmp_path, capfd)


def test_a_live_holder_on_another_host_is_refused(tmp_path, fast, capfd):
    path = write_lock(tmp_path)
    with (
        beating(path),
        pytest.raises(UserError, match="is in use by process 17 on elsewhere, "),
        lock_workdir(tmp_path),
    ):
        pass
    assert json.loads(path.read_text())["pid"] == 17
    assert files(tmp_path) == ["lock"]
    assert capfd.readouterr().out == (
        "lock     held by process 17 on elsewhere; is it alive? waiting up to 1.5 s\n"
    )


@pytest.mark.parametrize("silent", [0.3, -3600], ids=["just silent", "its time is in the future"])
def test_a_holder_on_another_host_that_falls_silent_is_waited_for(tmp_path, fast, silent, capfd):
    write_lock(tmp_path, silent)
    start = time.monotonic()
    with lock_workdir(tmp_path):
        assert time.monotonic() - start > 1.5 - max(silent, 0) - 0.1
        assert_held_by_us(tmp_path)
    assert capfd.readouterr().out.count("\n") == 1


def test_the_clock_of_this_host_does_not_matter(tmp_path, fast, monkeypatch):
    path = write_lock(tmp_path)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    with beating(path), pytest.raises(UserError, match="in use"), lock_workdir(tmp_path):
        pass


def test_a_holder_that_comes_while_we_watch_is_refused(tmp_path, process, monkeypatch):
    path = write_lock(tmp_path)
    holder = process(tmp_path)

    def come(seconds):
        path.unlink()
        assert holder.start().line() == "held"

    monkeypatch.setattr(time, "sleep", come)
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: None)  # it is on another host
    with pytest.raises(UserError, match=f"process {holder.pid} "), lock_workdir(tmp_path):
        pass
    assert json.loads(path.read_text())["pid"] == holder.pid


def test_a_lock_released_while_we_watch_is_free(tmp_path, monkeypatch):
    path = write_lock(tmp_path)
    monkeypatch.setattr(time, "sleep", lambda seconds: path.unlink())
    with lock_workdir(tmp_path):
        assert_held_by_us(tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"pid": 1', b"[1]", b"\xff\x00", b"{}"])
def test_a_damaged_lock_blocks_only_while_it_beats(tmp_path, fast, content, capfd):
    path = tmp_path / "lock"
    path.write_bytes(content)
    refused = pytest.raises(UserError, match="is in use by another process, ")
    with beating(path), refused, lock_workdir(tmp_path):
        pass
    os.utime(path, (time.time() - 3,) * 2)
    capfd.readouterr()
    assert_taken_at_once(tmp_path, capfd)


def test_without_flock_the_beat_decides(tmp_path, fast, no_flock, capfd):
    path = write_lock(tmp_path, boot=module._boot_id())
    with beating(path), pytest.raises(UserError, match="in use"), lock_workdir(tmp_path):
        pass
    with lock_workdir(tmp_path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
        with pytest.raises(UserError, match="in use"), lock_workdir(tmp_path):
            pass
    assert files(tmp_path) == []


def test_of_two_hosts_that_take_over_at_once_the_last_has_it(tmp_path, monkeypatch):
    path = write_lock(tmp_path, silent=21)
    sleep = time.sleep

    def other_host(seconds):
        path.unlink()
        write_lock(tmp_path)
        sleep(0)

    monkeypatch.setattr(time, "sleep", other_host)
    with pytest.raises(UserError, match="process 17 on elsewhere"), lock_workdir(tmp_path):
        pass
    assert json.loads(path.read_text())["pid"] == 17


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


def test_what_the_body_wrote_stays(tmp_path):
    with lock_workdir(tmp_path / "new"):
        (tmp_path / "new" / "config.json").write_text("{}")
    assert files(tmp_path / "new") == ["config.json"]


def test_a_directory_of_ours_goes_if_the_body_fails_without_a_file(tmp_path):
    (tmp_path / "old").mkdir()
    for name in ("old", "new"):
        with pytest.raises(OSError, match="the body's"), lock_workdir(tmp_path / name):
            raise OSError("the body's")
    assert files(tmp_path) == ["old"]
    assert files(tmp_path / "old") == []


def test_the_lock_of_who_took_us_for_dead_stays(tmp_path):
    with lock_workdir(tmp_path):
        (tmp_path / "lock").unlink()
        write_lock(tmp_path)
    assert files(tmp_path) == ["lock"]


def test_a_directory_that_vanished_is_no_error(tmp_path):
    with lock_workdir(tmp_path / "new"):
        (tmp_path / "new" / "lock").unlink()
        (tmp_path / "new").rmdir()


def test_a_lock_that_cannot_be_removed_does_not_hide_the_error_of_the_body(tmp_path, monkeypatch):
    unlink = pathlib.Path.unlink

    def fail(path, missing_ok=False):
        if path.name == "lock":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        unlink(path, missing_ok)

    monkeypatch.setattr(pathlib.Path, "unlink", fail)
    with pytest.raises(OSError, match="the body's"), lock_workdir(tmp_path):
        raise OSError("the body's")


def test_ctrl_c_while_watching_leaves_the_lock_alone(tmp_path, monkeypatch):
    path = write_lock(tmp_path)

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt), lock_workdir(tmp_path):
        pass
    assert files(tmp_path) == ["lock"]
    assert json.loads(path.read_text())["pid"] == 17


@pytest.mark.parametrize("workdir", ["file", "file/below"])
def test_a_file_as_the_directory(tmp_path, workdir):
    (tmp_path / "file").write_text("")
    message = f"cannot write {tmp_path}/{workdir}/lock: Not a directory; mend that, or give"
    with pytest.raises(UserError, match=message), lock_workdir(tmp_path / workdir):
        pass


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_does_not_let_us(tmp_path, monkeypatch, code):
    def fail(descriptor):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    message = f"cannot write {tmp_path}/new/lock: {os.strerror(code)}; mend that"
    with pytest.raises(UserError, match=message), lock_workdir(tmp_path / "new"):
        pass
    assert files(tmp_path) == []
