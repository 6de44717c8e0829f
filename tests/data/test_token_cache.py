import dataclasses
import errno
import functools
import logging
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from transformer.data import token_cache as module
from transformer.data import token_workers
from transformer.data.cleaning import OFF, Cleaning
from transformer.data.pairs import PairSource
from transformer.data.sentencepiece import SentencePieceTokenizer, train_sentencepiece
from transformer.data.subword_nmt import train_subword_nmt
from transformer.data.token_cache import TokenizedPairs
from transformer.data.token_files import TokenWriter
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import EOS
from transformer.system.errors import UserError
from transformer.system.files import ABANDONED

ROOT = pathlib.Path(__file__).parents[2]
ARRAYS = "source_tokens", "source_offsets", "target_tokens", "target_offsets"


@functools.cache
def tokenizers() -> Tokenizers:
    """One token for each character, and one for the space that starts a sentence."""
    source = train_sentencepiece(["abcd"], vocab_size=265, model_type="bpe")
    target = train_sentencepiece(["wxyz"], vocab_size=265, model_type="bpe")
    return Tokenizers(source, target)


@dataclasses.dataclass
class Pairs(PairSource):
    pairs: list[tuple[str, str]]
    fingerprint: str = "f1"
    num_reads: int = 0

    def __len__(self):
        return len(self.pairs)

    def chunks(self, size):
        self.num_reads += 1
        for i in range(0, len(self.pairs), size):
            yield self.pairs[i : i + size]

    def describe(self):
        return "the test pairs"


def token_cache(
    pairs: Pairs,
    tokenizers: Tokenizers,
    cache_dir: str | os.PathLike,
    max_lengths: tuple[int | None, int | None] = (None, None),
    sampling_alpha: float = 0.0,
    cleaning: Cleaning = OFF,
    **others: int,
) -> TokenizedPairs:
    encoder = token_workers.PairEncoder(tokenizers, max_lengths, sampling_alpha, cleaning=cleaning)
    return module.token_cache(pairs, encoder, cache_dir, **others)


def many_pairs() -> Pairs:
    return Pairs([("abcd" * (i % 5), "wxyz" * (i % 7)) for i in range(100)])


def texts(cache: TokenizedPairs) -> list[tuple[str, str]]:
    source, target = tokenizers()
    return [
        (source.decode(cache.source(i)), target.decode(cache.target(i))) for i in range(len(cache))
    ]


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def cache_directory(cache_dir: pathlib.Path) -> pathlib.Path:
    (directory,) = (path for path in cache_dir.iterdir() if path.is_dir())
    return directory


# --- What is in it ------------------------------------------------------------------------


def test_arrays(tmp_path):
    pairs = Pairs([("ab", "xyz"), ("", "w"), ("dcb", "")])
    cache = token_cache(pairs, tokenizers(), cache_dir=tmp_path)
    assert len(cache) == 3
    assert texts(cache) == pairs.pairs
    # The space, the characters, EOS; an empty line is EOS alone.
    assert cache.source_offsets.tolist() == [0, 4, 5, 10]
    assert cache.target_offsets.tolist() == [0, 5, 8, 9]
    assert cache.source_lengths.tolist() == [4, 1, 5]
    assert cache.target_lengths.tolist() == [5, 3, 1]
    assert cache.source(1).tolist() == cache.target(2).tolist() == [EOS]
    assert cache.source(0).tolist() == [*tokenizers().source.encode("ab"), EOS]
    assert cache.target(0).tolist() == [*tokenizers().target.encode("xyz"), EOS]
    assert cache.source_tokens.dtype == cache.target_tokens.dtype == np.uint16
    assert cache.source_offsets.dtype == np.int64
    assert cache.report == {
        "pairs": 3, "empty": 0, "source_too_long": 0, "target_too_long": 0, "source_cut": 0,
        "total": 3,
    }  # fmt: skip
    with pytest.raises(ValueError, match="read-only"):
        cache.source_tokens[0] = 7


def test_filter(tmp_path):
    kept = [("abc", "xyz"), ("a", "w")] * 600
    dropped = [
        ("", "w"), ("a", ""), (" \t", "w"), ("", ""), ("", "wxyzw"),  # empty
        ("abcd", "w"), ("abcda", "wxyzw"),  # source too long: 6 tokens and more
        ("a", "wxyz"),  # target too long
    ]  # fmt: skip
    pairs = Pairs([kept[0], *dropped, *kept[1:]])
    cache = token_cache(pairs, tokenizers(), tmp_path, (5, 5))
    assert texts(cache) == kept
    assert cache.summary == (
        "1,200 of 1,208 pairs; dropped: 5 empty, 2 source too long, 1 target too long"
    )
    cache = token_cache(pairs, tokenizers(), tmp_path, (None, 5))
    assert cache.report == {
        "pairs": 1201, "empty": 5, "source_too_long": 0, "target_too_long": 2, "source_cut": 0,
        "total": 1208,
    }  # fmt: skip


def test_nothing_left(tmp_path):
    pairs = Pairs([("", "w"), ("abcd", "w"), ("a", "wxyz"), ("a", "xxxx")])
    with pytest.raises(UserError) as error:
        token_cache(pairs, tokenizers(), tmp_path, (5, 5))
    assert one_line(error) == (
        "no pair is left of the test pairs (empty: 1, source_too_long: 1, target_too_long: 2); "
        "see data.max_source_length and data.max_target_length"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65536, np.uint16), (65537, np.int32)])
def test_token_type(tmp_path, vocab_size, dtype):
    large = SentencePieceTokenizer(tokenizers().source.model_bytes)
    large.vocab_size = vocab_size
    both = Tokenizers(large, tokenizers().target)
    cache = token_cache(Pairs([("ab", "w")]), both, cache_dir=tmp_path)
    assert (cache.source_tokens.dtype, cache.target_tokens.dtype) == (dtype, np.uint16)
    assert cache.source(0).tolist() == [*large.encode("ab"), EOS]


# --- When it is made and when it is found -------------------------------------------------


def test_it_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    pairs = many_pairs()
    first = token_cache(pairs, tokenizers(), cache_dir="~/new")
    again = token_cache(pairs, tokenizers(), cache_dir=tmp_path / "new")
    assert pairs.num_reads == 1
    assert texts(again) == texts(first)
    assert again.report == first.report


def test_each_part_of_the_key_counts(tmp_path, monkeypatch):
    limits = {"max_lengths": (9, 9)}
    both = source, target = tokenizers()

    def count(fingerprint="f1", tokenizers=both, **changes):
        pairs = Pairs([("ab", "w")], fingerprint)
        token_cache(pairs, tokenizers, cache_dir=tmp_path, **limits | changes)
        return len([path for path in tmp_path.iterdir() if path.is_dir()])

    assert count() == 1
    assert count("f2") == 2
    assert count(tokenizers=Tokenizers(source, source)) == 3
    assert count(tokenizers=Tokenizers(target, target)) == 4
    assert count(max_lengths=(8, 9)) == 5
    assert count(max_lengths=(9, 8)) == 6
    assert count(max_lengths=(None, None)) == 7
    assert count(sampling_alpha=0.1) == 8
    assert count(sampling_alpha=0.2) == 9
    assert count(sampling_alpha=0.2, num_samples=3) == 10
    assert count() == 10
    monkeypatch.setattr(module, "_FORMAT", 99)
    assert count() == 11


def test_sampling(tmp_path, monkeypatch):
    """Each pair several times, every time split otherwise; the same in any number of processes.

    Duplicates are dropped, so those of one time.
    """
    monkeypatch.setattr(module, "_CHUNK", 7)
    words = ["low", "lower", "newest", "widest"]
    lines = [" ".join(words[i % 4 :] + words[: i // 4]) for i in range(17)]
    unique = [(line, line.upper()) for line in lines]
    pairs, (sources, targets) = Pairs([*unique, *unique]), zip(*unique, strict=True)
    both = Tokenizers(
        train_sentencepiece(sources, vocab_size=290, model_type="bpe"),
        # With the symbols of other words, so that not all splits are of unknown ones.
        train_subword_nmt([*targets, "WOL REWOL OWE LOWT STIDE NEWID"], num_merges=20),
    )
    cleaning = Cleaning(drop_duplicates="pair")
    one, other = (
        token_cache(pairs, both, tmp_path / name, (99, 99), 0.3, cleaning, num_samples=3, **given)
        for name, given in (("a", {"num_processes": 0}), ("b", {"num_processes": 2}))
    )
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.report["total"] == 2 * one.report["duplicate"] == 2 * len(one) == 102
    for tokenizer, side, texts in (
        (both.source, one.source, sources),
        (both.target, one.target, targets),
    ):
        ids = [tuple(side(i)) for i in range(51)]
        assert [tokenizer.decode(i) for i in ids] == 3 * list(texts)
        assert len({tuple(ids[i : i + 17]) for i in (0, 17, 34)}) == 3
    # Source and target are split apart.
    same = Tokenizers(both.source, both.source), (None, None), 0.3
    chunk = token_workers.PairEncoder(*same)(0, [(line, line) for line in lines], 1)
    assert chunk.source_tokens.tolist() != chunk.target_tokens.tolist()


@pytest.mark.parametrize(
    ("name", "damage"),
    [(x, "one bit") for x in ARRAYS] + [(ARRAYS[0], x) for x in ("longer", "empty", "gone")],
)
def test_a_damaged_file_is_seen(tmp_path, caplog, name, damage):
    pairs = many_pairs()
    token_cache(pairs, tokenizers(), cache_dir=tmp_path)
    path = cache_directory(tmp_path) / f"{name}.bin"
    whole = path.read_bytes()
    at = len(whole) // 2
    flipped = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
    damaged = {"longer": whole + b"\0", "empty": b"", "one bit": flipped}
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(damaged[damage])
    with caplog.at_level(logging.WARNING, logger="absl"):
        cache = token_cache(pairs, tokenizers(), cache_dir=tmp_path)
    (message,) = caplog.messages
    assert message.startswith(f"token cache {path.parent} is damaged and made again: ")
    assert damage == "empty" or path.name in message
    assert texts(cache) == pairs.pairs
    assert path.read_bytes() == whole
    assert pairs.num_reads == 2


@pytest.mark.parametrize(
    "meta", ["", "{", "[]", "{}", '{"crc32": {}, "counts": {}}', "[" * 100_000, '{"crc32": 7}']
)
def test_damaged_meta(tmp_path, caplog, meta):
    pairs = many_pairs()
    made = token_cache(pairs, tokenizers(), cache_dir=tmp_path)
    path = cache_directory(tmp_path) / "meta.json"
    whole = path.read_text()
    path.write_text(meta)
    with caplog.at_level(logging.WARNING, logger="absl"):
        cache = token_cache(pairs, tokenizers(), cache_dir=tmp_path)
    assert "is damaged and made again" in caplog.text
    assert texts(cache) == pairs.pairs
    assert cache.report == made.report
    assert path.read_text() == whole


# --- Failures while it is made ------------------------------------------------------------


def test_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 25)
    pairs = Pairs([("ab", "w")] * 100)

    # 4 and 3 tokens of 2 bytes and 2 offsets of 8 a pair, 16 for the first offsets; twice what
    # 50 pairs took.
    for code, full, needed in (
        (errno.ENOSPC, 1000, " (it needs about 3,032 bytes)"),
        (errno.EDQUOT, 0, ""),
    ):

        def append(writer, chunk, append=TokenWriter.append, full=full, code=code):
            if writer.num_bytes > full:
                raise OSError(code, os.strerror(code))
            append(writer, chunk)

        with monkeypatch.context() as patch:
            patch.setattr(TokenWriter, "append", append)
            with pytest.raises(UserError) as error:
                token_cache(pairs, tokenizers(), cache_dir=tmp_path)
        assert one_line(error) == (
            f"no space left for the token cache in {tmp_path}{needed}; free some, or choose "
            "another directory"
        )
        assert list(tmp_path.iterdir()) == []
    assert len(token_cache(pairs, tokenizers(), cache_dir=tmp_path)) == 100


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as error:
        token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path / "file")
    assert one_line(error) == f"cannot write the token cache in {tmp_path}/file: File exists"


def test_a_source_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 2)

    class Failing(Pairs):
        def chunks(self, size):
            yield self.pairs[:size]
            raise UserError("changed while it was read")

    pairs = Failing(many_pairs().pairs)
    with pytest.raises(UserError, match=r"^changed while it was read$"):
        token_cache(pairs, tokenizers(), tmp_path, num_processes=1)
    assert list(tmp_path.iterdir()) == []


def test_leftovers(tmp_path):
    token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path)
    directory = cache_directory(tmp_path)
    (directory / "meta.json").unlink()

    def leave(name: str, age: float) -> pathlib.Path:
        path = tmp_path / name
        path.mkdir()
        (path / "source_tokens.bin").write_bytes(b"abc")
        for changed in (path / "source_tokens.bin", path):
            os.utime(changed, (time.time() - age,) * 2)
        return path

    other = "0123456789abcdef" * 2
    of_this_cache = leave(f"{directory.name}.12345678.tmp", age=0)
    dead = leave(f"{other}.12345678.tmp", age=2 * ABANDONED)
    alive = leave(f"{other}.87654321.tmp", age=ABANDONED / 2)
    not_ours = leave("mine.tmp", age=2 * ABANDONED)
    token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path)
    paths = [of_this_cache, dead, alive, not_ours]
    assert [path.exists() for path in paths] == [False, False, True, True]


# --- Several processes --------------------------------------------------------------------


def test_processes_for_large_sources_only(tmp_path, monkeypatch):
    used = []

    def encode(source, encoder, num_processes, encode=module.encode):
        used.append(num_processes)
        return encode(source, encoder, 0)

    monkeypatch.setattr(module, "encode", encode)
    for name, large, cores in (("a", 99, 3), ("b", 100, 3), ("c", 99, 1000)):
        monkeypatch.setattr(module, "_LARGE", large)
        monkeypatch.setattr(module, "available_cores", lambda cores=cores: cores)
        token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path / name)
    assert used == [3, 0, 16]


# A run of token_cache in a process of its own. Like a notebook, and like train.py where the
# flags are not parsed yet, it must not be imported again by the processes it starts.
SCRIPT = """
import multiprocessing, os, pathlib, signal, sys, time
sys.path.insert(0, {root!r})
sys.path.insert(0, {root!r} + "/tests/data")
import test_token_cache as t
from transformer.data import token_cache as module

directory, action = pathlib.Path(sys.argv[1]), sys.argv[2]
module._CHUNK = 7
with open(directory / "started", "a") as file:
    file.write("x")

class Pairs(t.Pairs):
    def chunks(self, size):
        with open(directory / "reads", "a") as file:
            file.write("x")
        for i, chunk in enumerate(super().chunks(size)):
            yield chunk
            if action == "race":
                time.sleep(0.05)
            if action == "kill" and i == 5:
                (worker, ) = multiprocessing.active_children()
                print(worker.pid, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

while action == "race" and not (directory / "go").exists():
    time.sleep(0.01)
cache = t.token_cache(
    Pairs(t.many_pairs().pairs), t.tokenizers(), cache_dir=directory / "cache",
    num_processes=0 if action == "race" else 1,
)
print(len(cache), t.texts(cache) == t.many_pairs().pairs)
"""


@pytest.fixture
def start(tmp_path):
    """Starts SCRIPT."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(ROOT)))
    processes = []

    def start_script(action: str) -> subprocess.Popen:
        command = [sys.executable, "-W", "error", str(script), str(tmp_path), action]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield start_script
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_processes_that_start_at_once(tmp_path, start):
    processes = [start("race") for _ in range(2)]
    started = tmp_path / "started"
    while not started.exists() or started.read_text() != "xx":
        time.sleep(0.01)
    (tmp_path / "go").touch()
    assert [process.communicate(timeout=60)[0] for process in processes] == ["100 True\n"] * 2
    assert (tmp_path / "reads").read_text() == "x"  # the others waited
    assert list((tmp_path / "cache").iterdir()) == [cache_directory(tmp_path / "cache")]


def test_workers_do_not_import_jax():
    encoder = token_workers.PairEncoder(tokenizers())
    with token_workers.worker_pool(encoder, 1) as pool:
        modules = pool.submit(eval, "[*__import__('sys').modules]").result()
    assert "transformer.data.token_workers" in modules
    assert not {"jax", "tensorflow", "tensorflow_datasets"} & set(modules)


def test_a_killed_builder(tmp_path, start):
    process = start("kill")
    worker = int(process.communicate(timeout=60)[0])
    assert process.returncode == -9
    assert (tmp_path / "started").read_text() == "x"  # workers do not import the main script
    (left,) = (tmp_path / "cache").glob("*.tmp")

    cache = token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path / "cache")
    assert texts(cache) == many_pairs().pairs
    assert not left.exists()
    deadline = time.monotonic() + 10
    while is_running(worker):
        assert time.monotonic() < deadline, "the worker outlives its parent"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # ended, but nobody has asked
