import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.collectives import Traffic, collectives, size_of

ROOT = Path(__file__).parent.parent
SMALL = [
    "--config.model.num_encoder_layers=1",
    "--config.model.num_decoder_layers=1",
    "--config.model.d_model=8",
    "--config.model.d_ff=12",
    "--config.model.num_heads=2",
    "--config.tokenizer.vocab_size=270",
    "--config.data.max_source_length=5",
    "--config.data.max_target_length=7",
    "--config.training.tokens_per_update=133",  # 19 rows of 7
]


def estimate(*args: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "benchmarks/tpu_estimate.py", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)


def test_size_of_types():
    assert size_of("f32[]{:T(128)}") == 4
    assert size_of("bf16[3,5]{1,0:T(8,128)(2,1)S(1)}") == 30
    assert size_of("(pred[7]{0}, /*index=1*/s32[2,3]{1,0}, f8e4m3fn[11])") == 7 + 24 + 11


# As XLA's compiler for TPUs writes it, shortened. The loop turns 3 times; in it, one all-gather
# (channel 8) spread over two fusions, and a reduce-scatter made of an all-reduce and a slice.
HLO = """\
HloModule jit_train_step, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%add.1 (x.1: f32[], y.1: f32[]) -> f32[] {
  ROOT %sum.1 = f32[] add(%x.1, %y.1)
}

%all-reduce-scatter.2 (param.1: f32[16]) -> f32[2] {
  %all-reduce.3 = f32[16]{0:T(128)} all-reduce(%param.1), channel_id=9, to_apply=%add.1
  ROOT %slice.1 = f32[2]{0:T(128)} dynamic-slice(%all-reduce.3, %c.1), dynamic_slice_sizes={2}
}

%async_collective_fusion.4 (param.2: bf16[5]) -> bf16[40] {
  ROOT %all-gather.5 = bf16[40]{0:T(256)} all-gather(%param.2), channel_id=8, dimensions={0}
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
}

ENTRY %main.14 (param.6: f32[8]) -> f32[8] {
  %start.1 = (f32[6]{0}, f32[6]{0}, u32[]{:S(2)}) collective-permute-start(%p.1), channel_id=1
  %done.1 = f32[6]{0:T(128)} collective-permute-done(%start.1)
  %while.15 = (s32[]{:T(128)}, f32[16]{0}) while(%t.1), condition=%cond.8, body=%body.10
  ROOT %all-reduce.16 = (f32[], f32[10]{0}) all-reduce(%q.1, %r.1), channel_id=2, to_apply=%add.1
}
"""


def test_collectives_of_a_tpu():
    assert collectives(HLO) == {
        "all-reduce": Traffic(1, 44),
        "all-gather": Traffic(3, 3 * 80),
        "reduce-scatter": Traffic(3, 3 * 8),
        "collective-permute": Traffic(1, 24),
    }


def test_a_loop_that_says_how_often_it_turns():
    line = '"known_trip_count":{"n":"7"}'
    hlo = HLO.replace("body=%body.10", f"body=%body.10, backend_config={{{line}}}")
    assert collectives(hlo)["all-gather"] == Traffic(7, 7 * 80)


def test_a_loop_of_unknown_length_is_an_error():
    with pytest.raises(ValueError, match="loop with all-gather"):
        collectives(HLO.replace("direction=LT", "direction=NE"))


@pytest.mark.slow
def test_estimates_for_virtual_devices():
    process = estimate("--topology=cpu:8", *SMALL, "--config.mesh.fsdp=2", "--config.mesh.tensor=2")
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert lines[0] == "slice       cpu:8: 8 x cpu, 2 data x 2 fsdp x 2 tensor"
    assert lines[1].endswith("19 rows of 5 + 7 tokens, float32; 1 x 20 rows, 1 of them empty")
    exchanged = re.findall(r"exchange    (\d+) ([a-z-]+), ", process.stdout)
    assert {"all-reduce", "all-gather"} <= {kind for _, kind in exchanged}
    assert all(int(count) > 0 for count, _ in exchanged)


HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None


@pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu is not here")
def test_estimates_for_a_slice():
    process = estimate("--topology=v5e:2x4", *SMALL, "--config.mesh.fsdp=8")
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("slice       v5e:2x4: 8 x TPU v5 lite, 1 data x 8 fsdp")
    assert re.search(r"^memory .* of 16 GiB, fits: ", process.stdout, re.M)
    assert re.search(r"^exchange    \d+ all-gather, ", process.stdout, re.M)


@pytest.mark.skipif(HAS_LIBTPU, reason="libtpu is here")
def test_without_libtpu():
    process = estimate("--topology=v5e:2x4")
    assert process.returncode == 2
    assert process.stderr.startswith("error: --topology=v5e:2x4 needs libtpu")
    assert process.stderr.count("\n") == 1
