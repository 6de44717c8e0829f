import os
from pathlib import Path

import pytest

from transformer.system import cpu
from transformer.system.cpu import available_cores, cpu_lines


def test_it_counts_the_cores_given_to_us_or_all(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert available_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert available_cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1


@pytest.mark.parametrize(
    ("flags", "fast"),
    [
        ("flags : fma amx_bf16", True),
        ("flags : fma avx512_bf16", True),
        ("flags : fma avx512f", False),
        ("Features : fp asimd bf16", True),
        ("Features : fp asimd", False),
        ("CPU : 8", False),
    ],
)
def test_some_cpus_multiply_bfloat16(monkeypatch, flags, fast):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"model name : x\n{flags}\n")
    assert cpu.multiplies_bfloat16.__wrapped__() == fast


def test_a_system_that_does_not_describe_its_cores(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert cpu_lines() == []
    assert not cpu.multiplies_bfloat16.__wrapped__()
