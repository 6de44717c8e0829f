import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import costs
from benchmarks.collectives import (
    Traffic,
    collectives,
    group_size,
)
from benchmarks.costs import bounds_by_kind, kernels, turns_of_search, unknown_loops
from benchmarks.hlo import Instruction, size_in_memory, size_of
from benchmarks.targets import target_devices
from transformer.system.errors import UserError
from transformer.system.hardware import Specification

ROOT = Path(__file__).parent.parent
SMALL = [
    "--config.model.num_encoder_layers=1",
    "--config.model.num_decoder_layers=1",
    "--config.model.d_model=32",
    "--config.model.d_ff=12",
    "--config.model.num_heads=2",
    "--config.tokenizer.vocab_size=270",
    "--config.data.max_source_length=5",
    "--config.data.max_target_length=7",
    "--config.training.tokens_per_update=133",  # 19 rows of 7
]


def test_size_of_types():
    assert size_of("f32[]{:T(128)}") == 4
    assert size_of("bf16[3,5]{1,0:T(8,128)(2,1)S(1)}") == 30
    assert size_of("(pred[7]{0}, /*index=1*/s32[2,3]{1,0}, f8e4m3fn[11])") == 7 + 24 + 11
    # Memory of the chip does not count.
    assert size_in_memory("(bf16[3,5]{1,0:T(8,128)(2,1)S(1)}, f32[7]{0})") == 28


# As XLA's compiler for TPUs writes it, shortened. The loop turns 3 times; in it, one all-gather
# (channel 8) spread over two fusions, and two reduce-scatters made of an all-reduce and a slice.
# Another all-gather is a pair.
HLO = """\
HloModule jit_train_step, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%add.1 (x.1: f32[], y.1: f32[]) -> f32[] {
  ROOT %sum.1 = f32[] add(%x.1, %y.1)
}

%all-reduce-scatter.2 (param.1: f32[16]) -> f32[2] {
  %all-reduce.3 = f32[16]{0:T(128)} all-reduce(%param.1), channel_id=9, replica_groups=[2,4]<=[8]
  ROOT %slice.1 = f32[2]{0:T(128)} dynamic-slice(%all-reduce.3, %c.1), dynamic_slice_sizes={2}
}

%async_collective_fusion.4 (param.2: bf16[5]) -> bf16[40] {
  ROOT %all-gather.5 = bf16[40]{0:T(256)} all-gather(%param.2), channel_id=8, replica_groups={{0,2}}
}

%async_collective_fusion.6 (param.3: bf16[5]) -> bf16[40] {
  ROOT %all-gather.7 = bf16[40]{0:T(256)} all-gather(%param.3), channel_id=8, dimensions={0}
}

%cond.8 (param.4: (s32[], f32[16])) -> pred[] {
  %constant.9 = s32[]{:T(128)} constant(3)
  %counter.1 = s32[]{:T(128)} get-tuple-element(%param.4), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%counter.1, %constant.9), direction=LT
}

%body.10 (param.5: (s32[], f32[16])) -> (s32[], f32[16]) {
  %fusion.11 = bf16[40]{0:T(256)} fusion(%a.1), kind=kCustom, calls=%async_collective_fusion.4
  %fusion.12 = bf16[40]{0:T(256)} fusion(%a.1), kind=kCustom, calls=%async_collective_fusion.6
  %fusion.13 = f32[2]{0:T(128)} fusion(%b.1), kind=kCustom, calls=%all-reduce-scatter.2
  %fusion.14 = f32[2]{0:T(128)} fusion(%b.2), kind=kCustom, calls=%all-reduce-scatter.2
}

ENTRY %main.14 (param.6: f32[8]) -> f32[8] {
  %start.1 = (f32[6]{0}, f32[6]{0}, u32[]{:S(2)}) collective-permute-start(%p.1), channel_id=1
  %done.1 = f32[6]{0:T(128)} collective-permute-done(%start.1)
  %start.2 = (f32[2]{0}, f32[4]{0}) all-gather-start(%p.2), channel_id=5, replica_groups=[4,2]<=[8]
  %done.2 = f32[4]{0} all-gather-done(%start.2)
  %while.15 = (s32[]{:T(128)}, f32[16]{0}) while(%t.1), condition=%cond.8, body=%body.10
  ROOT %all-reduce.16 = (f32[], f32[10]{0}) all-reduce(%q.1, %r.1), channel_id=2, GROUPS
}
""".replace("GROUPS", "replica_groups=mesh['a'=4,'b'=2,'c'=1], device_ids=([2,4]T(1,0)) {'a','b'}")


def test_collectives_of_a_tpu():
    # In a ring of 8 an all-reduce's result is sent 7/4 times. The others have groups of 2 and 4.
    assert collectives(HLO, 8, Specification(1, 1, 1, link=2)) == {
        "all-reduce": Traffic(1, 44, 77 / 2),
        "all-gather": Traffic(4, 3 * 80 + 16, (3 * 40 + 8) / 2),
        "reduce-scatter": Traffic(6, 6 * 8, 6 * 8 * 3 / 2),
        "collective-permute": Traffic(1, 24, 24 / 2),
    }


def test_collectives_that_share_a_channel():
    """All those of `jax.shard_map` do; the parts of one have its chain in common."""
    chain = 'channel_id=1, frontend_attributes={chain_id="CHAIN"}'
    hlo = HLO.replace("channel_id=8, replica", f"{chain}, replica").replace("channel_id=8,", chain)
    hlo = hlo.replace("channel_id=2,", "channel_id=1,")
    assert collectives(hlo, 8) == collectives(HLO, 8)
    twice = hlo.replace("CHAIN", "0", 1).replace("CHAIN", "1")
    assert collectives(twice, 8)["all-gather"].count == 2 * 3 + 1
    other = "  %sum.2 = f32[] all-reduce(%q.2), channel_id=1, GROUPS\n"
    more = hlo.replace("  ROOT %all-reduce.16", f"{other}  ROOT %all-reduce.16")
    assert collectives(more, 8)["all-reduce"].count == 2


def test_how_often_a_loop_turns():
    line = '"known_trip_count":{"n":"7"}'
    hlo = HLO.replace("body=%body.10", f"body=%body.10, backend_config={{{line}}}")
    assert collectives(hlo, 8)["all-gather"] == Traffic(8, 7 * 80 + 16)
    with pytest.raises(ValueError, match="loop with all-gather"):
        collectives(HLO.replace("direction=LT", "direction=NE"), 8)


# Counted by hand below. Arrays: bf16[8,4] has 64 bytes, bf16[4,16] 128, bf16[8,16] 256,
# f32[100,4] 1600, f32[8,4] 128, s32[8,1] 32.
PROGRAM = """\
HloModule jit_train_step, is_scheduled=true

%fused_product (p.0: bf16[8,4], p.1: bf16[4,16]) -> bf16[8,16] {
  %p.0 = bf16[8,4]{1,0} parameter(0)
  %p.1 = bf16[4,16]{1,0} parameter(1)
  %dot.1 = f32[8,16]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %convert.1 = bf16[8,16]{1,0} convert(%dot.1)
}

%fused_rows (p.2: f32[100,4], p.3: s32[8,1]) -> f32[8,4] {
  %p.2 = f32[100,4]{1,0} parameter(0)
  %p.3 = s32[8,1]{1,0} parameter(1)
  ROOT %gather.1 = f32[8,4]{1,0} gather(%p.2, %p.3), slice_sizes={1,4}
}

%fused_write (p.4: f32[100,4], p.5: f32[8,4], p.6: s32[]) -> f32[100,4] {
  %p.4 = f32[100,4]{1,0} parameter(0)
  %p.5 = f32[8,4]{1,0} parameter(1)
  %p.6 = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %write.1 = f32[100,4]{1,0} dynamic-update-slice(%p.4, %p.5, %p.6, %zero.1)
}

%cond.1 (t.1: (s32[], f32[100,4])) -> pred[] {
  %t.1 = (s32[], f32[100,4]{1,0}) parameter(0)
  ROOT %less.1 = pred[] custom-call(%t.1), custom_call_target="unknown"
}

%body.1 (t.2: (s32[], f32[100,4])) -> (s32[], f32[100,4]) {
  %t.2 = (s32[], f32[100,4]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%t.2), index=0
  %x.1 = f32[100,4]{1,0} get-tuple-element(%t.2), index=1
  %double.1 = f32[100,4]{1,0} add(%x.1, %x.1), metadata={op_name="jit(f)/while/add_and_norm/add"}
  ROOT %t.3 = (s32[], f32[100,4]{1,0}) tuple(%i.1, %double.1)
}

ENTRY %main.1 (a.1: bf16[8,4], b.1: bf16[4,16], c.1: f32[100,4], d.1: s32[8,1]) -> f32[100,4] {
  %a.1 = bf16[8,4]{1,0} parameter(0)
  %b.1 = bf16[4,16]{1,0} parameter(1)
  %c.1 = f32[100,4]{1,0} parameter(2)
  %d.1 = s32[8,1]{1,0} parameter(3)
  %product.1 = bf16[8,16]{1,0} fusion(%a.1, %b.1), kind=kCustom, calls=%fused_product
  %rows.1 = f32[8,4]{1,0} fusion(%c.1, %d.1), kind=kLoop, calls=%fused_rows
  %step.1 = s32[] constant(3)
  %write.2 = f32[100,4]{1,0} fusion(%c.1, %rows.1, %step.1), kind=kLoop, calls=%fused_write
  %q.1 = bf16[2,6,3,8]{3,2,1,0} bitcast(%product.1)
  %k.1 = bf16[2,10,3,8]{3,2,1,0} broadcast(%q.1)
  %call.1 = (bf16[2,3,6,8]{3,1,2,0}, u8[999]{0}) custom-call(%q.1, %k.1, %k.1), \
custom_call_target="__cudnn$fmhaSoftmax"
  %library.1 = (f32[8,16]{1,0}, s8[999]{0}) custom-call(%a.1, %b.1), \
custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{\
"dot_dimension_numbers":{"lhs_batch_dimensions":[],"lhs_contracting_dimensions":["1"]}}}
  %t.4 = (s32[], f32[100,4]{1,0}) tuple(%step.1, %write.2)
  %while.1 = (s32[], f32[100,4]{1,0}) while(%t.4), condition=%cond.1, body=%body.1
  ROOT %out.1 = f32[100,4]{1,0} get-tuple-element(%while.1), index=1
}
"""


def test_costs_counted_by_hand():
    found = {k.instruction.name: (k.runs, k.bytes, k.flops) for k in kernels(PROGRAM, [5])}
    assert found == {
        # Both operands and the result, in their types: 8 x 4 x 16 multiplications and additions.
        "product.1": (1, 64 + 128 + 256, 2 * 8 * 4 * 16),
        "rows.1": (1, 128 + 32 + 128, 0),  # the rows that are read, not the whole table
        "write.2": (1, 128 + 4 + 128, 0),  # in place: what is written, not the whole array
        # 576 bytes of q, 960 of k.
        "k.1": (1, 576 + 960, 0),
        # k twice is read once; the workspace is nobody's. Q K^T and weights times V.
        "call.1": (1, 576 + 960 + 576, 2 * 2 * (2 * 3) * 6 * 10 * 8),
        "double.1": (5, 1600 + 1600, 0),  # a turn of the loop reads x once
        "library.1": (1, 64 + 128 + 512, 2 * 8 * 4 * 16),  # likewise, without its workspace
    }
    packed = PROGRAM.replace('fmhaSoftmax"', 'fmhaSoftmax", {"max_seg_per_batch": 2}')
    packed = packed.replace("}, u8[999]", "}, f32[4,3,6]{2,1,0}, u8[999]")
    (call,) = (k for k in kernels(packed) if k.instruction.name == "call.1")
    # Half of the scores; and sums for each of two segments a row, of which half are used.
    assert call.flops == found["call.1"][2] / 2
    assert call.bytes == found["call.1"][1] + 4 * 2 * 3 * 6
    assert unknown_loops(PROGRAM) == 1
    assert {k.instruction.name: k.kind for k in kernels(PROGRAM)}["double.1"] == "add & norm"


def test_bounds_counted_by_hand():
    # 1 GB/s and 1 GFLOP/s at the assumed shares.
    device = Specification(1e9 / costs.PEAK_SHARE, 16, 1e9 / costs.MEMORY_SHARE, 1e9)
    found = kernels(PROGRAM, [5])
    seconds = {k.instruction.name: k.runs * k.seconds(device) for k in found}
    assert seconds["product.1"] == pytest.approx(1024e-9 + 2e-6)  # FLOPs, more than bytes
    assert seconds["write.2"] == pytest.approx(260e-9 + 2e-6)
    assert seconds["double.1"] == pytest.approx(5 * (3200e-9 + 2e-6))
    rows = bounds_by_kind(found, device)
    assert {row["kind"]: row["bytes"] for row in rows}["add & norm"] == 5 * 3200
    assert sum(row["ms"] for row in rows) == pytest.approx(1e3 * sum(seconds.values()))


TRANSPOSED = "replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) "


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("replica_groups={{0,5},{1,6}}, dimensions={0}", 2),
        ("replica_groups=[2,4]<=[8], dimensions={0}", 4),
        ("replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}", 2),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}, dimensions={0}", 2),
        ("replica_groups=mesh['a'=2,'b'=4,'c'=1] {'b','c'}", 4),
        (TRANSPOSED + "{'a'}", 4),
        ("replica_groups=mesh['a'=2,'b'=4], device_ids=(0,4,1,5,2,6,3,7) {'b':(1)2}", 2),
        ("replica_groups={}, dimensions={0}", 8),
        ("source_target_pairs={{0,1},{1,0}}", 8),
        ("", 8),
    ],
)
def test_groups_of_devices(text, size):
    assert group_size(Instruction("x", "f32[]", "all-reduce", text, None), 8) == size
    with pytest.raises(ValueError, match="another form than expected: <1>"):
        group_size(Instruction("x", "f32[]", "all-reduce", "replica_groups=<1>", None), 8)


def test_turns_of_search():
    assert turns_of_search(2, 30) == [30, 0]  # one loop, and that of the few left
    assert turns_of_search(4, 40) == [16, 16, 8, 0]
    assert turns_of_search(4, 10) == [10, 0, 0, 0]


HAS_LIBTPU, HAS_CUDA = (
    importlib.util.find_spec(name) is not None for name in ("libtpu", "jax_cuda13_plugin")
)
needs_tpu = pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu is not here")
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="jax[cuda13] is not here")
SEARCH = ["--program=search", "--steps=4"]
SOME_WORK = r"work        0\.00 TFLOP .*, [1-9][\d,]* kernels$"


@pytest.mark.parametrize(
    ("device", "flags", "parts"),
    [
        pytest.param(
            "cpu:8",
            ["--config.mesh.fsdp=2", "--config.mesh.tensor=2"],
            [
                r"device      cpu:8 \(cpu\), 2 data x 2 fsdp x 2 tensor$",
                "rows        1 x 20 of 5 . 7 tokens$",
                r"exchange    [1-9]\d* all-reduce, ",
                r"exchange    [1-9]\d* all-gather, ",
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param("cpu", SEARCH, [SOME_WORK], marks=pytest.mark.slow),
        pytest.param(
            "h200",
            SEARCH,
            [SOME_WORK],
            marks=[pytest.mark.slow, needs_cuda],
        ),
        pytest.param(  # with all of its kernels, whose parts must fit
            "h200:8",
            [
                *("--config.data.max_source_length=6", "--config.data.max_target_length=8"),
                "--config.model.dtype=bfloat16",
            ],
            [
                ".* kernels: cudnn_packed,cudnn_attention,triton_norm,blocked_loss$",
                "memory .* of 131 GiB, fits: ",
                "bound .* ms, MFU at most ",
            ],
            marks=needs_cuda,
        ),
        *(
            pytest.param(
                device,
                [f"--config.mesh.fsdp={chips}"],
                [
                    rf"device      {device} \({kind}\), 1 data x {chips} fsdp",
                    rf"memory .* of {memory} GiB, fits: ",
                    r"exchange    \d+ all-gather, ",
                ],
                marks=needs_tpu,
            )
            for device, kind, chips, memory in (
                ("v5e:2x4", "TPU v5 lite", 8, 16),
                ("v4:2x2x1", "TPU v4", 4, 32),
            )
        ),
    ],
)
def test_estimates(device, flags, parts, tmp_path):
    text, output = tmp_path / "program.txt", tmp_path / "result.json"
    command = [sys.executable, "benchmarks/estimate.py", f"--device={device}", *SMALL, *flags]
    command += [f"--hlo={text}", f"--output={output}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    for part in parts:
        assert re.search(f"^{part}", done.stdout, re.M), (part, done.stdout)
    if flags == SEARCH:
        assert " update\n" not in done.stdout
    if device == "cpu:8":  # it multiplies what the model needs, for the rows that are empty, too
        result = json.loads(output.read_text())
        assert result["flops"] == pytest.approx(result["model_flops"], rel=0.2)
    if device == "h200:8":
        packed = '"max_seg_per_batch": 2'
        assert all(x in text.read_text() for x in ("__cudnn$fmha", packed, "xla.gpu.triton"))


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("h300", "--device=h300 is unknown; it must be h200, "),
        ("cpu:none", "--device=cpu:none has no number of devices"),
        ("v5e:2x4", r'needs .*: pip install "jax\[tpu\]"'),
        ("h200", r'needs .*: pip install "jax\[cuda13\]"'),
        ("l4:8", r'needs .*: pip install "jax\[cuda13\]"'),
    ],
)
def test_devices_that_are_refused(device, message, monkeypatch):
    """Those whose compiler is not installed, too."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=message):
        target_devices(device)
