"""Every family's formula for FLOPs beside the FLOPs that XLA counts."""

import dataclasses

import jax
import numpy as np
import pytest
from small_batches import pairs
from small_configs import MODEL, model_config, sizes_of

from configs import base, bert_base, convs2s_iwslt, t_dmca, universal_base
from transformer.data.sequences import Labelled, Masked
from transformer.models.bert.bert import BertConfig
from transformer.models.convolutional.convolutional_blocks import ConvolutionalConfig
from transformer.models.decoder_only.decoder_only import DecoderOnlyConfig
from transformer.models.family import Sizes, build_model, find_family
from transformer.models.transformer import TransformerConfig, training_flops
from transformer.models.universal.universal_steps import UniversalConfig

SIZES = {"d_model": 62, "d_ff": 67, "num_heads": 2}
TRANSFORMER = SIZES | {"num_encoder_layers": 1, "num_decoder_layers": 2}
UNIVERSAL = SIZES | {"encoder_steps": 1, "decoder_steps": 2}
T_DMCA = SIZES | {"block_length": 64, "loss_over": "target"}
CASES = {
    "transformer": (
        *(TransformerConfig, base),
        TRANSFORMER | {"d_k": 24, "d_v": 32, "num_encoder_layers": 2},
    ),
    "rotary, grouped, gated": (
        *(TransformerConfig, base),
        TRANSFORMER
        | {"positions": "rotary", "d_k": 24, "d_v": 24, "num_heads": 4}
        | {"num_key_value_heads": 1, "feed_forward": "swiglu"},
    ),
    "relative": (TransformerConfig, base, TRANSFORMER | {"positions": "relative"}),
    "universal": (UniversalConfig, universal_base, UNIVERSAL),
    "halting": (
        *(UniversalConfig, universal_base),
        UNIVERSAL | {"transition": "separable_convolution", "halting": "tensor2tensor"},
    ),
    "convolutional": (
        *(ConvolutionalConfig, convs2s_iwslt),
        {"embedding_size": 59, "encoder_blocks": "61x3x2 67x5x1", "output_size": 53}
        | {"decoder_blocks": "61x3x1 71x2x1"},
    ),
    "decoder_only": (DecoderOnlyConfig, t_dmca, T_DMCA | {"layers": "FF"}),
    "compressed": (DecoderOnlyConfig, t_dmca, T_DMCA | {"layers": "FM"}),
    "compressed, tensor2tensor": (
        *(DecoderOnlyConfig, t_dmca),
        T_DMCA | {"layers": "FM", "compressed_attention": "tensor2tensor"},
    ),
}


def counted(program, model) -> float:
    return jax.jit(program).lower(model.abstract_params()).cost_analysis()["flops"]


@pytest.mark.parametrize("name", CASES)
def test_a_forward_pass(name, monkeypatch):
    # XLA counts the body of a loop once.
    scan = jax.lax.scan
    monkeypatch.setattr(jax.lax, "scan", lambda *x, unroll: scan(*x, unroll=True))
    kind, preset, changes = CASES[name]
    config = model_config(kind, preset, **changes)
    model, tokens = build_model(config, sizes_of(211)), np.full((5, 13), 5)
    found = counted(lambda params: model.bind(params)(tokens, tokens), model)
    source = np.full(5, 13 + (config.family == "decoder_only"))  # with EOS, which is not read
    flops = find_family(config.family).flops
    ours = flops(config, sizes_of(211), source, np.full(5, 13)).sum() / 3
    # XLA also counts softmax, normalisation and the like.
    assert 0.98 * ours < found < 1.25 * ours


def test_a_gradient():
    sizes = {"d_model": 96, "d_ff": 384, "num_heads": 4}
    config = dataclasses.replace(MODEL, **sizes)
    model, batch = build_model(config, sizes_of(211)), pairs(5, 19)

    def loss(params):
        return model.bind(params).loss(batch, None, 0.1).loss

    ours = training_flops(config, sizes_of(211), np.full(5, 19), np.full(5, 19)).sum()
    assert ours < counted(jax.value_and_grad(loss), model) < 1.1 * ours


def test_base_is_378_megaflops_a_pair_of_tokens():
    config = model_config(TransformerConfig, base)
    flops = training_flops(config, sizes_of(37_000), np.array([1]), np.array([1])).item()
    assert flops == pytest.approx(378e6, rel=0.01)


@pytest.mark.parametrize("head", ["pre_training", "masked_lm", "classification"])
def test_bert(head):
    config = model_config(BertConfig, bert_base, **SIZES, num_layers=1, max_positions=13, head=head)
    classifies = head == "classification"
    sizes = Sizes(211, 3 if classifies else 211, False, 13, 13)
    model = build_model(config, sizes)
    ones, firsts = np.ones((5, 13), np.int32), np.zeros((5, 1), np.int32)
    masked = Masked(ones, ones, ones, ones[:, :3], ones[:, :3], firsts, firsts, ones[:, 0])
    labelled = Labelled(ones, ones, ones, firsts, firsts, firsts + 1)

    def step(params):
        bound = model.bind(params)
        return bound.classify(labelled) if classifies else bound.predict(masked)

    predictions = np.full(5, 0 if classifies else 3)
    flops = find_family("bert").flops
    ours = flops(config, sizes, np.full(5, 13), predictions).sum() / 3
    assert 0.98 * ours < counted(step, model) < 1.25 * ours
