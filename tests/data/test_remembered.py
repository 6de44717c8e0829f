"""Facts about large data, found once."""

import os
import time

import numpy as np
import pytest

from transformer.data import remembered as module
from transformer.data.batches import PackedPairs
from transformer.data.pairs import TextPairs
from transformer.data.remembered import of_file, remembered
from transformer.data.text_files import count_and_hash
from transformer.data.tokenizers import TokenizerConfig, get_tokenizers


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder in which all facts are kept, however quickly they are found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr(module, "_WORTH", 0)
    return tmp_path / "caches" / "transformer-jax" / "data"


def facts(number):
    return {"number": np.array(number), "text": np.array("ü")}


def fail():
    pytest.fail("it is found a second time")


def damaged_directory(whole, place, byte):
    """The first entry of a zip file's directory with another byte."""
    at = whole.index(b"PK\1\2") + place
    return whole[:at] + byte + whole[at + 1 :]


def test_facts_are_found_once_and_again_where_the_file_is_damaged(kept, monkeypatch):
    assert remembered(["a", 1], lambda: facts(1)).keys() == {"number", "text"}
    assert int(remembered(["a", 1], fail)["number"]) == 1
    assert int(remembered(["a", 2], lambda: facts(2))["number"]) == 2
    for path in kept.iterdir():
        whole = path.read_bytes()
        for damaged in (
            whole[:-9],
            whole[:80] + b"!" + whole[81:],
            b"",
            whole.replace(b"\1", b"\7"),
            damaged_directory(whole, 10, b"\x63"),  # an unknown way to pack
            damaged_directory(whole, 8, b"\x01"),  # encrypted
            damaged_directory(whole, 30, b"\x36"),  # the next entry passes for a comment
        ):
            path.write_bytes(damaged)
            found = remembered(["a", 1], lambda: facts(1)), remembered(["a", 2], lambda: facts(2))
            assert [(int(x["number"]), str(x["text"])) for x in found] == [(1, "ü"), (2, "ü")], (
                damaged
            )
    assert len(list(kept.iterdir())) == 2  # and no temporary file


def test_facts_that_are_not_kept(kept, monkeypatch):
    monkeypatch.setattr(module, "_WORTH", 9.0)
    remembered(["quick"], lambda: facts(1))
    assert not kept.exists()
    monkeypatch.setattr(module, "_WORTH", 0)
    monkeypatch.setattr(module, "_MOST_BYTES", 2000)
    for number in range(5):
        remembered([number], lambda: facts(number))  # noqa: B023
        time.sleep(0.01)
    remembered([4], fail)
    assert len(list(kept.iterdir())) == 2
    kept.chmod(0o500)
    assert int(remembered(["no place"], lambda: facts(3))["number"]) == 3
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert int(remembered(["no home"], lambda: facts(4))["number"]) == 4


def test_a_file_that_changes_is_read_again(kept, tmp_path):
    path = tmp_path / "text"

    def write(content, seconds_ago=60):
        path.write_text(content)
        os.utime(path, (time.time() - seconds_ago,) * 2)

    def settled(found):
        """As if the file had been changed a while ago: ctime cannot be set."""
        real = time.time
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module.time, "time", lambda: real() + 60)
            return found()

    write("one\n")
    assert of_file(str(path), ["x"], lambda: facts(1))["number"] == 1
    assert not kept.exists()  # it has changed just now
    assert settled(lambda: of_file(str(path), ["x"], lambda: facts(2)))["number"] == 2
    assert settled(lambda: of_file(str(path), ["x"], fail))["number"] == 2
    write("two\n")  # of the same size, and with an old time stamp
    assert settled(lambda: of_file(str(path), ["x"], lambda: facts(3)))["number"] == 3

    def changed_meanwhile():
        write("three\n")
        return facts(4)

    assert settled(lambda: of_file(str(path), ["y"], changed_meanwhile))["number"] == 4
    assert settled(lambda: of_file(str(path), ["y"], lambda: facts(5)))["number"] == 5
    with pytest.raises(FileNotFoundError):
        of_file(str(tmp_path / "gone"), ["x"], (tmp_path / "gone").read_bytes)


def test_a_second_start_finds_the_same_hash_tokenizer_and_rows(kept, tmp_path, monkeypatch):
    lines = [f"word{i % 7} and word{i % 11}\n" for i in range(300)]
    for side in ("source", "target"):
        (tmp_path / side).write_text("".join(lines))
    real = time.time
    monkeypatch.setattr(module.time, "time", lambda: real() + 60)
    config = TokenizerConfig("bpe", 280, False, 1000, 0.0, 1, None, None, target_model_type="word")

    def start():
        pairs = TextPairs([str(tmp_path / "source")], [str(tmp_path / "target")])
        tokenizers = get_tokenizers(tmp_path / "run", config, pairs)
        lengths = np.arange(1, 61, dtype=np.int32) % 9 + 1
        rows = PackedRowsOf(lengths)
        return pairs.fingerprint, tokenizers.sha256, len(pairs), rows.pairs_by_row.tolist()

    class PackedRowsOf(PackedPairs):
        def __init__(self, lengths):
            super(PackedPairs, self).__init__((lengths, lengths), (20, 20), 2 * lengths, 3, True)

    first = start()
    monkeypatch.setattr("transformer.data.text_files._count_and_hash", lambda *_: fail())
    monkeypatch.setattr("transformer.data.tokenizers._train", lambda *_: fail())
    monkeypatch.setattr("transformer.data.rows.pack", lambda *_: fail())
    assert start() == first
    monkeypatch.undo()
    assert count_and_hash(str(tmp_path / "source"))[0] == 300
