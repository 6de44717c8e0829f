import os
import re
import sys
import threading
import time

from transformer.system.terminal import (
    escape_standard_output,
    go_on_without_readers,
    printable,
    say,
    signs_of_life,
)


def test_control_characters_are_escaped():
    assert printable("a\x1b[31m\r\t\x00\x7f\x9b") == r"a\x1b[31m\r\t\x00\x7f\x9b"
    assert printable("\u202eabc\u2028") == r"\u202eabc\u2028"
    harmless = "Ünï “x” 你好 👩\u200d🔬 क्\u200dष"  # with joiners
    assert printable(harmless) == harmless


def test_messages_are_on_standard_error(capsys, monkeypatch):
    say("two\nlines \x1b")
    assert capsys.readouterr() == ("", "two\nlines \\x1b\n")
    monkeypatch.setattr(sys, "stderr", None)  # closed
    say("nothing")
    assert capsys.readouterr().out == ""


def test_what_is_printed_to_a_terminal_is_escaped(monkeypatch):
    ours, theirs = os.openpty()
    with open(theirs, "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        escape_standard_output()
        print("two\nlines \x1b[31m", flush=True)
    with open(ours, "rb", buffering=0) as terminal:  # a read may end within a line
        lines = [terminal.readline(), terminal.readline()]
    assert lines == [b"two\r\n", b"lines \\x1b[31m\r\n"]


def test_a_file_is_not_escaped(tmp_path, monkeypatch):
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        escape_standard_output()
        print("\x1b\udce9")
    assert (tmp_path / "file").read_text() == "\x1b\\udce9\n"


def test_work_goes_on_without_readers(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        go_on_without_readers()
        for _ in range(3):
            print("x" * 100_000, flush=True)
    with open("/dev/full", "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        go_on_without_readers()
        print("x", flush=True)


def test_signs_of_life(capsys):
    told = threading.Event()

    def how_far() -> str:
        told.set()
        return "half"

    with signs_of_life("counting", how_far, seconds=0.01):
        assert told.wait(30)
    assert re.match(r"counting: 0 s, half\n", capsys.readouterr().err)
    told.clear()

    def fails() -> str:
        told.set()
        raise NotImplementedError("**")

    with signs_of_life("counting", fails, seconds=0.01):
        assert told.wait(30)
        time.sleep(0.05)
    assert set(capsys.readouterr().err.splitlines()) == {"counting: 0 s"}
    before = threading.active_count()
    with signs_of_life("nothing"):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    assert capsys.readouterr().err == ""
