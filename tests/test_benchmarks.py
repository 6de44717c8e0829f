"""The benchmarks run, and say what they should."""

import csv
import dataclasses
import importlib.util
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripts import assert_refused, run, succeeded, toy_flags, write_toy
from small_configs import sizes_of

from benchmarks import attention_start, gpu, hlo, profile_summary, since_2017, startup, timing
from benchmarks.kinds import kind as kind_of
from benchmarks.peers import check
from benchmarks.profile_summary import Event, Trace
from benchmarks.synthetic import median_length, synthetic_pairs
from transformer.data.vocabulary import EOS, UNK
from transformer.models.family import build_model
from transformer.models.functional import num_params
from transformer.models.loss import cross_entropy
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
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


def test_timing(monkeypatch):
    """Measurements take turns; median and range; a worker that dies is named."""
    monkeypatch.setattr(timing, "SECONDS_BETWEEN", 0)
    calls = []
    measurements = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    found = timing.contest(measurements, 3)
    assert [row["seconds"]["values"] for row in found.values()] == [[1, 3, 5], [2, 4, 6]]
    assert [row["over_first"]["max"] for row in found.values()] == [1, 2]
    assert calls == ["a", "b"] * 3
    assert timing.shown([0.003, 0.001, 0.0021]) == "2.1 [1 .. 3]"
    assert timing.summary([3, 1, 2]) == {"median": 2, "min": 1, "max": 3, "values": [3, 1, 2]}
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


@pytest.mark.slow
def test_training_speed_and_where_it_goes(tmp_path):
    flags = ["--steps=5", "--output=speed.json", "--profile=trace", *TINY, *TINY_DATA]
    printed = succeeded(run("benchmarks/training_speed.py", *flags, cwd=tmp_path)).out.decode()
    result = json.loads((tmp_path / "speed.json").read_text())
    seconds = result["step_seconds"]
    assert len(seconds["values"]) == 5
    tokens = result["tokens_per_update"]
    assert min(result["row_widths"]) >= 31
    positions = math.prod(result["rows"]) * sum(result["row_widths"])
    assert tokens < positions
    assert result["padding"] == pytest.approx(1 - tokens / positions)
    assert result["tokens_per_second"] == pytest.approx(5 * tokens / sum(seconds["values"]))
    assert result["mfu"] is None  # on a CPU
    assert f"{result['tokens_per_second']:,.0f} a second" in printed
    assert f"{timing.shown(seconds['values'])} ms" in printed

    summary = summary_of(tmp_path, "trace")
    assert summary["steps"] == 3
    assert all(summary["kinds_ms"].values()), summary["kinds_ms"]
    # By number, since on a busy machine any instruction may take long.
    program = next((tmp_path / "trace").rglob(profile_summary.HLO_FILE)).read_text()
    kinds = [kind_of(x) for x in hlo.parse(program).values()]
    assert kinds.count("other") < 0.3 * len(kinds)


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


def test_kinds_of_instructions():
    program = hlo.parse(HLO).program.values()
    found = {name: kind_of(x) for each in program for name, x in each.items()}
    expected = {
        "copy.7": "copies",
        "relu_dot_fusion": "matrix products",
        "xor_fusion.2": "dropout, random bits",
        "wrapped": "embedding",
        "dot.5": "attention",
        "cublas.3": "matrix products",
        "divide.6": "update",
    }
    assert expected.items() <= found.items()


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


@pytest.mark.slow
def test_profile_of_train(tmp_path):
    write_toy(tmp_path, train=97, validation=5)
    flags = toy_flags(training_steps=5, training_checkpoint_every=5)
    succeeded(run("train.py", *flags, "--workdir=run", "--profile=1:4", cwd=tmp_path))
    assert list((tmp_path / "run" / "profile").rglob("perfetto_trace.json.gz"))
    assert summary_of(tmp_path, "run")["steps"] == 3


def test_profile_summary_without_a_trace(tmp_path):
    with pytest.raises(UserError, match=r"holds no \*\.xplane\.pb; .* train\.py --profile"):
        profile_summary.find(tmp_path)
    (tmp_path / "x.xplane.pb").touch()
    with pytest.raises(UserError, match=r"there is no train_step\.hlo\.txt above"):
        profile_summary.find(tmp_path)


# --- cost_growth.py -----------------------------------------------------------------------

DOCUMENTS = "--study=memory_by_length"


@pytest.mark.slow
def test_cost_growth(tmp_path):
    """Plans are measured, small ones run, and nothing is measured twice."""
    flags = ["--out=.", "--length=8", "--length=512", "--most_gigabytes=0.001", *TINY]
    printed = succeeded(run("benchmarks/cost_growth.py", *flags, cwd=tmp_path)).out.decode()
    results = json.loads((tmp_path / "cost_growth.json").read_text())
    steps = {tuple(x[f] for f in ("form", "length", "rows", "layers")): x for x in results["cases"]}
    assert [json.loads(line) for line in printed.splitlines()] == list(steps.values())
    assert len(steps) == 4
    assert steps["plain", 512, 1, 0]["planned"] > steps["plain", 8, 1, 0]["planned"] > 0
    for step in steps.values():
        assert (step["planned"] <= 1e6) == (step.get("seconds", 0) > 0)
    assert {"seconds" in step for step in steps.values()} == {True, False}
    assert (tmp_path / "cost_growth.png").read_bytes().startswith(b"\x89PNG")
    assert succeeded(run("benchmarks/cost_growth.py", *flags, cwd=tmp_path)).out == b""
    other = run("benchmarks/cost_growth.py", *flags, "--config.model.d_ff=12", cwd=tmp_path)
    assert_refused(other, "cost_growth.json", "--out")
    refused = run("benchmarks/cost_growth.py", "--out=.", "--length=0", cwd=tmp_path)
    assert_refused(refused, "--length=0", "positive integer")

    # The recorded measurements of documents, as if they were of this commit and machine.
    recorded = json.loads((ROOT / "docs/memory_by_length.json").read_text())
    for case in recorded["cases"]:
        case |= {"rows": 1, "layers": 0}
    for name in ("model", "vocab_size"):
        del results["about"][name]
    path = tmp_path / "memory_by_length.json"
    path.write_text(json.dumps(recorded | {"about": results["about"]}))
    again = succeeded(run("benchmarks/cost_growth.py", "--out=.", DOCUMENTS, cwd=tmp_path))
    page = (ROOT / "docs/summarization.md").read_text()
    for number in (1, 2, 4, 8):
        row = re.search(rf"^\| {number} GB \| (.*) \| (.*) \| (.*) \|$", page, re.M)
        fits = "{} GB: T-ED {}, T-D {}, T-DMCA {}".format(number, *row.groups())
        assert fits in again.out.decode()  # first of training, a row at once
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


# --- versus_pytorch.py --------------------------------------------------------------------


@pytest.mark.slow
def test_versus_pytorch(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    flags = ["--rows=3", "--length=7", "--vocab_size=97", "--rounds=2", *TINY]
    flags += ["--versus=pytorch", "--output=versus.json"]
    run_of_it = run("benchmarks/versus_pytorch.py", *flags, cwd=tmp_path)
    assert run_of_it.code == 0, run_of_it.err
    result = json.loads((tmp_path / "versus.json").read_text())
    ours = result["results"]["ours"]
    assert ours["over_first"]["values"] == [1, 1]
    theirs = result["results"]["pytorch"]
    assert ours["parameters"] == theirs["parameters"]
    seconds = zip(theirs["seconds"]["values"], ours["seconds"]["values"], strict=True)
    assert theirs["over_first"]["values"] == [a / b for a, b in seconds]


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
    config = config_with(module).model
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
    ("config", "module", "sizes"),
    [
        ("bert_tiny", "transformers", {"num_layers": 2, "num_heads": 2, "d_model": 2}),
        ("sagan_cifar10", "torch", {"generator_width": 8, "discriminator_width": 8}),
    ],
)
def test_versus_with_as_many_parameters(config, module, sizes, tmp_path):
    pytest.importorskip(module, reason=f"{module} is not installed")
    flags = ["--rows=2", "--rounds=1", "--versus=pytorch", "--output=result.json"]
    flags += [f"--config={ROOT}/configs/{config}.py", "--vocab_size=97"]
    flags += [f"--config.model.{field}={size}" for field, size in sizes.items()]
    succeeded(run("benchmarks/versus_pytorch.py", *flags, cwd=tmp_path))
    results = json.loads((tmp_path / "result.json").read_text())["results"]
    assert results["ours"]["parameters"] == results["pytorch"]["parameters"]


def config_with(name: str, **changes) -> Config:
    """The config of configs/ with these fields, such as model_norm="pre"."""
    config = importlib.import_module(f"configs.{name}").get_config()
    for field, value in changes.items():
        section, _, field = field.partition("_")
        config[section][field] = value
    return Config.from_dict(config.to_dict())


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (config_with("base", model_norm="pre"), "model.norm='post'"),
        (config_with("base", optimizer_name="lamb"), "optimizer.name='adam'"),
        (config_with("bert_base", model_head="masked_lm"), "model.head='pre_training'"),
        (config_with("classification"), "task.name='masked_lm'"),
        (config_with("sagan_cifar10", task_discriminator_steps=2), "discriminator_steps=1"),
        (config_with("sagan_cifar10", model_dtype="bfloat16"), "model.dtype='float32'"),
        (config_with("demo_decoder_only"), "no model in PyTorch .*'decoder_only'; .*, sagan"),
    ],
)
def test_what_is_not_compared_with_pytorch(config, part):
    with pytest.raises(UserError, match=part):
        check(config)


def test_what_is_compared_with_pytorch():
    """The configs of the tables in docs/."""
    names = "base big multi30k_convs2s multi30k_universal bert_tiny bert_base sagan_cifar10"
    gates = "rnn_conditional multi30k_bahdanau multi30k_lstm multi30k_luong"
    configs = [config_with(name) for name in names.split()]
    for config in configs + [config_with(name, model_gate_biases=2) for name in gates.split()]:
        check(config)


# --- Scripts that start many processes ----------------------------------------------------


@pytest.mark.slow
def test_decoding_speed(tmp_path):
    """All outputs have as many tokens as were asked for, and the engines take turns."""
    path = tmp_path / "result.json"
    succeeded(
        run(
            "benchmarks/decoding_speed.py",
            *(*TINY, "--config.model.d_model=16", "--config.model.d_ff=32"),
            *("--vocab_size=300", "--sentences=5", "--tokens=6", "--rounds=1"),
            "--engines=ours_float32,ours_int8",
            f"--output={path}",
            cwd=tmp_path,
        )
    )
    engines = json.loads(path.read_text())["engines"]
    assert list(engines) == ["ours_float32", "ours_int8"]
    for engine in engines.values():
        seconds = engine["seconds"]["median"]
        assert engine["tokens_per_second"] == pytest.approx(5 * 6 / seconds)
        assert engine["share_equal_to_ours_float32"] > 0
        assert 0 < engine["latency"]["median"] < 60


@pytest.mark.slow
def test_startup(tmp_path, monkeypatch):
    """One start of train.py, and a report of others that are made up."""
    write_toy(tmp_path, train=97, validation=5)
    monkeypatch.chdir(tmp_path)
    assert startup.seconds_to_step_1(toy_flags(), tmp_path, cold=True) > 0
    monkeypatch.setattr(startup, "seconds_to_step_1", lambda *_, cold: 4.0 if cold else 2.0)
    monkeypatch.setattr(sys, "argv", ["startup.py", "--rounds=1", "--output=startup.json"])
    startup.main()
    found = json.loads((tmp_path / "startup.json").read_text())
    assert found["warm"]["over_first"]["median"] == 0.5
    monkeypatch.undo()
    monkeypatch.setattr(startup, "REPEATED", 50)
    lengths = {f"data_max_{side}_length": 400 for side in ("source", "target")}
    found = startup.of_pairs(120, toy_flags(**lengths), tmp_path)
    assert len((tmp_path / "train.source").read_text().splitlines()) == 120
    assert 0 < found["ready_seconds"] < found["new_seconds"]
    assert 0.1 < found["ready_memory"] < 9
    assert found["tokens"] > 0
    startup.draw({"120": found, "240": found}, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


# --- gpu.py -------------------------------------------------------------------------------


def test_parts_of_a_gpu_run(tmp_path, monkeypatch, capsys):
    """What fails or is too slow is named, and the rest runs; each part is written when it ends."""
    (tmp_path / "queue").write_text("# none\n\npython train.py --config='a b'\ntrain.py\n")
    codes = {
        "fails": "print(1); exit(3)",
        "slow": "import time; time.sleep(60)",
        "works": "print(2)",
    }
    found, made = {}, gpu.parts

    def parts(args, folder):
        found["queue"] = made(args, folder)["queue"]
        return {x: gpu.Part(0.2 if x == "slow" else 9, [["-c", y]] * 2) for x, y in codes.items()}

    def main(*flags):
        monkeypatch.setattr(sys, "argv", ["gpu.py", *flags])
        gpu.main()

    monkeypatch.setattr(gpu, "parts", parts)
    monkeypatch.setattr(gpu, "PARTS", tuple(codes))
    with pytest.raises(SystemExit, match="1"):
        main(f"--output={tmp_path / 'gpu.json'}", f"--queue={tmp_path / 'queue'}")
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert [result[name]["printed"] for name in codes] == [["1", "1"], [], ["2", "2"]]
    assert all(x.endswith(": exit code 3") for x in result["fails"]["failed"])
    assert [x.partition("60)': ")[2] for x in result["slow"]["failed"]] == [
        "exit code -15, when its time was over",
        "no time is left",
    ]
    assert result["works"]["failed"] == []
    assert capsys.readouterr().out.endswith("\n1 of 3 parts are done; not fails, slow\n")
    assert found["queue"].commands == [["train.py", "--config=a b"], ["train.py"]]
    with pytest.raises(SystemExit, match="2"):
        main("--parts", "works", "x")
    assert "invalid choice: 'x'" in capsys.readouterr().err
    (tmp_path / "queue").write_text("train.py\n'\n")
    with pytest.raises(UserError, match="queue: line 2: No closing quotation"):
        main(f"--queue={tmp_path / 'queue'}")


@pytest.mark.slow
def test_gpu_run_at_toy_size(tmp_path):
    flags = ["--toy", "--output=gpu.json", "--parts", "where", "resume"]
    done = run("benchmarks/gpu.py", *flags, cwd=tmp_path)
    assert done.code == 0, done.out.decode()
    result = json.loads((tmp_path / "gpu.json").read_text())
    printed = "\n".join(result["where"]["printed"])
    assert re.search(r"^matrix products +[\d.]+ ", printed, re.M)
    for kind in ("usual", "deterministic"):
        line = rf"resume, {kind}: 0 of \d\d arrays differ"
        assert any(re.fullmatch(line, x) for x in result["resume"]["printed"])


# --- Baselines ----------------------------------------------------------------------------


@pytest.mark.slow
def test_bag_of_words(tmp_path):
    """One task's label is a word of the text, the other's one of the second text."""
    sweep = f"""
from configs import classification

def get_config():
    return classification.get_config()

def get_sweep():
    files = {{f"data.{{x}}_file": "{tmp_path}/data.tsv" for x in ("train", "validation")}}
    rows = [{{"data.label_field": "3", **files}}]
    grid = {{"data.second_field": ["2", None]}}
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


# --- attention_start.py -------------------------------------------------------------------


def test_attention_that_looks_and_attention_that_does_not():
    """Two sequences in a row of 3 + 2 positions, and one of padding."""
    segments_BS = jnp.array([[1, 1, 1, 2, 2, 0]])
    may_BSS = segments_BS[:, :, None] == segments_BS[:, None]
    nowhere = may_BSS / may_BSS.sum(-1, keepdims=True)
    at_one = jnp.eye(6)[None]
    same, apart = jnp.ones((1, 6, 4)), jnp.eye(6)[None]
    batch = SimpleNamespace(masked_BP=None, tokens_BS=None, types_BS=None, segments_BS=segments_BS)
    for memory, weights, expected in ((same, nowhere, (1, 2 / 5, 1)), (apart, at_one, (0, 1, 0))):
        bound = SimpleNamespace(encode=lambda *_, m=memory, w=weights: (m, 2 * [w[:, None]]))
        found = attention_start.measures(bound, batch)
        names = ("entropy/encoder", "largest/encoder", "similarity")
        assert tuple(found[name] for name in names) == pytest.approx(expected)
    source, target = attention_start.extraction("validation", 12)[0]
    assert f" < {target} > " in f" {source} "
    assert len(source.split()) == 14


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
    assert_refused(run("benchmarks/table2.py", "--prices=H100=2", cwd=tmp_path), "'H100'")


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


def test_differences_from_the_model_of_2017():
    """As in a t-test of two means, with a variance that all rows share."""

    def recorded(*scores):
        return [{"splits": {"test": {"scores": {"bleu": {"score": x}}}}} for x in scores]

    rows = {"2017": recorded(30, 32), "a": recorded(35, 35, 38), "b": recorded(31.5)}
    found = since_2017.differences(rows, "test")
    deviation = math.sqrt((2 + 6) / 3)  # squares about the means, over degrees of freedom
    assert found == {
        "a": pytest.approx((5, deviation * math.sqrt(1 / 3 + 1 / 2))),
        "b": pytest.approx((0.5, deviation * math.sqrt(1 + 1 / 2))),
    }


@pytest.mark.slow
def test_the_table_since_2017(tmp_path):
    """Names are changed: results of table3, as if they were of this sweep."""
    for old, new in {"base": "2017", "C_d_model_256": "rotary"}.items():
        for seed in range(3):
            copy = tmp_path / f"{new}-{seed}.json"
            copy.write_text((ROOT / "results" / "table3" / f"{old}-{seed}.json").read_text())
    speed, picture = tmp_path / "speed", tmp_path / "differences.png"
    speed.write_text('{"rows": {"rotary": {"over_first": {"median": 1.25}}}}')
    flags = f"--results={tmp_path}", f"--speed={speed}", f"--picture={picture}", "--format=csv"
    said = succeeded(run("benchmarks/since_2017.py", *flags, cwd=ROOT)).out.decode()
    old, row = csv.DictReader(said.splitlines())
    assert old["BLEU, validation"] == "30.17 ± 0.51"
    assert (row["change"], row["significant"], row["time of a step"]) == ("rotary", "yes", "1.25")
    assert float(row["difference"]) < -3
    assert picture.read_bytes().startswith(b"\x89PNG")
    refused = run("benchmarks/since_2017.py", "--results=results/parsing", cwd=ROOT)
    assert_refused(refused, "--results=results/parsing lacks the row 2017")
