"""A file keeps whole lines, also when writing ends in the middle of one."""

import errno
import os
import sys

import pytest

from transformer.inference.output import open_output
from transformer.system.errors import UserError

GONE = OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    ("error", "can_cut"), [(KeyboardInterrupt(), True), (GONE, True), (GONE, False)]
)
def test_what_the_note_does_not_count_goes(error, can_cut, tmp_path, monkeypatch):
    path, write = tmp_path / "out.txt", os.write

    def half(descriptor, data):
        if bytes(data) == b"three\nfour\n":
            return write(descriptor, data[:8])
        raise error

    def fail(*_):
        raise GONE

    def write_all():
        with open_output(str(path), sys.stdout, sys.stdin) as output:
            output.begin(lambda: {})
            if not output.done.lines:
                output.write("one\ntwo\n", 2, "a")
                monkeypatch.setattr(os, "write", half)
                if not can_cut:
                    monkeypatch.setattr(os, "ftruncate", fail)
            output.write("three\nfour\n", 4, "b")

    expected = UserError if error is GONE else KeyboardInterrupt
    with pytest.raises(expected, match=r"^$|^cannot write .*out\.txt: Input/output error; mend"):
        write_all()
    assert path.read_text() == "one\ntwo\n" + ("" if can_cut else "three\nfo")
    monkeypatch.undo()
    write_all()
    assert path.read_text() == "one\ntwo\nthree\nfour\n"
    assert [x.name for x in tmp_path.iterdir()] == ["out.txt"]
