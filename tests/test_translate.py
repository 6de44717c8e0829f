"""translate.py as a process: pipes, files, signals and terminals. Its model writes capitals."""

import contextlib
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from scripts import Result, assert_refused, environment, run, succeeded

SHIM = """
import os

import echo_model
from transformer.commands import translate
from transformer.runs import cli
from transformer.inference import engine

engine.LINES_AT_ONCE = 8
seconds = float(os.environ.get("SECONDS_A_LINE", 0))
model = echo_model.trained(echo_model.WORDS, lambda _, line: line.upper(), 8, seconds)
translate.restore_model = lambda: model
cli.run(translate.main)
"""
LINES = [f"line {i}" for i in range(40)]
TEXT = "".join(f"{line}\n" for line in LINES)


@pytest.fixture
def script(tmp_path) -> Path:
    (tmp_path / "in").write_text(TEXT)
    (tmp_path / "shim.py").write_text(SHIM)
    return tmp_path / "shim.py"


@pytest.fixture
def translate(script):
    """translate(*arguments, stdin=b"") -> the result."""

    def translate_here(*arguments: str, stdin: bytes = b"") -> Result:
        return run(str(script), *arguments, cwd=script.parent, stdin=stdin)

    return translate_here


@contextlib.contextmanager
def at_work(script: Path, stdin: Path, stdout: Path) -> Iterator[Future[Result]]:
    """While it works, with these pipes or terminals."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(run, str(script), cwd=script.parent, stdin=stdin, stdout=stdout)


# --- Pipes and signals --------------------------------------------------------------------


def test_a_line_in_an_open_pipe_is_answered(script):
    there, back = script.parent / "there", script.parent / "back"
    os.mkfifo(there)
    os.mkfifo(back)
    with (
        at_work(script, there, back) as result,
        there.open("wb", buffering=0) as stdin,
        back.open("rb", buffering=0) as stdout,
    ):
        for line in (b"one\n", b"two\nthree\n"):
            stdin.write(line)
            assert stdout.read(len(line)) == line.upper()
        stdin.write(b"no end")
        stdin.close()
        assert stdout.read() == b"NO END\n"
        assert result.result(60) == (0, b"", "")


def test_ctrl_c_keeps_what_is_translated(script, translate):
    """And the same command continues it, when the process has ended."""
    output, note = script.parent / "out", script.parent / ".out.unfinished"
    arguments = ["--input=in", "--output=out"]
    with subprocess.Popen(
        [sys.executable, script, *arguments],
        cwd=script.parent,
        env=os.environ | environment() | {"SECONDS_A_LINE": "0.05"},
        stderr=subprocess.PIPE,
    ) as popen:
        deadline = time.monotonic() + 60
        while not (note.exists() and '"lines": 8' in note.read_text()):
            assert popen.poll() is None, popen.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        popen.send_signal(signal.SIGSTOP)
        assert_refused(translate(*arguments), "out is being written by another process")
        popen.send_signal(signal.SIGINT)
        popen.send_signal(signal.SIGCONT)
        assert popen.wait() == 130
        message = popen.stderr.read().decode()
    lines = output.read_text().splitlines()
    assert lines == [line.upper() for line in LINES[: len(lines)]]
    assert message == f"{output} has {len(lines)} lines; the same command continues it\n"
    assert 0 < len(lines) < len(LINES)
    assert note.exists()
    assert_refused(
        translate(*arguments, "--nbest=2"), "out is unfinished", "(nbest was 1 and is 2)"
    )
    assert succeeded(translate(*arguments)).err == ""
    assert output.read_text() == TEXT.upper()
    assert not note.exists()


def test_standard_output_that_fails(script):
    """Closed, and with a reader who has seen enough."""
    closed = f"{shlex.quote(sys.executable)} shim.py --input=in >&-"
    variables = {"cwd": script.parent, "env": os.environ | environment()}
    done = subprocess.run(["sh", "-c", closed], capture_output=True, text=True, **variables)
    assert_refused(Result(done.returncode, b"", done.stderr), "standard output is closed; leave it")
    script.write_text("import os; ends = os.pipe(); os.close(ends[0]); os.dup2(ends[1], 1)" + SHIM)
    assert run(str(script), "--input=in", cwd=script.parent) == (0, b"", "")


# --- What --output names ------------------------------------------------------------------


def test_pipes_and_devices_are_written_to(script, translate):
    os.mkfifo(script.parent / "pipe")
    received = []
    reader = threading.Thread(
        target=lambda: received.append((script.parent / "pipe").read_text()), daemon=True
    )
    reader.start()
    succeeded(translate("--input=in", "--output=pipe"))
    reader.join(60)
    assert received == [TEXT.upper()]
    assert (script.parent / "pipe").is_fifo()
    succeeded(translate("--input=in", "--output=/dev/null"))
    assert not Path("/dev/null").is_file()
    assert_refused(
        translate("--input=in", "--output=/dev/full"), "cannot write /dev/full: No space left"
    )
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        assert translate("--input=in", f"--output={name}") == (0, TEXT.upper().encode(), "")
    assert sorted(path.name for path in script.parent.iterdir()) == ["in", "pipe", "shim.py"]


def test_links_are_followed_and_permissions_kept(script, translate):
    folder = script.parent
    (folder / "there").mkdir()
    (folder / "there" / "file").write_text("old and longer than what is new" * 99)
    (folder / "there" / "file").chmod(0o640)
    (folder / "hard").hardlink_to(folder / "there" / "file")
    (folder / "link").symlink_to("there/file")
    succeeded(translate("--input=in", "--output=link"))
    assert (folder / "link").is_symlink()
    assert (folder / "hard").read_text() == TEXT.upper()
    assert (folder / "hard").stat().st_mode & 0o777 == 0o640
    (folder / "to nothing").symlink_to("there/new")
    succeeded(translate("--input=in", "--output=to nothing"))
    assert (folder / "there" / "new").read_text() == TEXT.upper()
    assert sorted(path.name for path in (folder / "there").iterdir()) == ["file", "new"]


def test_outputs_that_are_refused(script, translate):
    folder = script.parent
    (folder / "same").symlink_to("in")
    (folder / "loop").symlink_to("loop")
    (folder / "read-only").write_text("mine")
    (folder / "read-only").chmod(0o400)
    for output in ("in", "same", "./in"):
        assert_refused(translate("--input=in", f"--output={output}"), "the output is the input fi")
    refused = ["loop", ".", "in/new", "/proc/new"]
    if os.geteuid():  # root may write all
        refused.append("read-only")
    for output in refused:
        assert_refused(translate("--input=in", f"--output={output}"), "cannot", output)
    assert (folder / "in").read_text() == TEXT
    assert (folder / "read-only").read_text() == "mine"
    names = ["in", "loop", "read-only", "same", "shim.py"]
    assert sorted(path.name for path in folder.iterdir()) == names


# --- Lines --------------------------------------------------------------------------------


def test_bad_and_long_lines(translate):
    stdin = b"one\n\xff\n" + b"one two three. " * 20_000 + b"\ntwo\n"
    result = translate(stdin=stdin)
    assert_refused(result, "standard input is not UTF-8: line 2, byte 1 is 0xff")
    assert result.out == b"ONE\n"
    result = succeeded(translate("--skip_bad_lines", stdin=stdin))
    assert result.out.split(b"\n") == [
        b"ONE",
        b"",
        b"ONE TWO THREE. " * 19_999 + b"ONE TWO THREE.",
        b"TWO",
        b"",
    ]
    skipped, long = sorted(result.err.splitlines())
    assert skipped.startswith("warning: passed over: standard input is not UTF-8: line 2")
    assert long == (
        "warning: standard input, line 3 is longer than 7 tokens; it is translated in pieces"
    )
    cut = succeeded(translate("--skip_bad_lines", "--long_lines=cut", stdin=stdin))
    assert cut.out.split(b"\n")[2] == b"ONE TWO THREE. ONE TWO THREE. ONE"
    refused = translate("--long_lines=refuse", "--skip_bad_lines", stdin=stdin)
    assert refused.out == b"ONE\n\n\nTWO\n"


# --- Terminals ----------------------------------------------------------------------------


def test_the_prompt(script):
    """Of a terminal: a line, an escape, no text, the end."""
    ours, theirs = pty.openpty()
    terminal = Path(os.ttyname(theirs))
    with at_work(script, terminal, terminal) as result:
        shown = b""

        def read_until(text: bytes) -> None:
            nonlocal shown
            while text not in shown:
                assert select.select([ours], [], [], 60)[0], shown
                shown += os.read(ours, 1000)
            shown = shown.partition(text)[2]

        read_until(b"> ")
        os.write(ours, b"one two\n")
        read_until(b"ONE TWO\r\n> ")
        os.write(ours, "a\u202eb\n".encode())
        read_until(b"A\\u202eB\r\n> ")
        os.write(ours, b"\xff\n")
        read_until(b"\r\n\r\n> ")
        os.write(ours, b"\x04")
        code, _, messages = result.result(60)
        assert code == 0
        assert messages.splitlines() == [
            "compiling ...",
            "ready: one sentence a line; Ctrl-D ends",
            "warning: passed over: line 3 is not UTF-8; type it again",
            "",
        ]
    os.close(theirs)
    os.close(ours)
