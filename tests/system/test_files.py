import errno
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from transformer.system import files
from transformer.system.errors import UserError
from transformer.system.files import check_can_write, write_atomically, write_named


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


def test_permissions_stay_and_links_of_others_are_not_followed(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "a.txt").chmod(0o640)
    (tmp_path / "victim").write_text("precious")
    files.temporary_beside(tmp_path / "a.txt").symlink_to("victim")
    write_atomically(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "victim").read_text() == "precious"


# --- Files that a user names --------------------------------------------------------------


def test_what_is_no_plain_file_is_written_to(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    os.link(tmp_path / "target", tmp_path / "other name")
    write_named(tmp_path / "link", "new ä")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "other name").read_text() == "new ä"
    (tmp_path / "dangling").symlink_to("folder/new")
    write_named(tmp_path / "dangling", "new")
    assert (tmp_path / "folder" / "new").read_text() == "new"

    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_named(tmp_path / "pipe", "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    write_named(Path("/dev/null"), "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_what_cannot_be_written_is_known_before(tmp_path, monkeypatch):
    def refused(name, reason, *endings):
        before = sorted(tmp_path.iterdir())
        with pytest.raises(UserError, match=reason):
            check_can_write(tmp_path / name, *endings)
        if not endings:
            with pytest.raises(UserError, match=reason):
                write_named(tmp_path / name, "new")
        assert sorted(tmp_path.iterdir()) == before

    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "file").write_text("old")
    refused("folder", "cannot write .*folder: Is a directory; make room for it, or name another")
    refused("circle", "circle: Too many levels of symbolic links")
    refused("file/x", "Not a directory")
    refused("config.json", "must end in .png or .svg", ".png", ".svg")
    refused("x" * 300, "File name too long")
    check_can_write(Path("/dev/null"), ".png")
    with pytest.raises(UserError, match="cannot write /dev/full: No space left on device"):
        write_named(Path("/dev/full"), "new")
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for a user who is not root
    refused("file", "cannot write .*file: Permission denied")
    assert (tmp_path / "file").read_text() == "old"


# --- What killed processes leave ----------------------------------------------------------


@pytest.fixture
def dead():
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def beside(path, process, host="") -> Path:
    """A temporary file of a process: of this host, or of another."""
    own = files.temporary_beside(path).name
    name = own.replace(f".{os.getpid()}.", f".{process}.")
    return path.with_name(name.replace(f".{files.host_id()}.", host or f".{files.host_id()}."))


def test_what_dead_processes_left_is_removed(tmp_path, dead):
    day = files.ABANDONED
    alive, other = os.getpid(), ".0badcafe."
    table = [  # path, the age of the file, whether it stays
        (beside(tmp_path / "a", dead), 0, False),
        (beside(tmp_path / "eval/a", dead), 0, False),
        (beside(tmp_path / "b", alive), 99 * day, False),  # the number is another's now
        (beside(tmp_path / "c", alive), 0, True),
        (beside(tmp_path / "d", alive), day - 1000, True),  # or the clock was put forward
        (beside(tmp_path / "e", dead, other), day - 1000, True),  # alive there, as far as we know
        (beside(tmp_path / "f", dead, other), day + 1000, False),
        (tmp_path / f"g.{dead}.tmp", day - 1000, True),  # of earlier versions
        (tmp_path / f"h.{dead}.tmp", day + 1000, False),
        (tmp_path / "notes.tmp", 9 * day, True),
        (tmp_path / "2024.tmp", 9 * day, True),
        (tmp_path / f"i.{dead}.txt", 9 * day, True),
    ]
    for path, age, _ in table:
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (0, time.time() - age))
    victim = tmp_path / "victim"
    victim.mkdir()
    beside(tmp_path / "k", dead).symlink_to(victim)
    files.remove_leftovers(tmp_path.rglob("*.tmp"))
    assert [path.exists() for path, _, _ in table] == [stays for _, _, stays in table]
    assert victim.exists()
    assert not beside(tmp_path / "k", dead).is_symlink()
    files.remove_leftovers((tmp_path / "missing").rglob("*.tmp"))
