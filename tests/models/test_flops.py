import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_configs import PAPER, sizes_of

from transformer.data.batches import Batch
from transformer.models.family import build_model
from transformer.models.transformer import training_flops
from transformer.system.hardware import peak_flops
from transformer.system.sharding import data_mesh
from transformer.training.optimizers import optimizer
from transformer.training.step import init_state, make_train_step

CONFIG = dataclasses.replace(
    PAPER.model,
    num_encoder_layers=2,
    num_decoder_layers=3,
    d_model=96,
    d_ff=384,
    num_heads=4,
    d_k=24,
    d_v=32,
    dropout=0.0,
)


def test_forward_flops_are_xlas():
    model = build_model(CONFIG, sizes_of(211))
    src, tgt = jnp.ones((5, 19), jnp.int32), jnp.ones((5, 23), jnp.int32)
    forward = jax.jit(lambda params: model.bind(params)(src, tgt))
    counted = forward.lower(model.abstract_params()).compile().cost_analysis()["flops"]
    ours = training_flops(CONFIG, sizes_of(211), np.full(5, 19), np.full(5, 23)).sum() / 3
    # XLA also counts softmax, normalisation and residuals.
    assert ours < counted < 1.1 * ours


def test_training_flops_are_xlas():
    model, adam = build_model(CONFIG, sizes_of(211)), optimizer(CONFIG.d_model, PAPER.optimizer)
    state = jax.eval_shape(lambda: init_state(model, adam, 0))
    src, tgt = (jax.ShapeDtypeStruct((1, 5, width), jnp.int32) for width in (19, 23))
    step = make_train_step(model, adam, PAPER.training, data_mesh(jax.devices()[:1]))
    compiled = step.lower(state, Batch(src, src, tgt, tgt, tgt)).compile()
    counted = compiled.cost_analysis()["flops"]
    ours = training_flops(CONFIG, sizes_of(211), np.full(5, 19), np.full(5, 23)).sum()
    # XLA also counts softmax, normalisation, residuals, loss and Adam.
    assert ours < counted < 1.1 * ours


def test_base_is_378_megaflops_a_pair_of_tokens():
    paper = dataclasses.replace(
        CONFIG, num_encoder_layers=6, num_decoder_layers=6, d_model=512, d_ff=2048, num_heads=8,
        d_k=0, d_v=0,
    )  # fmt: skip
    flops = training_flops(paper, sizes_of(37_000), np.array([1]), np.array([1])).item()
    assert flops == pytest.approx(378e6, rel=0.01)


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
