import types

import pytest

from transformer.system.hardware import peak_flops


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("cpu", None),
    ],
)
def test_peaks(kind, peak):
    device = types.SimpleNamespace(device_kind=kind)
    assert peak_flops(device, "bfloat16") == peak
    assert peak_flops(device, "float32") is None
