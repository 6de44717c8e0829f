import gzip
import hashlib
import io
import lzma
import os

import pyarrow
import pytest

from transformer.data import text_files
from transformer.data.text_files import (
    blocks_of_lines,
    count_and_hash,
    count_lines,
    lines_as_they_come,
    open_text,
    packed,
    read_lines,
)
from transformer.system.errors import UserError


@pytest.fixture
def write(tmp_path):
    """Writes bytes to a file and returns its path; compressed if the name ends in .gz."""

    def write_file(content: bytes, name: str = "a") -> str:
        path = tmp_path / name
        path.write_bytes(packed(name, content))
        return str(path)

    return write_file


INSIDE = "\x0b \x0c \x1c \x1d \x1e \x85 \u2028 \u2029 \r a"  # no line ends


@pytest.mark.parametrize("name", ["a", "a.gz", "A.GZ"])
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\r\ntwo\r", ["one", "two"]),
        (b"\xef\xbb\xbfone\r\ntwo", ["one", "two"]),  # byte-order mark
        (b"\xef\xbb\xbf", [""]),
        (b"", []),
        (f"{INSIDE}\nb".encode(), [INSIDE, "b"]),
        # Empty lines, spaces, a mark that is not at the start of the file, a second \r.
        (b"\n  a \t\n\xef\xbb\xbfb\n\r\r\n", ["", "  a \t", "\ufeffb", "\r"]),
    ],
)
def test_lines(write, name, content, lines, monkeypatch):
    path = write(content, name)
    assert list(read_lines(path)) == lines
    whole = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    for size in (3, 1 << 20):  # bytes that are read at once
        monkeypatch.setattr("transformer.data.text_files._MANY_LINES", size)
        assert count_and_hash(path) == (len(lines), whole)
    assert count_and_hash(path, counts=str.strip) == (sum(map(bool, map(str.strip, lines))), whole)
    for size in (1, 2, 5):
        with open_text(path) as file:
            blocks = list(blocks_of_lines(file, "a", size))
        assert blocks == [lines[i : i + size] for i in range(0, len(lines), size)]


def test_the_hash_is_of_the_lines(write):
    same = [b"one\ntwo\n", b"one\ntwo", b"\xef\xbb\xbfone\r\ntwo\r\n"]
    other = [b"one\ntwo\n\n", b"onet\nwo\n", b"one\n\ntwo\n", b"two\none\n"]
    hashes = [count_and_hash(write(content))[1] for content in (*same, *other)]
    assert len(hashes[0]) == 64
    assert len(set(hashes[:3])) == 1
    assert len(set(hashes)) == 5
    assert count_and_hash(write(same[0], "a.gz"))[1] == hashes[0]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"\xff\xfea\0\n\0", "line 1, byte 1 is 0xff"),  # UTF-16
        (b"a\nb\nab\xe9c\nd\n", "line 3, byte 3 is 0xe9"),  # Latin-1
        (b"a\n\xc3\nb", "line 2, byte 1 is 0xc3"),  # cut in the middle
        (b"a\n" * 100_000 + b"b\xff", "line 100001, byte 2 is 0xff"),
        (b"a\xed\xa0\x80\n", "line 1, byte 2 is 0xed"),  # a surrogate
    ],
)
def test_invalid_utf8(content, where):
    with pytest.raises(UserError) as error:
        list(blocks_of_lines(io.BytesIO(content), "standard input", 7))
    assert str(error.value) == f"standard input is not UTF-8: {where}; convert it to UTF-8"


def test_a_file_without_line_feeds_is_not_read_whole(write, monkeypatch):
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 5)
    assert list(read_lines(write(b"a\nabcd\nabcd"))) == ["a", "abcd", "abcd"]
    with pytest.raises(UserError, match="a, line 2 is longer than 5 bytes; give text with one sen"):
        list(read_lines(write(b"a\n" + b"abcde" * 1000)))


def test_packed_as_other_programs_read_it():
    assert gzip.decompress(packed("a.GZ", b"x")) == lzma.decompress(packed("a.xz", b"x")) == b"x"
    assert pyarrow.decompress(packed("a.zst", b"x"), 1, "zstd", asbytes=True) == b"x"
    assert packed("a.txt", b"x") == b"x"


@pytest.mark.parametrize("damage", ["no gzip", "cut", "sum", "block"])
def test_damaged_gzip(tmp_path, damage):
    path = tmp_path / "a.gz"
    whole = gzip.compress(b"a\n" * 1000)
    content = {
        "no gzip": b"plain\n",
        "cut": whole[:-9],
        "sum": whole[:-8] + b"\0\0\0\0" + whole[-4:],  # the check sum, then the length
        "block": whole[:10] + b"\xff" + whole[11:],  # the first after the header
    }
    path.write_bytes(content[damage])
    with pytest.raises(UserError, match=rf"^{path} is damaged or not a gzip file: .*$"):
        list(read_lines(path))


def test_files_that_cannot_be_read(write, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=rf"^cannot read {tmp_path}/b.gz: No such file"):
        count_and_hash(f"{tmp_path}/b.gz")
    with pytest.raises(UserError, match=rf"^cannot read {tmp_path}: Is a directory$"):
        open_text(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(UserError, match=rf"^{path} is not a file; give a file, plain"):
            count_and_hash(str(path))

    def refuse(path, mode):
        raise PermissionError(13, "Permission denied", path)

    path = write(b"a\n")
    monkeypatch.setattr("builtins.open", refuse)  # not by its mode: root may read everything
    with pytest.raises(UserError, match=rf"^cannot read {path}: Permission denied$"):
        open_text(path)


# --- Lines as they come -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "a.gz", "a.xz", "a.zst"])
def test_lines_as_they_come(write, name):
    path = write(f"\ufeffone\r\n\n{INSIDE}\n".encode() + b"\xff\ntwo", name)
    with open_text(path) as file:
        assert count_lines(file, path) == 4
        assert os.path.samestat(os.fstat(file.fileno()), os.stat(path))
        *lines, bad, last = lines_as_they_come(file, "a")
    assert lines == ["one", "", INSIDE]
    assert str(bad).startswith("a is not UTF-8: line 4, byte 1 is 0xff")
    assert last == "two"


def test_a_pipe_is_read_as_far_as_there_is_something():
    receiver, sender = os.pipe()
    with open(receiver, "rb") as file:
        assert count_lines(file, "pipe") == 0
        lines = lines_as_they_come(file, "pipe")
        assert next(lines) is None
        os.write(sender, b"one\ntwo\nth")
        assert [next(lines) for _ in range(3)] == ["one", "two", None]
        os.write(sender, b"ree")
        os.close(sender)
        assert list(lines) == ["three"]


def test_a_line_without_end_is_passed_over(monkeypatch):
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 100_000)
    content = b"one\n" + b"x" * 1_000_000 + b"\ntwo\n" + b"y" * 1_000_000
    one, long, two, last = lines_as_they_come(io.BytesIO(content), "a")
    assert (one, two) == ("one", "two")
    assert str(long).startswith("a, line 2 is longer than 100000 bytes")
    assert str(last).startswith("a, line 4 is longer than 100000 bytes")
