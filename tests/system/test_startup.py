import os
import signal
import subprocess
import sys

import pytest
from scripts import ROOT

from transformer import __main__
from transformer.system.startup import STOP_SIGNALS, listen_to_interrupts


@pytest.fixture
def listening(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # and back at the end
    listen_to_interrupts()
    yield
    signal.signal(signal.SIGINT, before)


class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_a_finalizer_is_not_lost(listening):
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    Finalized()  # nothing is raised here
    with pytest.raises(KeyboardInterrupt):
        signal.sigtimedwait([], 10)


PROGRAM = """
from transformer.system.startup import stop_when_told
stop_when_told()
print(flush=True)
import time
time.sleep(60)
"""


@pytest.mark.parametrize("number", [STOP_SIGNALS[0], signal.SIGINT])
def test_a_signal_during_the_start_ends_with_code_75(number):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.read(1)
        process.send_signal(number)
        assert process.wait(60) == 75
        assert process.stderr.read() == b""


@pytest.mark.parametrize("name", ["train", "sweep"])
def test_commands_that_have_nothing_to_save_yet_stop_so(name, monkeypatch):
    def told():
        raise InterruptedError

    monkeypatch.setattr(__main__, "stop_when_told", told)
    with pytest.raises(InterruptedError):
        __main__.main(name)


ANEW = """
import os
from transformer.system import startup
startup.stop_when_told()
execv = os.execv
def late(*command):
    os.kill(os.getpid(), 15)
    execv(*command)
os.execv = late
startup.use_huge_pages()
print("the signal is lost")
"""


def test_a_signal_while_the_process_starts_anew_is_not_lost():
    environment = {n: x for n, x in os.environ.items() if n != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", ANEW]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (75, b"", b"")


CLOSED = """
import os, sys
from transformer.system.startup import fill_closed_streams
fill_closed_streams()
print("nobody sees this", file=sys.stderr, flush=True)
assert sys.stdout is None
assert os.open("file", os.O_CREAT | os.O_WRONLY) > 2
"""


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path):
    command = f"exec {sys.executable} -c '{CLOSED}' <&- >&- 2>&-"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment).returncode == 0
    assert (tmp_path / "file").read_bytes() == b""


def test_nohup_is_respected():
    command = ["nohup", sys.executable, "-c", PROGRAM]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        process.stdout.read(1)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 75
