import errno
import os

import pytest

from transformer.system.errors import UserError
from transformer.system.files import write_atomically


def test_text_is_utf8_and_line_ends_stay(tmp_path):
    write_atomically(tmp_path / "new" / "a.txt", "ä\r\n\u2028")
    assert (tmp_path / "new" / "a.txt").read_bytes() == b"\xc3\xa4\r\n\xe2\x80\xa8"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.txt"]


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/a\.txt: (Not a directory|File exists)"):
        write_atomically(tmp_path / "file" / "a.txt", "text")


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    write_atomically(tmp_path / "a.txt", "old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"a\.txt: No space left on device; make room"):
        write_atomically(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
