import dataclasses
import errno
import functools
import json
import logging
import os
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from transformer.data import token_cache as module
from transformer.data.sentencepiece import SentencePieceTokenizer, train_sentencepiece
from transformer.data.sources import PairSource
from transformer.data.subword_nmt import train_subword_nmt
from transformer.data.token_cache import TokenizedPairs, token_cache
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import EOS
from transformer.system.errors import UserError

NO_LIMITS = {"max_source_length": None, "max_target_length": None}
ROOT = pathlib.Path(__file__).parents[2]


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


def many_pairs() -> Pairs:
    return Pairs([("abcd" * (i % 5), "wxyz" * (i % 7)) for i in range(100)])


def texts(cache: TokenizedPairs) -> list[tuple[str, str]]:
    return [
        (
            tokenizers().source.decode(cache.source(i)),
            tokenizers().target.decode(cache.target(i)),
        )
        for i in range(len(cache))
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
    cache = token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
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
        "pairs": 3, "empty": 0, "source_too_long": 0, "target_too_long": 0, "total": 3,
    }  # fmt: skip
    with pytest.raises(ValueError, match="read-only"):
        cache.source_tokens[0] = 7


def test_filter(tmp_path):
    kept = [("abc", "xyz"), ("a", "w")]
    dropped = [
        ("", "w"), ("a", ""), (" \t", "w"), ("", ""), ("", "wxyzw"),  # empty
        ("abcd", "w"), ("abcda", "wxyzw"),  # source too long: 6 tokens and more
        ("a", "wxyz"),  # target too long
    ]  # fmt: skip
    pairs = Pairs([kept[0], *dropped, kept[1]])
    cache = token_cache(
        pairs, tokenizers(), cache_dir=tmp_path, max_source_length=5, max_target_length=5
    )
    assert texts(cache) == kept
    assert cache.report == {
        "pairs": 2, "empty": 5, "source_too_long": 2, "target_too_long": 1, "total": 10,
    }  # fmt: skip


def test_summary(tmp_path):
    pairs = Pairs([("a", "w")] * 1234 + [("", "w"), ("abcd", "w"), ("a", "wxyz")])
    cache = token_cache(pairs, tokenizers(), tmp_path, 5, 5)
    assert cache.summary == (
        "1,234 of 1,237 pairs; dropped: 1 empty, 1 source too long, 1 target too long"
    )


def test_one_limit_alone(tmp_path):
    pairs = Pairs([("abcd", "w"), ("", "w"), ("a", "wxyz")])
    cache = token_cache(
        pairs, tokenizers(), cache_dir=tmp_path, max_source_length=None, max_target_length=5
    )
    assert texts(cache) == [("abcd", "w")]


def test_nothing_left(tmp_path):
    pairs = Pairs([("", "w"), ("abcd", "w"), ("a", "wxyz"), ("a", "xxxx")])
    with pytest.raises(UserError) as error:
        token_cache(
            pairs, tokenizers(), cache_dir=tmp_path, max_source_length=5, max_target_length=5
        )
    assert one_line(error) == (
        "no pair is left of the test pairs (empty: 1, source_too_long: 1, target_too_long: 2); "
        "see data.max_source_length and data.max_target_length"
    )
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65536, np.uint16), (65537, np.int32)])
def test_token_type(tmp_path, vocab_size, dtype):
    large = SentencePieceTokenizer(tokenizers().source.model_bytes)
    large.vocab_size = vocab_size
    both = Tokenizers(large, tokenizers().target)
    cache = token_cache(Pairs([("ab", "w")]), both, cache_dir=tmp_path, **NO_LIMITS)
    assert (cache.source_tokens.dtype, cache.target_tokens.dtype) == (dtype, np.uint16)
    assert cache.source(0).tolist() == [*large.encode("ab"), EOS]


def test_a_sentence_may_be_long(tmp_path):
    pairs = Pairs([("ab" * 50_000, "w")])
    cache = token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    assert cache.source_lengths.tolist() == [100_002]


def test_chunks_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 7)
    cache = token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    assert texts(cache) == many_pairs().pairs


# --- When it is made and when it is found -------------------------------------------------


def test_it_is_made_once(tmp_path):
    pairs = many_pairs()
    first = token_cache(pairs, tokenizers(), cache_dir=tmp_path / "new", **NO_LIMITS)
    again = token_cache(pairs, tokenizers(), cache_dir=tmp_path / "new", **NO_LIMITS)
    assert pairs.num_reads == 1
    assert texts(again) == texts(first)
    assert again.report == first.report


def test_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    token_cache(many_pairs(), tokenizers(), cache_dir="~/cache", **NO_LIMITS)
    assert cache_directory(tmp_path / "cache").is_dir()


def test_each_part_of_the_key_counts(tmp_path, monkeypatch):
    limits = {"max_source_length": 9, "max_target_length": 9}
    both = source, target = tokenizers()

    def count(fingerprint="f1", tokenizers=both, **changes):
        pairs = Pairs([("ab", "w")], fingerprint)
        token_cache(pairs, tokenizers, cache_dir=tmp_path, **limits | changes)
        return len([path for path in tmp_path.iterdir() if path.is_dir()])

    assert count() == 1
    assert count("f2") == 2
    assert count(tokenizers=Tokenizers(source, source)) == 3
    assert count(tokenizers=Tokenizers(target, target)) == 4
    assert count(max_source_length=8) == 5
    assert count(max_target_length=8) == 6
    assert count(**NO_LIMITS) == 7
    assert count(sampling_alpha=0.1) == 8
    assert count(sampling_alpha=0.2) == 9
    assert count(sampling_alpha=0.2, num_samples=3) == 10
    assert count() == 10
    monkeypatch.setattr(module, "_FORMAT", 2)
    assert count() == 11


def test_sampling(tmp_path, monkeypatch):
    """Each pair several times, every time split otherwise; the same in any number of processes."""
    monkeypatch.setattr(module, "_CHUNK", 7)
    words = ["low", "lower", "newest", "widest"]
    lines = [" ".join(words[i % 4 :] + words[: i % 3]) for i in range(17)]
    pairs = Pairs([(line, line.upper()) for line in lines])
    sources, targets = zip(*pairs.pairs)
    both = Tokenizers(
        train_sentencepiece(sources, vocab_size=290, model_type="bpe"),
        # With the symbols of other words, so that not all splits are of unknown ones.
        train_subword_nmt([*targets, "WOL REWOL OWE LOWT STIDE NEWID"], num_merges=20),
    )
    sampling = {"sampling_alpha": 0.3, "num_samples": 3}
    one, other = (
        token_cache(pairs, both, tmp_path / name, 30, 60, num_processes=count, **sampling)
        for name, count in (("a", 0), ("b", 2))
    )
    for name in ("source_tokens", "source_offsets", "target_tokens", "target_offsets"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.report["total"] == one.report["pairs"] == len(one) == 51
    for tokenizer, side, texts in (
        (both.source, one.source, sources),
        (both.target, one.target, targets),
    ):
        ids = [tuple(side(i)) for i in range(51)]
        assert [tokenizer.decode(i) for i in ids] == 3 * list(texts)
        assert len({tuple(ids[i : i + 17]) for i in (0, 17, 34)}) == 3


def test_source_and_target_are_sampled_apart(tmp_path):
    lines = ["lower newest widest"] * 20
    tokenizer = train_sentencepiece(lines, vocab_size=275, model_type="bpe")
    both, pairs = Tokenizers(tokenizer, tokenizer), Pairs(list(zip(lines, lines)))
    cache = token_cache(pairs, both, tmp_path, sampling_alpha=0.3, **NO_LIMITS)
    assert cache.source_tokens.tolist() != cache.target_tokens.tolist()


def test_the_same_segmentation_again_is_another_cache(tmp_path):
    for count in (1, 3):
        cache = token_cache(many_pairs(), tokenizers(), tmp_path, num_samples=count, **NO_LIMITS)
        assert len(cache) == 100 * count


@pytest.mark.parametrize("name", [f"{side}_{what}" for side in ("source", "target")
                                  for what in ("tokens", "offsets")])  # fmt: skip
@pytest.mark.parametrize("change", [-1, +1, None])
def test_a_damaged_file_is_seen(tmp_path, caplog, name, change):
    pairs = many_pairs()
    token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    path = cache_directory(tmp_path) / f"{name}.bin"
    size = path.stat().st_size
    if change is None:
        path.unlink()
    else:
        os.truncate(path, size + change)
    with caplog.at_level(logging.WARNING, logger="absl"):
        cache = token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    (message,) = caplog.messages
    assert message.startswith(f"token cache {path.parent} is damaged and made again: ")
    assert path.name in message
    assert texts(cache) == pairs.pairs
    assert path.stat().st_size == size
    assert pairs.num_reads == 2


@pytest.mark.parametrize(
    "meta", ["", "{", "[]", "{}", '{"arrays": {}, "report": {}}', "[" * 100_000]
)
def test_damaged_meta(tmp_path, caplog, meta):
    pairs = many_pairs()
    token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    path = cache_directory(tmp_path) / "meta.json"
    path.write_text(meta)
    with caplog.at_level(logging.WARNING, logger="absl"):
        cache = token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    assert "is damaged and made again" in caplog.text
    assert texts(cache) == pairs.pairs
    assert json.loads(path.read_text())["report"] == cache.report


@pytest.mark.parametrize("dtype", ["object", "float16", "(1 2)i4"])
def test_arrays_of_another_type_are_not_read(tmp_path, dtype):
    # The bytes of "object" would be taken for pointers.
    pairs = Pairs([("abc", "xyz")] * 8)
    token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    path = cache_directory(tmp_path) / "meta.json"
    meta = json.loads(path.read_text())
    assert meta["arrays"]["source_tokens"] == ["uint16", 40]
    meta["arrays"]["source_tokens"] = [dtype, 10 if dtype == "object" else 40]
    path.write_text(json.dumps(meta))
    cache = token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    assert texts(cache) == pairs.pairs


@pytest.mark.parametrize("offsets", [[1, 4, 10], [0, 10, 4], [0, 0, 10], [0, 4, 9], [4, 10, 0]])
def test_offsets_that_cannot_be(tmp_path, offsets):
    pairs = Pairs([("ab", "w"), ("abcd", "w")])
    token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    path = cache_directory(tmp_path) / "source_offsets.bin"
    assert np.fromfile(path, np.int64).tolist() == [0, 4, 10]
    np.array(offsets).tofile(path)
    cache = token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    assert cache.source_offsets.tolist() == [0, 4, 10]


@pytest.mark.parametrize("report", [None, {}, {"pairs": 99}, {"pairs": 101}, {"total": "100"}])
def test_a_report_that_cannot_be(tmp_path, report):
    pairs = many_pairs()
    made = token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    path = cache_directory(tmp_path) / "meta.json"
    meta = json.loads(path.read_text())
    meta["report"] = meta["report"] | report if report else report
    path.write_text(json.dumps(meta))
    assert token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS).report == made.report


# --- Failures while it is made ------------------------------------------------------------


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk(tmp_path, monkeypatch, error_number):
    monkeypatch.setattr(module, "_CHUNK", 25)
    pairs = Pairs([("ab", "w")] * 100)

    def append(files, chunk, append=module._Files.append):
        if files.num_bytes > 1000:
            raise OSError(error_number, os.strerror(error_number))
        append(files, chunk)

    with monkeypatch.context() as patch:
        patch.setattr(module._Files, "append", append)
        with pytest.raises(UserError) as error:
            token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    # 4 and 3 tokens of 2 bytes and 2 offsets of 8 a pair, 16 for the first offsets; twice
    # what 50 pairs took.
    assert one_line(error) == (
        f"no space left for the token cache in {tmp_path} (it needs about 3,032 bytes); free "
        "some, or choose another directory"
    )
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    cache = token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    assert len(cache) == 100


def test_a_disk_that_is_full_from_the_start(tmp_path, monkeypatch):
    def write(files, chunk):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module._Files, "append", write)
    with pytest.raises(UserError) as error:
        token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    assert one_line(error) == (
        f"no space left for the token cache in {tmp_path}; free some, or choose another directory"
    )


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as error:
        token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path / "file", **NO_LIMITS)
    assert one_line(error) == f"cannot write the token cache in {tmp_path}/file: File exists"


@pytest.mark.parametrize("num_processes", [0, 1])
def test_a_source_that_fails(tmp_path, monkeypatch, num_processes):
    monkeypatch.setattr(module, "_CHUNK", 2)

    class Failing(Pairs):
        def chunks(self, size):
            yield self.pairs[:size]
            raise UserError("changed while it was read")

    with pytest.raises(UserError, match=r"^changed while it was read$"):
        token_cache(
            Failing(many_pairs().pairs), tokenizers(), cache_dir=tmp_path, **NO_LIMITS,
            num_processes=num_processes,
        )  # fmt: skip
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def leave(cache_dir: pathlib.Path, key: str, host: str, age: float = 0) -> pathlib.Path:
    path = cache_dir / f"{key}.123.{host}.tmp"
    path.mkdir()
    (path / "source_tokens.bin").write_bytes(b"abc")
    for changed in (path / "source_tokens.bin", path):
        os.utime(changed, (time.time() - age,) * 2)
    return path


def test_leftovers(tmp_path):
    here, key = socket.gethostname(), "0123456789abcdef" * 2
    dead = leave(tmp_path, key, here)
    dead_elsewhere = leave(tmp_path, key, "other.host-1", age=4000)
    alive_elsewhere = leave(tmp_path, key, "other.host-2", age=3000)
    alive = leave(tmp_path, key[::-1], here)
    not_ours = tmp_path / "mine.tmp"
    not_ours.mkdir()
    with open(tmp_path / f"{key[::-1]}.lock", "w") as lock:
        module.fcntl.flock(lock, module.fcntl.LOCK_EX)
        token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    paths = [dead, dead_elsewhere, alive_elsewhere, alive, not_ours]
    assert [path.exists() for path in paths] == [False, False, True, True, True]


def test_without_file_locks(tmp_path, monkeypatch, caplog):
    def flock(file, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(module.fcntl, "flock", flock)
    left = leave(tmp_path, "0123456789abcdef" * 2, socket.gethostname())
    pairs = many_pairs()
    cache = token_cache(pairs, tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    assert texts(cache) == pairs.pairs
    assert left.exists()  # nothing says whether its builder is dead
    assert caplog.messages == [f"no file locks in {tmp_path}: Function not implemented"]


def test_two_builders_without_file_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_lock", lambda file, directory: False)
    files = []

    class Slow(Pairs):
        def chunks(self, size):
            # Another process, with another process id, finishes first.
            with monkeypatch.context() as patch:
                patch.setattr(module.os, "getpid", lambda: 7)
                token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
            (made,) = tmp_path.glob("*/meta.json")
            files.append(made.stat().st_ino)
            yield from super().chunks(size)

    cache = token_cache(Slow(many_pairs().pairs), tokenizers(), cache_dir=tmp_path, **NO_LIMITS)
    assert texts(cache) == many_pairs().pairs
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".lock"]
    assert files == [(cache_directory(tmp_path) / "meta.json").stat().st_ino]


# --- Several processes --------------------------------------------------------------------


def test_the_number_of_processes_does_not_matter(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 7)
    contents = []
    for n in (0, 1, 3):
        token_cache(
            many_pairs(), tokenizers(), cache_dir=tmp_path / str(n), num_processes=n,
            max_source_length=14, max_target_length=18,
        )  # fmt: skip
        directory = cache_directory(tmp_path / str(n))
        contents.append({path.name: path.read_bytes() for path in directory.iterdir()})
    assert len(contents[0]) == 5
    assert contents[0] == contents[1] == contents[2]
    # Of 100 numbers: multiples of 5 or 7; of the others, those with remainder 4 by 5; of the
    # others, those with remainder 5 or 6 by 7.
    assert json.loads(contents[0]["meta.json"])["report"] == {
        "pairs": 34, "empty": 32, "source_too_long": 17, "target_too_long": 17, "total": 100,
    }  # fmt: skip


def test_processes_for_large_sources_only(tmp_path, monkeypatch):
    used = []

    def encoded(source, encoder, num_processes, encoded=module._encoded):
        used.append(num_processes)
        return encoded(source, encoder, 0)

    monkeypatch.setattr(module, "_encoded", encoded)
    monkeypatch.setattr(module, "_cpu_count", lambda: 3)
    monkeypatch.setattr(module, "_LARGE", 99)
    token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path / "a", **NO_LIMITS)
    monkeypatch.setattr(module, "_LARGE", 100)
    token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path / "b", **NO_LIMITS)
    monkeypatch.setattr(module, "_LARGE", 99)
    monkeypatch.setattr(module, "_cpu_count", lambda: 1000)
    token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path / "c", **NO_LIMITS)
    assert used == [3, 0, 16]


# A run of token_cache in a process of its own. Like a notebook, and like train.py where the
# flags are not parsed yet, it must not be imported again by the processes it starts.
SCRIPT = """
import os, pathlib, signal, sys, time
sys.path.insert(0, {root!r})
from tests import test_token_cache as t
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
                (worker, ) = module.multiprocessing.active_children()
                print(worker.pid, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

while action == "race" and not (directory / "go").exists():
    time.sleep(0.01)
cache = module.token_cache(
    Pairs(t.many_pairs().pairs), t.tokenizers(), cache_dir=directory / "cache",
    num_processes=0 if action == "race" else 1, **t.NO_LIMITS,
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
    processes = [start("race") for _ in range(3)]
    started = tmp_path / "started"
    while not started.exists() or started.read_text() != "xxx":
        time.sleep(0.01)
    (tmp_path / "go").touch()
    assert [process.communicate(timeout=60)[0] for process in processes] == ["100 True\n"] * 3
    assert (tmp_path / "reads").read_text() == "x"  # the others waited
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == ["", ".lock"]


def test_the_main_script_is_not_imported_by_workers(tmp_path, start):
    assert start("run").communicate(timeout=60)[0] == "100 True\n"
    assert (tmp_path / "started").read_text() == "x"


def test_workers_do_not_import_jax():
    pool = module._worker_pool(module._Encoder(tokenizers(), None, None, 0.0), 1)
    with pool:
        modules = pool.submit(eval, "[*__import__('sys').modules]").result()
    assert "transformer.data.token_cache" in modules
    assert not {"jax", "tensorflow", "tensorflow_datasets"} & set(modules)


def test_a_killed_builder(tmp_path, start):
    process = start("kill")
    worker = int(process.communicate(timeout=60)[0])
    assert process.returncode == -9
    (left,) = (tmp_path / "cache").glob("*.tmp")

    cache = token_cache(many_pairs(), tokenizers(), cache_dir=tmp_path / "cache", **NO_LIMITS)
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
