import os
import sys

from transformer.system.terminal import is_terminal, printable, say


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


def test_a_terminal():
    ours, theirs = os.openpty()
    assert is_terminal(lambda: theirs)
    os.close(theirs)
    os.close(ours)
    assert not is_terminal(lambda: theirs)
