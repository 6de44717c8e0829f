"""What holds for any text, any corpus and any file, in cases that Hypothesis makes up."""

import ast
import collections
import gzip
import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripts import ROOT, Result, assert_refused, run
from test_batches import all_pairs, assert_equal, pairs_of
from test_tokenizers import small_tokenizer

from transformer.data.batches import (
    Batch,
    EvaluationBatches,
    Layout,
    PackedPairs,
    TrainingBatches,
    layout,
)
from transformer.data.pairs import TextPairs
from transformer.data.sentencepiece import MODEL_TYPES, train_sentencepiece
from transformer.data.token_cache import TokenizedPairs, token_cache
from transformer.data.token_workers import PairEncoder
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import BOS, EOS, PAD, UNK
from transformer.system.errors import UserError

# The same examples each time. To search further, turn derandomize off and max_examples up.
PROPERTY = settings(derandomize=True, database=None, deadline=None, max_examples=25)
FEWER = settings(PROPERTY, max_examples=10)


# --- Text ---------------------------------------------------------------------------------

ODD_PIECES = [
    *" \t\r\0\x0b\x0c\x1b\x1c\x1f\x7f\x85\xa0\u2028\u2029\u3000",  # no line ends of ours
    *"\xad\u200b\u200c\u200d\u200e\u200f\u202e\u2060\ufe0f\ufeff\ufffd\ufffe\uffff",  # unseen
    *["e\u0301", "\u0928\u094d\u200d\u0930", "\u05e9\u05dc", "\U0001f468\u200d\U0001f469"],
    *["\ufb01", "\u00bd", "\uac00", "\u1100\u1161", "\U0010ffff", "\U000f0000", "\U000f0001"],
    *["\u2581", "\u2585", "\u2047", "<s>", "</s>", "<pad>", "<unk>", "<0x41>", "<0xE2>"],
    *["the", " dog", "Katze", "a" * 99],
]  # fmt: skip
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\n")
TEXT = CHARACTERS | st.sampled_from(ODD_PIECES)
LINES = st.lists(TEXT, max_size=20).map("".join)
SURROGATES = st.characters(categories=["Cs"])
STRINGS = st.lists(TEXT | SURROGATES | st.just("\n"), max_size=20).map("".join)

WITHOUT_LOSS = [name for name in MODEL_TYPES if name != "word"]


def decoded(line: str) -> str:
    """What is documented to become of a text that is encoded and decoded."""
    return re.sub("[\ud800-\udfff]", "\ufffd", re.sub("[\r\n]", " ", line))


@pytest.mark.parametrize("model_type", WITHOUT_LOSS)
@PROPERTY
@given(STRINGS, st.booleans())
def test_decoding_gives_back_what_was_encoded(model_type, text, with_ends):
    tokenizer = small_tokenizer(model_type)
    ids = tokenizer.encode(text)
    assert all(UNK < i < tokenizer.vocab_size for i in ids)
    assert not {PAD, BOS, EOS, UNK} & set(ids)
    framed = [BOS, *ids, EOS, *ids, PAD] if with_ends else ids
    assert tokenizer.decode(framed) == decoded(text)


@pytest.mark.parametrize("model_type", WITHOUT_LOSS)
@FEWER
@given(st.lists(STRINGS, min_size=1, max_size=9), STRINGS, st.sampled_from([0.98, 0.99999, 1.0]))
@example(["ab" * 99], "", 0.98)  # of its characters, less than 2% are spaces
def test_a_vocabulary_of_any_text_loses_nothing(model_type, sentences, text, character_coverage):
    sentences = [*sentences, "ab"]
    options = {"model_type": model_type, "character_coverage": character_coverage}
    with pytest.raises(UserError) as error:
        train_sentencepiece(sentences, vocab_size=10_000, **options)
    # The advice in the error can be followed.
    largest = int(re.search(r"set tokenizer\.vocab_size to (\d+) or less", str(error.value))[1])
    tokenizer = train_sentencepiece(sentences, vocab_size=largest, **options)
    assert tokenizer.vocab_size == largest
    for line in (text, *sentences, " ", "a  b "):
        ids = tokenizer.encode(line)
        assert all(UNK < i < largest for i in ids)
        assert tokenizer.decode(ids) == decoded(line)


@PROPERTY
@given(st.lists(st.integers(0, 309), max_size=40))
def test_any_prediction_is_one_line_of_text(ids):
    text = small_tokenizer().decode(ids)
    assert not set(text) & set("\r\n")
    assert text.encode().decode() == text
    assert text == small_tokenizer().decode(itertools.takewhile(lambda i: i != EOS, ids))


# --- Batches ------------------------------------------------------------------------------


@st.composite
def corpora(draw) -> tuple[TokenizedPairs, int, int]:
    """Pairs in which no token but EOS occurs twice, and widths that hold each of them."""
    longest = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    lengths = draw(st.lists(st.tuples(*(st.integers(1, n) for n in longest)), min_size=1))
    extra = draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))
    widths = (max(side) + more for side, more in zip(zip(*lengths), extra))
    dtype = draw(st.sampled_from([np.uint16, np.int32]))
    first = 4 if dtype == np.uint16 else 70_000
    arrays = []
    for side in zip(*lengths):
        offsets = np.concatenate([[0], np.cumsum(side)])
        tokens = np.arange(first, first + offsets[-1]).astype(dtype)
        tokens[offsets[1:] - 1] = EOS
        first += len(tokens)
        arrays += [tokens, offsets]
    return TokenizedPairs(*arrays, report={}), *widths


SEEDS = st.integers(0, 2**31)
STEPS = st.integers(0, 999)
DEVICES = st.tuples(st.integers(0, 99), st.integers(1, 8))  # most tokens on each; how many


def layout_of(tokens_per_update: int, devices: tuple[int, int], widths: list[int]) -> Layout:
    max_tokens_per_device, num_shards = devices
    return layout(tokens_per_update, max_tokens_per_device, *widths, num_shards)


def flat(batch: Batch) -> Batch:
    return Batch(*(x.reshape(-1, x.shape[-1]) for x in batch))


def rows_of(batch: Batch) -> list[Batch]:
    """The rows of an update one by one; checks that the empty ones are the last."""
    batch = flat(batch)
    is_full = batch.src_segments_BS.any(axis=1)
    count = int(is_full.sum())
    assert is_full[:count].all()
    assert not any(x[count:].any() for x in batch)
    return [Batch(*(x[i : i + 1] for x in batch)) for i in range(count)]


@PROPERTY
@given(corpora(), st.integers(1, 200), DEVICES, SEEDS)
def test_every_epoch_holds_every_pair_once(corpus, tokens_per_update, devices, seed):
    pairs, *widths = corpus
    packed = PackedPairs(pairs, *widths, seed)
    rows_per_update = layout_of(tokens_per_update, devices, widths)
    batches = TrainingBatches(packed, rows_per_update, seed)
    wanted = collections.Counter(all_pairs(pairs))
    rows, step = [], 0
    while len(rows) < 3 * len(packed):
        update = rows_of(batches[step])
        assert len(update) == rows_per_update.rows
        assert batches[step].num_tokens == packed.num_tokens_of(batches.rows(step))
        numbers = packed.pairs_of(batches.rows(step))
        found = [pair for row in update for pair in pairs_of(row)]
        assert found == [all_pairs(pairs)[i] for i in numbers]
        rows += update
        step += 1
    for epoch in range(3):
        of_epoch = rows[epoch * len(packed) : (epoch + 1) * len(packed)]
        found = [pair for row in of_epoch for pair in pairs_of(row)]
        assert collections.Counter(found) == wanted


@PROPERTY
@given(corpora(), st.integers(1, 200), DEVICES, SEEDS, st.lists(STEPS, min_size=1, max_size=6))
def test_a_batch_is_a_function_of_seed_and_step(corpus, tokens_per_update, devices, seed, steps):
    pairs, *widths = corpus

    def batches() -> TrainingBatches:
        rows = layout_of(tokens_per_update, devices, widths)
        return TrainingBatches(PackedPairs(pairs, *widths, seed), rows, seed)

    asked_for = batches()
    for step in steps:
        assert_equal(asked_for[step], batches()[step])


@PROPERTY
@given(corpora(), st.integers(1, 200), DEVICES, DEVICES, SEEDS, STEPS)
def test_an_update_is_the_same_on_any_devices(corpus, tokens_per_update, one, other, seed, step):
    pairs, *widths = corpus
    packed = PackedPairs(pairs, *widths, seed)
    updates = []
    for devices in (one, other):
        rows = layout_of(tokens_per_update, devices, widths)
        batch = TrainingBatches(packed, rows, seed)[step]
        assert {x.shape[:2] for x in batch} == {(rows.accumulation, rows.rows_per_step)}
        updates.append(rows_of(batch))
    assert len(updates[0]) == len(updates[1])
    for a, b in zip(*updates):
        assert_equal(a, b)


@PROPERTY
@given(
    st.integers(1, 10**5), st.integers(0, 10**5), st.integers(2, 999), st.integers(2, 999),
    st.integers(1, 64),
)  # fmt: skip
def test_no_update_is_over_its_budget(tokens_per_update, max_tokens, source, target, devices):
    found = layout(tokens_per_update, max_tokens, source, target, devices)
    width = max(source, target)
    # One row is the least there can be.
    assert found.rows * width <= max(width, tokens_per_update) < (found.rows + 1) * width
    at_once, rest = divmod(found.rows_per_step, devices)
    assert rest == 0
    assert not max_tokens or at_once * width <= max(width, max_tokens)
    # No part holds nothing, and no device more than one row less than another.
    positions = found.accumulation * found.rows_per_step
    assert 0 <= positions - found.rows < found.accumulation * devices


@PROPERTY
@given(corpora(), st.integers(1, 9), st.integers(1, 9), st.integers(1, 20), st.integers(1, 4))
def test_evaluation_holds_every_pair_once(corpus, source_width, target_width, rows, num_shards):
    pairs, *_ = corpus
    batches = list(EvaluationBatches.of_pairs(pairs, source_width, target_width, rows, num_shards))
    found = [pair for batch in batches for row in rows_of(batch) for pair in pairs_of(row)]
    assert collections.Counter(found) == collections.Counter(all_pairs(pairs))
    ((num_rows, source),) = {batch.src_BS.shape for batch in batches}
    ((num_rows, target),) = {batch.tgt_out_BT.shape for batch in batches}
    assert num_rows % num_shards == 0
    # As many positions as `rows` rows of these widths, or one row for each device.
    assert num_rows == num_shards or num_rows * source <= rows * source_width
    assert num_rows == num_shards or num_rows * target <= rows * target_width


# --- Text files ---------------------------------------------------------------------------


@st.composite
def text_files(draw, num_lines: int | None = None) -> tuple[bytes, list[str]]:
    """The content of a text file, and the lines that are documented to be in it."""
    bounds = {"min_size": 1, "max_size": 12}
    if num_lines is not None:
        bounds = {"min_size": num_lines, "max_size": num_lines}
    written = draw(st.lists(st.tuples(LINES, st.sampled_from(["\n", "\n", "\r\n"])), **bounds))
    content = "".join(line + end for line, end in written)
    if written[-1][0] and draw(st.booleans()):
        content = content.removesuffix("\n")
    mark = draw(st.sampled_from(["", "\ufeff"]))
    # Of what a line ends with, one carriage return; of what the file begins with, one mark.
    lines = [line if end == "\r\n" else line.removesuffix("\r") for line, end in written]
    if not mark:
        lines[0] = lines[0].removeprefix("\ufeff")
    return (mark + content).encode(), lines


def write(path: str, content: bytes, compress: bool) -> str:
    path += ".gz" if compress else ""
    Path(path).write_bytes(gzip.compress(content) if compress else content)
    return path


@FEWER
@given(st.data(), st.integers(1, 3), SEEDS, st.integers(2, 40))
def test_text_goes_through_cache_and_batches_unchanged(data, num_shards, seed, limit):
    content, lines = data.draw(text_files())
    other, translations = data.draw(text_files(len(lines)))
    expected = list(zip(map(decoded, lines), map(decoded, translations)))
    tokenizers = Tokenizers(small_tokenizer("bpe"), small_tokenizer("unigram"))

    def texts(batches) -> list[tuple[str, str]]:
        found = [pair for batch in batches for row in rows_of(batch) for pair in pairs_of(row)]
        assert all(side[-1] == EOS and side.count(EOS) == 1 for pair in found for side in pair)
        return [tuple(t.decode(ids) for t, ids in zip(tokenizers, pair)) for pair in found]

    chunks_of_3 = mock.patch("transformer.data.token_cache._CHUNK", 3)
    with tempfile.TemporaryDirectory() as folder, chunks_of_3:
        pairs = TextPairs(
            [write(f"{folder}/a", content, False)], [write(f"{folder}/b", other, True)]
        )
        assert list(pairs.pairs()) == pairs.sample(99) == list(zip(lines, translations))
        cache = token_cache(pairs, PairEncoder(tokenizers), folder)
        batches = EvaluationBatches.of_pairs(cache, 7, 11, 5, num_shards)
        assert sorted(texts(batches)) == sorted(expected)

        # For training, all but the blank and the long.
        def is_kept(pair: tuple[str, str]) -> bool:
            return all(t.strip() and len(x.encode(t)) < limit for t, x in zip(pair, tokenizers))

        kept = [pair for pair in zip(lines, translations) if is_kept(pair)]
        if not kept:
            with pytest.raises(UserError, match="no pair is left"):
                token_cache(pairs, PairEncoder(tokenizers, (limit, limit)), folder)
            return
        cache = token_cache(pairs, PairEncoder(tokenizers, (limit, limit)), folder)
        packed = PackedPairs(cache, limit, limit, seed)
        found = texts([packed.batch(np.arange(len(packed)))])
        assert sorted(found) == sorted(tuple(map(decoded, pair)) for pair in kept)
        assert cache.report["total"] == sum(cache.report.values()) - cache.report["total"]


ODD_LINES = [
    *["", " ", "\t", "\0", "a\0b", "\x01\x02\x1b[31m\x7f", "a\u200db", "\u200f\u05e9 \u202ea"],
    *["e\u0301\u0301\u0308", "\ufeffa", "a\ufeffb", "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"],
    *["a\rb", "\r", "\ufffd\ufffe\uffff\U0010ffff", "\u2581 \u2581", "x" * 100_000, "ab " * 33_333],
]  # fmt: skip
ODD_FILE = "\r\n".join(ODD_LINES[:-3]) + "\n" + "\n".join(ODD_LINES[-3:])
ODD_BYTES = b"\xef\xbb\xbf" + ODD_FILE.encode()


# translate.py with a model whose translation is what its tokenizer makes of the sentence.
ECHO = """
import pathlib

import echo_model
from transformer.commands import translate
from transformer.data.tokenizers import Tokenizers
from transformer.runs import cli
from transformer.inference import engine

def echo(tokenizer, line):
    return tokenizer.decode(tokenizer.encode(line))

engine.LINES_AT_ONCE = 3
tokenizers = Tokenizers.load(pathlib.Path("run"))
translate.restore_model = lambda: echo_model.trained(tokenizers, echo, max_length=1 << 30)
cli.run(translate.main)
"""


@pytest.fixture
def echo(tmp_path):
    """echo(*arguments, stdin=b"") -> the result of such a translate.py, in tmp_path."""
    (tmp_path / "echo.py").write_text(ECHO)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tokenizer.model").write_bytes(small_tokenizer().model_bytes)

    def run_echo(*arguments: str, stdin: bytes = b"") -> Result:
        return run(
            str(tmp_path / "echo.py"), "--workdir=run", *arguments, cwd=tmp_path, stdin=stdin
        )

    return run_echo


def test_translate_answers_each_line_with_one_line(echo, tmp_path):
    expected = [decoded(line) if line.strip() else "" for line in ODD_LINES]
    expected = "".join(f"{line}\n" for line in expected).encode()
    assert echo(stdin=ODD_BYTES) == (0, expected, "")
    write(f"{tmp_path}/in", ODD_BYTES, compress=True)
    assert echo("--input=in.gz", "--output=out") == (0, b"", "")
    assert (tmp_path / "out").read_bytes() == expected
    assert echo(stdin=b"\xef\xbb\xbf\n\r\n\n\r") == (0, b"\n\n\n\n", "")


def test_translate_names_the_line_that_is_no_text(echo, tmp_path):
    surrogate = "a\nb\x85c\u2028d\n\n".encode() + b"\xed\xa0\x80\n"
    write(f"{tmp_path}/in", surrogate, compress=True)
    assert_refused(echo("--input=in.gz", "--output=out"), "in.gz is not UTF-8: line 4, byte 1 ")
    assert (tmp_path / "out").read_bytes() == surrogate[:-4]  # what is before line 4
    (tmp_path / "out").unlink()
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"a\n" * 99)[:-9])
    assert_refused(echo("--input=in.gz", "--output=out"), "in.gz is damaged")
    assert (b"a\n" * 99).startswith((tmp_path / "out").read_bytes())  # what is before the damage


# --- Files from strangers -----------------------------------------------------------------

LOADERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "torch"}


def code_runners(tree: ast.Module) -> list[str]:
    """What a module names that could run code out of a file which it reads."""
    found = []
    for node in ast.walk(tree):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        found += [name for name in modules if name.partition(".")[0] in LOADERS]
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            keywords = {keyword.arg for keyword in node.keywords}
            if name in ("eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load"):
                found.append(name)
            if "allow_pickle" in keywords or (name == "np.load" and len(node.args) > 1):
                found.append("allow_pickle")
    return found


def test_no_module_reads_files_that_could_hold_code():
    for code, expected in (
        ("import pickle as p", ["pickle"]),
        ("from torch.serialization import load", ["torch.serialization"]),
        ("def f():\n    return eval(x)", ["eval"]),
        ("np.load(path, allow_pickle=True)", ["allow_pickle"]),
        ("yaml.load(file)", ["yaml.load"]),
        ("json.load(file); np.load(path); model.eval()", []),
    ):
        assert code_runners(ast.parse(code)) == expected
    # Tests, which read only what they wrote, may well make such files.
    patterns = "*.py", "configs/*.py", "transformer/**/*.py"
    paths = [path for pattern in patterns for path in ROOT.glob(pattern)]
    assert {ROOT / x for x in ("train.py", "transformer/data/datasets/multi30k.py")} < {*paths}
    found = {str(path): code_runners(ast.parse(path.read_text())) for path in paths}
    assert {path: names for path, names in found.items() if names} == {}


# In a process of its own: what aborts in SentencePiece is no exception.
DAMAGED_MODELS = """
import random, sys
from transformer.system.errors import UserError
from transformer.data.tokenizers import from_bytes

whole = [open(path, "rb").read() for path in sys.argv[1:]]
refused = 0
for seed in range(400):
    rng = random.Random(seed)
    model = bytearray(rng.choice(whole))
    kind = rng.randrange(4)
    if kind == 0:
        model = rng.randbytes(rng.choice([1, 2, 5, 20, 300]))
    elif kind == 1:
        del model[rng.randrange(len(model)):]
    elif kind == 2:
        for _ in range(rng.choice([1, 2, 5, 30])):
            model[rng.randrange(len(model))] ^= 1 << rng.randrange(8)
    else:
        at = rng.randrange(len(model))
        model[at:at + rng.randrange(200)] = model[rng.randrange(len(model)):][:rng.randrange(200)]
    try:
        tokenizer = from_bytes(bytes(model))
    except UserError:
        refused += 1
        continue
    for text in ("The dog sees the cat.", "", "a\\u2581b", " \\t\\u00e9\\0", "x" * 2000):
        tokenizer.decode(tokenizer.encode(text))
    tokenizer.decode(range(tokenizer.vocab_size))
print(refused)
"""


def test_no_damaged_tokenizer_ends_the_process(tmp_path):
    paths = [tmp_path / f"{model_type}.model" for model_type in MODEL_TYPES]
    for path in paths:
        path.write_bytes(small_tokenizer(path.stem).model_bytes)
    result = subprocess.run(
        [sys.executable, "-c", DAMAGED_MODELS, *paths],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert 100 < int(result.stdout) < 400
