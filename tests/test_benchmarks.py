"""The benchmarks run, and say what they should."""

import csv
import dataclasses
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripts import assert_refused, environment, run, succeeded, toy_flags, write_toy
from small_configs import sizes_of

from benchmarks import hlo, profile_summary, timing
from benchmarks.kinds import kind as kind_of
from benchmarks.profile_summary import Event, Trace
from benchmarks.synthetic import median_length, synthetic_pairs
from transformer.data.vocabulary import EOS, UNK
from transformer.models.family import build_model
from transformer.models.functional import num_params
from transformer.models.loss import cross_entropy
from transformer.runs.run_config import Config
from transformer.system.hardware import Specification

ROOT = Path(__file__).parents[1]
TINY = [
    *(f"--config.model.num_{side}_layers=1" for side in ("encoder", "decoder")),
    "--config.model.d_model=14",
    "--config.model.d_ff=11",
    "--config.model.num_heads=2",
]
TINY_DATA = [
    *(f"--config.data.max_{side}_length=31" for side in ("source", "target")),
    "--config.tokenizer.vocab_size=300",
    "--config.training.tokens_per_update=155",
]


# --- timing.py ----------------------------------------------------------------------------


def test_measurements_take_turns(monkeypatch):
    monkeypatch.setattr(timing, "SECONDS_BETWEEN", 0)
    calls = []
    measurements = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    assert timing.alternate(measurements, 3) == {"a": [1, 3, 5], "b": [2, 4, 6]}
    assert calls == ["a", "b"] * 3


def test_median_and_range():
    assert timing.shown([0.003, 0.001, 0.0021]) == "2.1 [1 .. 3]"
    assert timing.summary([3, 1, 2]) == {"median": 2, "min": 1, "max": 3, "values": [3, 1, 2]}


def test_a_worker_that_dies_is_named():
    with pytest.raises(timing.Failed, match="exit code 3"):
        timing.Worker([sys.executable, "-c", "raise SystemExit(3)"], {})


# --- training_speed.py --------------------------------------------------------------------


def test_synthetic_pairs():
    assert 27 < synthetic_pairs(20_000, 997, (256, 256), 24).source_lengths.mean() < 31
    pairs = synthetic_pairs(20_000, 997, (256, 61), median_length((256, 61)), seed=1)
    assert len(pairs) == 20_000
    assert np.median(pairs.source_lengths) == pytest.approx(61 / 4, abs=1)
    assert pairs.source_lengths.min() == 2
    assert pairs.target_lengths.max() == 61
    assert np.corrcoef(pairs.source_lengths, pairs.target_lengths)[0, 1] > 0.8
    for tokens, offsets in (
        (pairs.source_tokens, pairs.source_offsets),
        (pairs.target_tokens, pairs.target_offsets),
    ):
        np.testing.assert_array_equal(tokens[offsets[1:] - 1], EOS)
        words = tokens[tokens != EOS]
        assert (words.min(), words.max()) == (UNK + 1, 996)
        # Zipf's law: the first word is twice as frequent as the second.
        assert 1.5 < (words == UNK + 1).mean() / (words == UNK + 2).mean() < 2.5


@pytest.fixture(scope="module")
def speed(tmp_path_factory) -> Path:
    """A folder with the result of training_speed.py and a trace."""
    folder = tmp_path_factory.mktemp("speed")
    flags = ["--steps=5", "--output=speed.json", "--profile=trace", *TINY, *TINY_DATA]
    result = succeeded(run("benchmarks/training_speed.py", *flags, cwd=folder))
    (folder / "printed").write_bytes(result.out)
    return folder


def test_training_speed(speed):
    result = json.loads((speed / "speed.json").read_text())
    seconds = result["step_seconds"]
    assert len(seconds["values"]) == 5
    tokens = result["tokens_per_update"]
    assert min(result["row_widths"]) >= 31
    positions = math.prod(result["rows"]) * sum(result["row_widths"])
    assert tokens < positions
    assert result["padding"] == pytest.approx(1 - tokens / positions)
    assert result["tokens_per_second"] == pytest.approx(5 * tokens / sum(seconds["values"]))
    assert result["mfu"] is None  # on a CPU
    printed = (speed / "printed").read_text()
    assert f"{result['tokens_per_second']:,.0f} a second" in printed
    assert f"{timing.shown(seconds['values'])} ms" in printed


# --- input_pipeline.py --------------------------------------------------------------------


@pytest.mark.slow
def test_input_pipeline(tmp_path):
    write_toy(tmp_path, train=37, validation=3)
    config = [*TINY, *TINY_DATA, "--config.data.train_source=train.en"]
    config += ["--config.data.train_target=train.de", "--config.data.is_tokenized"]
    flags = ["--pairs=400", "--median=6", "--text", "--train", *config]
    printed = succeeded(run("benchmarks/input_pipeline.py", *flags, cwd=tmp_path)).out.decode()
    synthetic, text = printed.split("37 pairs of train.en and train.de")
    assert synthetic.startswith("400 synthetic pairs\n  tokens: median 6 + ")
    for part in (synthetic, text):
        full = [float(x) for x in re.findall(r"([\d.]+)% full", part)]
        assert len(full) == 3
        assert all(0 < x <= 100 for x in full)
        assert full[0] > full[2]  # packed rows against buckets of both sides
        assert len(re.findall(r"tokens/s, .* pairs/s with", part)) == 2


# --- profile_summary.py -------------------------------------------------------------------

HLO = """HloModule jit_train_step

%fused_computation.1 (p: f32[2,3]) -> f32[2,5] {
  %p = f32[2,3]{1,0} parameter(0)
  %relu.1 = f32[2,3]{1,0} maximum(%p, %p), metadata={op_name="jit(s)/jvp()/max" stack_frame_id=3}
  ROOT %dot.1 = f32[2,5]{1,0} dot(%relu.1, %w), metadata={op_name="jit(s)/jvp()/dot_general"}
}

%fused_computation.2 (p: f32[2,3]) -> f32[2,3] {
  %p.2 = f32[2,3]{1,0} parameter(0), metadata={op_name="jit(s)/jvp(attention)/x"}
  %a = f32[2,3]{1,0} add(%p.2, %p.2), metadata={op_name="jit(s)/jvp(add_and_norm)/add"}
  %b = u32[2,3]{1,0} xor(%a, %a), metadata={op_name="jit(s)/jvp(add_and_norm)/dropout/xor"}
  ROOT %c = u32[2,3]{1,0} xor(%b, %b), metadata={op_name="jit(s)/jvp(add_and_norm)/dropout/xor"}
}

%wrapped_computation (p: f32[]) -> f32[2,3] {
  %p.3 = f32[] parameter(0)
  ROOT %ones = f32[2,3]{1,0} broadcast(%p.3), metadata={op_name="jit(s)/jvp(embedding)/mul"}
}

ENTRY %main.9 (state: f32[2,3]) -> (f32[2], f32[]) {
  %state = f32[2,3]{1,0} parameter(0)
  %copy.7 = f32[2,3]{1,0} copy(%state)
  %relu_dot_fusion = f32[2,5]{1,0} fusion(%copy.7), kind=kCustom, calls=%fused_computation.1
  %xor_fusion.2 = u32[2,3]{1,0} fusion(%state), kind=kLoop, calls=%fused_computation.2
  %wrapped = f32[2,3]{1,0} call(%scale), to_apply=%wrapped_computation
  %dot.5 = f32[2]{0} dot(%x, %y), metadata={op_name="jit(s)/transpose(jvp(attention))/dot_general"}
  %cublas.3 = (f32[2]{0}, s8[9]{0}) custom-call(%x), custom_call_target="__cublas$gemm"
  %while.4 = (s32[], f32[2]{0:T(8)}) while(%tuple), condition=%c, body=%b
  ROOT %divide.6 = f32[2]{0} divide(%x, %y), metadata={op_name="jit(s)/div"}
}
"""


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("copy.7", "copies"),
        ("relu_dot_fusion", "matrix products"),
        ("xor_fusion.2", "dropout, random bits"),
        ("wrapped", "embedding"),
        ("dot.5", "attention"),
        ("cublas.3", "matrix products"),
        ("divide.6", "update"),
    ],
)
def test_kinds_of_instructions(instruction, kind):
    computations, _ = hlo.parse(HLO)
    (found,) = [x for lines in computations.values() for x in lines if x.name == instruction]
    assert kind_of(found, computations) == kind


def test_summary_of_events():
    events = [
        Event("while.4", 0, 30e6),
        Event("xor_fusion_2", 0, 10e6),  # as a GPU's kernel is named
        Event("dot.5", 10e6, 20e6),
        Event("xor_fusion.2", 20e6, 30e6),
        Event("MemcpyD2H", 30e6, 32e6),
    ]
    summary = profile_summary.summarise(Trace(events, steps=2), HLO)
    assert {k: v for k, v in summary["kinds_ms"].items() if v} == {
        "dropout, random bits": 10,
        "attention": 5,
        "copies": 1,
    }
    assert summary["span_ms"] == 16
    assert [row["instruction"] for row in summary["longest"]][:2] == ["xor_fusion.2", "dot.5"]
    assert "bounds_ms" not in summary  # whatever device that was
    of_two = profile_summary.summarise(Trace(events, steps=2, devices=2), HLO)
    assert of_two["kinds_ms"]["attention"] == 2.5


PRODUCT = """HloModule jit_train_step

ENTRY %main.9 (x: f32[200,300], y: f32[300,500]) -> f32[200,500] {
  %x = f32[200,300]{1,0} parameter(0)
  %y = f32[300,500]{1,0} parameter(1)
  ROOT %dot.1 = f32[200,500]{1,0} dot(%x, %y), lhs_contracting_dims={1}
}
"""


def test_measured_beside_the_bound():
    device = Specification(bfloat16=989 / 700 * 1e9, memory=1, bandwidth=1e15, link=1)
    trace = Trace([Event("dot.1", 0, 90e6), Event("MemcpyD2H", 90e6, 91e6)], steps=1)
    summary = profile_summary.summarise(trace, PRODUCT, device)
    # 2 x 200 x 300 x 500 FLOPs at 1e9 a second, and the kernel's start
    assert summary["bounds_ms"]["matrix products"] == pytest.approx(60.002)
    lines = profile_summary.table(summary).splitlines()
    assert lines[1].split() == ["matrix", "products", "90.000", "98.9%", "60.002", "1.50"]
    assert lines[2].split() == ["copies", "1.000", "1.1%", "0.000", "-"]
    assert lines[-1].split()[-1] == "1.52"


def summary_of(folder: Path, path: str) -> dict:
    result = run("benchmarks/profile_summary.py", path, "--output=summary.json", cwd=folder)
    assert "matrix products" in succeeded(result).out.decode()
    return json.loads((folder / "summary.json").read_text())


def test_profile_summary_knows_the_models_parts(speed):
    summary = summary_of(speed, "trace")
    assert summary["steps"] == 3
    assert all(summary["kinds_ms"].values()), summary["kinds_ms"]
    # By number, since on a busy machine any instruction may take long.
    program = next((speed / "trace").rglob(profile_summary.HLO_FILE)).read_text()
    computations, entry = hlo.parse(program)
    kinds = [kind_of(x, computations) for x in computations[entry]]
    assert kinds.count("other") < 0.3 * len(kinds)


@pytest.mark.slow
def test_profile_of_train(tmp_path):
    write_toy(tmp_path, train=97, validation=5)
    flags = toy_flags(training_steps=5, training_checkpoint_every=5)
    succeeded(run("train.py", *flags, "--workdir=run", "--profile=1:4", cwd=tmp_path))
    assert list((tmp_path / "run" / "profile").rglob("perfetto_trace.json.gz"))
    assert summary_of(tmp_path, "run")["steps"] == 3
    # Once more: the steps to trace are done, and the run goes on without.
    flags = toy_flags(training_steps=6, training_checkpoint_every=5)
    again = run("train.py", *flags, "--workdir=run", "--profile=1:4", cwd=tmp_path)
    assert b"profile  not made: step 1 is done" in succeeded(again).out


def test_profile_summary_without_a_trace(tmp_path):
    nothing = run("benchmarks/profile_summary.py", ".", cwd=tmp_path)
    assert_refused(nothing, "no *.xplane.pb", "train.py --profile")
    (tmp_path / "x.xplane.pb").touch()
    assert_refused(run("benchmarks/profile_summary.py", ".", cwd=tmp_path), "train_step.hlo.txt")


# --- cost_growth.py -----------------------------------------------------------------------


@pytest.mark.slow
def test_cost_growth(tmp_path):
    flags = ["--out=.", "--lengths=8,16", "--rows=1", "--depths=1", "--longest_timed=8", *TINY]
    measured = run("benchmarks/cost_growth.py", *flags, cwd=tmp_path)
    assert measured.code == 0, measured.err
    results = json.loads((tmp_path / "cost_growth.json").read_text())
    timed = {(x["length"], x["form"]): x["seconds"] is not None for x in results["steps"]}
    plain_and_blocks = {(n, form): n == 8 for n in (8, 16) for form in ("plain", "blocks")}
    # Only the plain form of 16 is short enough for its own limit.
    assert timed == plain_and_blocks | {(16, "plain"): True, (256, "blocks"): False}
    assert all(x["bytes"] > 0 for x in results["steps"])
    assert (tmp_path / "cost_growth.png").read_bytes().startswith(b"\x89PNG")
    again = run("benchmarks/cost_growth.py", *flags, cwd=tmp_path)
    assert again.out == b""
    other = run("benchmarks/cost_growth.py", *flags, "--config.model.d_ff=12", cwd=tmp_path)
    assert_refused(other, "cost_growth.json", "--out")
    for flag in ("--lengths=8,x", "--rows=0"):
        refused = run("benchmarks/cost_growth.py", "--out=.", flag, cwd=tmp_path)
        assert_refused(refused, flag.partition("=")[0], "whole numbers of at least 1")


# --- versus_pytorch.py --------------------------------------------------------------------

has_torch = importlib.util.find_spec("torch") is not None


@pytest.mark.slow
def test_versus_pytorch(tmp_path):
    flags = ["--rows=3", "--length=7", "--vocab_size=97", "--rounds=2", *TINY]
    flags += ["--versus=pytorch", "--output=versus.json"]
    run_of_it = run("benchmarks/versus_pytorch.py", *flags, cwd=tmp_path)
    assert run_of_it.code == 0, run_of_it.err
    result = json.loads((tmp_path / "versus.json").read_text())
    ours = result["results"]["ours"]
    assert ours["time_over_ours"] == {"of_medians": 1, "min": 1, "max": 1}
    if not has_torch:
        assert result["failed"] == {"pytorch": "exit code 1"}
        pytest.skip("PyTorch is not installed: only our side was measured")
    theirs = result["results"]["pytorch"]
    assert ours["parameters"] == theirs["parameters"]
    ratio = theirs["seconds_per_step"]["median"] / ours["seconds_per_step"]["median"]
    assert theirs["time_over_ours"]["of_medians"] == ratio


PEERS = {  # by name: a config of configs/, and sizes
    "transformer": (
        "base",
        {"num_encoder_layers": 2, "num_decoder_layers": 3, "d_model": 14, "num_heads": 7},
    ),
    "universal": (
        "universal_base",
        {"encoder_steps": 2, "decoder_steps": 3, "d_model": 14, "num_heads": 7},
    ),
    "lstm": ("rnn_sutskever", {"num_layers": 2, "hidden_size": 6, "embedding_size": 6}),
    "bahdanau": ("rnn_bahdanau", {"cell": "gru", "gate_biases": 2, "initialization": "glorot"}),
    "luong": ("rnn_luong", {"num_layers": 2, "cell": "lstm", "gate_biases": 2}),
    "dot": (
        "rnn_luong",
        {"num_layers": 2, "gate_biases": 2, "attention": "dot", "input_feeding": False},
    ),
    "convolutional": (
        "convs2s_iwslt",
        {"encoder_blocks": "4x3x2 6x5x1", "decoder_blocks": "4x3x1 7x2x1", "max_positions": 6},
    ),
    "conditional": ("rnn_conditional", {"embedding_size": 5, "readout_size": 5}),
}
SIZES = {"d_ff": 11, "embedding_size": 5, "hidden_size": 7, "attention_size": 3, "readout_size": 6}


@pytest.mark.parametrize("name", PEERS)
def test_pytorchs_model_is_ours(name):
    """With the same parameters, the same loss: nothing is compared with less work."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    module, changes = PEERS[name]
    config = importlib.import_module(f"configs.{module}").get_config()
    config = Config.from_dict(config.to_dict()).model
    fields = {field.name for field in dataclasses.fields(config)}
    sizes = {field: size for field, size in SIZES.items() if field in fields}
    config = dataclasses.replace(config, **(sizes | changes))
    ours = build_model(config, sizes_of(97))
    params = ours.init(jax.random.key(0))
    peer = importlib.import_module(f"benchmarks.pytorch_{config.family}")
    theirs = peer.build(config, 97, max_length=13).eval()
    peer.load(theirs, params)
    assert sum(p.numel() for p in theirs.parameters()) == num_params(params)

    rng = np.random.default_rng(0)
    src, tgt_in, labels = (rng.integers(4, 97, (3, n), dtype=np.int32) for n in (11, 13, 13))
    if config.family != "rnn":  # the usual RNN runs over padding, unless it is packed
        src[1, 5:] = 0
    logits = ours.bind(params)(jnp.asarray(src), jnp.asarray(tgt_in))
    loss = cross_entropy(logits, labels, labels > 0, label_smoothing=0.1)
    src, tgt_in, labels = (torch.tensor(x, dtype=torch.long) for x in (src, tgt_in, labels))
    their_logits = theirs(src, tgt_in, src == 0)
    their_loss = torch.nn.functional.cross_entropy(
        their_logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1
    )
    np.testing.assert_allclose(their_logits.detach().numpy(), logits, atol=2e-5)
    assert their_loss.item() == pytest.approx(float(loss.loss / loss.tokens), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "module", "flags"),
    [
        (
            "versus_pytorch_bert",
            "transformers",
            [
                "--rows=2",
                *(f"--config.model.{x}=2" for x in ("num_layers", "num_heads", "d_model")),
            ],
        ),
        (
            "versus_pytorch_sagan",
            "torch",
            [
                "--images=2",
                *(f"--config.model.{x}_width=8" for x in ("generator", "discriminator")),
            ],
        ),
    ],
)
def test_versus_with_as_many_parameters(script, module, flags, tmp_path):
    pytest.importorskip(module, reason=f"{module} is not installed")
    arguments = [*flags, "--rounds=1", "--output=result.json"]
    succeeded(run(f"benchmarks/{script}.py", *arguments, cwd=tmp_path))
    result = json.loads((tmp_path / "result.json").read_text())
    ours, theirs = (about["parameters"] for about in result["workers"].values())
    assert ours == theirs
    assert result["ratios"] == [b[0] / a[0] for a, b in [result["seconds"].values()]]


def test_versus_refuses_another_model(tmp_path):
    refused = run("benchmarks/versus_pytorch.py", "--config.model.norm=pre", cwd=tmp_path)
    assert_refused(refused, "model.norm='post'")
    refused = run("benchmarks/versus_pytorch.py", "--versus=tensorflow", cwd=tmp_path)
    assert_refused(refused, "tensorflow", "pytorch_compiled")


# --- Scripts that start many processes ----------------------------------------------------


def slow_script(folder: Path, script: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    variables = {k: v for k, v in environment().items() if k != "GLIBC_TUNABLES"}
    process = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=True
    )
    return process.stdout


@pytest.mark.slow
def test_decoding_speed(tmp_path):
    """All outputs have as many tokens as were asked for, and the engines take turns."""
    path = tmp_path / "result.json"
    succeeded(
        run(
            "benchmarks/decoding_speed.py",
            *("--config.model.d_model=16", "--config.model.d_ff=32", "--config.model.num_heads=2"),
            *("--vocab_size=300", "--sentences=5", "--tokens=6", "--rounds=1"),
            *(
                "--engines=ours_float32,ours_bfloat16,ours_int8,products_float32",
                f"--output={path}",
            ),
            cwd=tmp_path,
        )
    )
    engines = json.loads(path.read_text())["engines"]
    least = engines.pop("products_float32")
    assert list(engines) == ["ours_float32", "ours_bfloat16", "ours_int8"]
    assert 0 < least["seconds"]["median"] < engines["ours_float32"]["seconds"]["median"]
    for engine in engines.values():
        seconds = engine["seconds"]["median"]
        assert engine["tokens_per_second"] == pytest.approx(5 * 6 / seconds)
        assert engine["share_equal_to_ours_float32"] > 0
        assert 0 < engine["latency"]["median"] < 60


@pytest.mark.slow
def test_families(tmp_path):
    """Families with different parameters of their sizes, in one table."""
    small = ["training.tokens_per_update=128", "data.max_source_length=16"]
    printed = slow_script(
        tmp_path,
        "families.py",
        *("--configs=multi30k_luong,multi30k_convs2s", "--rounds=1", "--steps=1"),
        *(f"--override={field}" for field in [*small, "data.max_target_length=16"]),
        *("--vocab_size=50", "--sentences=2", "--tokens=3", "--dtype=float32", "--output=x.json"),
    )
    found = json.loads((tmp_path / "x.json").read_text())["families"]
    rows = [[cell.strip() for cell in line.split("|")] for line in printed.splitlines()[2:]]
    assert [row[1] for row in rows] == ["`multi30k_luong`", "`multi30k_convs2s`"]
    for row, result in zip(rows, found.values(), strict=True):
        assert float(row[2]) == round(result["parameters"] / 1e6, 1) > 0
        assert all(seconds["median"] > 0 for seconds in result["seconds_per_token"].values())
    unknown = run("benchmarks/families.py", "--configs=nonsense", cwd=tmp_path)
    assert_refused(unknown, "--configs has 'nonsense'; there is no configs/nonsense.py")


@pytest.mark.slow
def test_startup(tmp_path):
    write_toy(tmp_path, train=97, validation=5)
    flags = ["--rounds=1", "--steps=2", "--output=startup.json", *toy_flags()]
    slow_script(tmp_path, "startup.py", *flags)
    seconds = json.loads((tmp_path / "startup.json").read_text())["seconds_to_step_1"]
    assert seconds["cold"]["median"] > 0
    assert seconds["warm"]["median"] > 0


@pytest.mark.slow
def test_gpu_quick(tmp_path):
    slow_script(tmp_path, "gpu.py", "results", "--quick", "--minutes=60")
    results = json.loads((tmp_path / "results" / "results.json").read_text())
    assert len(results) == 10
    for name, result in results.items():
        assert "error" not in result, (name, result)
        # Without PyTorch, a comparison still measures our side, and names who failed.
        assert result.get("failed", {}).keys() <= (set() if has_torch else {"pytorch"}), name


# --- Baselines ----------------------------------------------------------------------------


def test_bag_of_words(tmp_path):
    """One task's label is a word of the text, the other's one of the second text."""
    sweep = f"""
from configs import classification

def get_config():
    return classification.get_config()

def get_sweep():
    files = {{f"data.{{x}}_file": "{tmp_path}/data.tsv" for x in ("train", "validation")}}
    rows = [{{"data.label_column": "2", **files}}]
    grid = {{"data.second_column": ["1", None]}}
    return {{"rows": rows, "grid": grid, "seeds": [0, 1]}}
"""
    (tmp_path / "sweep.py").write_text(sweep)
    lines = [f"word{i % 3}\t{('good', 'bad')[i % 2]} day\t{i % 2}\n" for i in range(60)]
    (tmp_path / "data.tsv").write_text("".join(lines))
    arguments = [f"--config={tmp_path}/sweep.py", "--format=csv"]
    said = succeeded(run("benchmarks/bag_of_words.py", *arguments, cwd=ROOT)).out.decode()
    pairs, texts = csv.DictReader(said.splitlines())
    assert (pairs["accuracy"], pairs["matthews"]) == ("100.0", "100.0")
    assert texts["accuracy"] == "50.0"
    result = run("benchmarks/bag_of_words.py", "--config=configs/multi30k.py", cwd=ROOT)
    assert_refused(result, "no classes")


# --- The paper's tables -------------------------------------------------------------------


def test_table2(tmp_path):
    """The FLOPs that reference counts give; half the utilisation takes twice as long."""
    price = "--prices=NVIDIA H100=2.5"
    said = succeeded(run("benchmarks/table2.py", "--format=csv", price, cwd=tmp_path)).out.decode()
    parts = said.split("\n\n")
    rows = {row["config"]: row for row in csv.DictReader(parts[0].splitlines())}
    assert float(rows["base"]["FLOPs here"]) == pytest.approx(0.94e18, rel=0.03)
    assert float(rows["big"]["FLOPs here"]) == pytest.approx(9.6e18, rel=0.03)
    hours = {row["hours on 8 x"]: row for row in csv.DictReader(parts[1].splitlines())}
    expected = float(rows["big"]["FLOPs here"]) / (989e12 * 0.4 * 8 * 3600)
    assert float(hours["NVIDIA H100"]["big"]) == pytest.approx(expected, abs=0.01)
    assert float(hours["NVIDIA H100"]["$ big"]) == pytest.approx(expected * 8 * 2.5, abs=0.6)
    assert hours["NVIDIA A100"]["$ big"] == ""
    assert "--average_last=20" in parts[2]
    for flag, part in (("--prices=H100=2", "'H100'"), ("--utilisation=2", "in (0, 1]")):
        assert_refused(run("benchmarks/table2.py", flag, cwd=tmp_path), part)


@pytest.mark.slow
def test_table3():
    """With 41,000 tokens the paper's counts, but big's; beside it what the ledger has."""
    command = "benchmarks/table3.py", "--format=csv", "--results=results/table3"
    said = succeeded(run(*command, cwd=ROOT)).out.decode()
    rows = list(csv.DictReader(said.splitlines()))
    assert len(rows) == 20
    for row in rows:
        if row["million parameters"] and row["row"] != "big":
            assert round(float(row["ours, 41k"])) == pytest.approx(
                int(row["million parameters"]), abs=1
            )
    cells = [rows[0][f"small: {name}"] for name in ("seeds", "perplexity", "BLEU, validation")]
    assert cells == ["3", "7.66 ± 0.01", "30.17 ± 0.51"]
    for folder in ("configs", "results/parsing"):
        refused = run("benchmarks/table3.py", f"--results={folder}", cwd=ROOT)
        assert_refused(refused, f"{folder} has no row of configs/sweeps/table3.py")


@pytest.mark.slow
def test_table2_rehearsal(tmp_path):
    script = [sys.executable, ROOT / "benchmarks" / "table2_rehearsal.py", tmp_path, "--steps=40"]
    env = os.environ | environment()
    done = subprocess.run(script, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = re.findall(
        r"^(\w+): tokenised, compound-split BLEU [\d.]+; beam 4, alpha 0.6; average of (\d+)$",
        done.stdout,
        re.M,
    )
    assert found == [("base", "5"), ("big", "20")]
    for name, average in found:
        scores = json.loads((tmp_path / name / "eval/latest/scores.json").read_text())
        assert len(scores["checkpoint_steps"]) == int(average)
        assert scores["examples"] == 40


COMPARED = """
import importlib, sys, numpy as np
from absl import flags
from benchmarks import versus_pytorch
from transformer.runs.run_config import Config
from transformer.training.schedules import make_schedule
flags.FLAGS(["test", "--versus=pytorch"])
for name in sys.argv[1:]:
    config = importlib.import_module(f"configs.{name}").get_config()
    config.model.update({"gate_biases": 2} if config.model.family == "rnn" else {})
    config = Config.from_dict(config.to_dict())
    versus_pytorch.check(config)
    ours = make_schedule(config.optimizer, config.model.width)
    theirs = versus_pytorch.rate_of(config)
    for step in (1, 100, 500, 4000, 7000):
        np.testing.assert_allclose(theirs(step - 1), ours(step), rtol=1e-4)
"""


def test_what_is_compared_with_pytorch():
    """The configs of the tables in docs/performance.md, at the same learning rates."""
    names = "base rnn_conditional multi30k_bahdanau multi30k_lstm multi30k_luong"
    names = [*names.split(), "multi30k_convs2s", "multi30k_universal"]
    command = [sys.executable, "-c", COMPARED, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_memory_by_length(tmp_path):
    """What a process used is about what XLA had planned. A start again keeps what is there."""
    command = "benchmarks/memory_by_length.py", f"--out={tmp_path}", "--lengths=512"
    lines = succeeded(run(*command, cwd=ROOT)).out.decode().splitlines()
    cases = {(x["model"], x["form"]): x for x in map(json.loads, lines[:9])}
    assert len(cases) == 9
    for case in cases.values():
        assert 0.9 * case["planned"] < case["used"] < 1.5 * case["planned"] + 100e6
    assert cases["T-D", "whole"]["planned"] > cases["T-DMCA", "whole"]["planned"]
    assert succeeded(run(*command, cwd=ROOT)).out.decode().splitlines() == lines[9:]
