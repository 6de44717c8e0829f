"""Every family in every type that it offers, with JAX's 64 bits, as far as tracing goes.

Tracing finds what is of another type than the loop, the state or the gradient that it belongs to.
"""

import dataclasses

import jax
import numpy as np
import pytest
from small_batches import masked, pairs
from small_bert import CONFIG as BERT
from small_configs import NO_LANGUAGES, PAPER, SINCE_2017, SMALL, model_config, sizes_of

from configs import (
    base,
    convs2s_iwslt,
    multi30k_lstm,
    rnn_bahdanau,
    sagan_cifar10,
    t_dmca,
    universal_act_base,
)
from transformer.decoding.brackets import grammar_of
from transformer.decoding.config import DecodingConfig
from transformer.decoding.inputs import SearchInputs
from transformer.decoding.translation import Translator
from transformer.models.convolutional.convolutional_blocks import ConvolutionalConfig
from transformer.models.decoder_only.decoder_only import DecoderOnlyConfig
from transformer.models.family import Sizes, build_model
from transformer.models.rnn.rnn import RNNConfig
from transformer.models.sagan.sagan import SAGANConfig
from transformer.models.transformer import TransformerConfig
from transformer.models.universal.universal_steps import UniversalConfig
from transformer.models.weight_layout import WeightLayout
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh
from transformer.tasks.image_generation import ImagesConfig
from transformer.training.adversarial import ImageBatch, make_adversarial_step
from transformer.training.optimizers import by_part, make_optimizer
from transformer.training.schedules import make_schedule
from transformer.training.step import abstract_state, make_train_step

VOCAB, B, S = 37, 2, 8
LAYERS = SMALL | {"dropout": 0.2, "num_encoder_layers": 1, "num_decoder_layers": 1}
UNIVERSAL = SMALL | {"dropout": 0.2, "encoder_steps": 2, "decoder_steps": 2}
RNN = {"embedding_size": 6, "hidden_size": 10, "share_embeddings": "none"}
T_DMCA = SMALL | {"block_length": 5, "expert_layer": 2, "num_experts": 3, "expert_d_ff": 5}
CASES = {
    "pre": (TransformerConfig, base, LAYERS | {"norm": "pre", "normalization": "rms_norm"}),
    "rotary": (
        TransformerConfig,
        base,
        LAYERS | {"num_heads": 4, "d_k": 4, "d_v": 4} | SINCE_2017["rotary"],
    ),
    "relative": (
        TransformerConfig,
        base,
        LAYERS
        | {"num_heads": 4, "d_k": 4, "d_v": 4, "normalization": "rms_norm"}
        | SINCE_2017["relative"],
    ),
    "t5": (TransformerConfig, base, LAYERS | SINCE_2017["t5"]),
    "blocked": (TransformerConfig, base, LAYERS | {"kernels": "blocked_loss"}),
    "halting": (UniversalConfig, universal_act_base, UNIVERSAL),
    "accumulated": (
        UniversalConfig,
        universal_act_base,
        UNIVERSAL
        | {"halting": "tensor2tensor", "halting_output": "accumulated", "random_start": 3}
        | {"transition": "separable_convolution", "rematerialize": True},
    ),
    "bahdanau": (RNNConfig, rnn_bahdanau, RNN),
    "lstm": (RNNConfig, multi30k_lstm, RNN),
    "convolutional": (
        ConvolutionalConfig,
        convs2s_iwslt,
        {"embedding_size": 6, "encoder_blocks": "10x3x1", "decoder_blocks": "10x3x1"},
    ),
    "decoder only": (DecoderOnlyConfig, t_dmca, T_DMCA | {"layers": "LMF"}),
    "compressed": (
        DecoderOnlyConfig,
        t_dmca,
        T_DMCA | {"layers": "MM", "compressed_attention": "tensor2tensor"},
    ),
}


QUICK = [("relative", "bfloat16")]
# A type each where the family or the kind of loop is another one.
SLOW = [
    ("pre", "bfloat16"),
    ("rotary", "float64"),
    ("t5", "bfloat16"),
    ("relative", "float64"),
    ("accumulated", "float64"),
    ("convolutional", "bfloat16"),
    ("blocked", "float64"),
    ("halting", "bfloat16"),
    ("bahdanau", "bfloat16"),
    ("lstm", "bfloat16"),
    ("decoder only", "bfloat16"),
    ("compressed", "bfloat16"),
]
slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def bits():
    """JAX has 64 bits: there models of all types meet such numbers."""
    with jax.enable_x64(True):
        yield


def types(tree):
    return jax.tree.map(lambda x: str(x.dtype), tree)


def check_update(model, sequences, make=None, optimizer=None, parts=2):
    """An update: the state stays what it is, with parameters in float32."""
    optimizer = optimizer or make_optimizer(PAPER.optimizer, make_schedule(PAPER.optimizer, 14))
    state = abstract_state(model, optimizer)
    assert set(jax.tree.leaves(types((state.params, state.extra)))) <= {"float32"}
    mesh = data_mesh(jax.devices()[:1])
    step = (
        make(optimizer, mesh) if make else make_train_step(model, optimizer, PAPER.training, mesh)
    )
    batch = jax.tree.map(lambda x: np.stack(parts * [x]), sequences)
    new, _ = jax.eval_shape(step, state, batch)
    assert types(new) == types(state)


@pytest.mark.parametrize(
    ("name", "dtype"), [*QUICK, *(pytest.param(*pair, marks=slow) for pair in SLOW)]
)
def test_an_update_and_a_search(name, dtype):
    kind, preset, changes = CASES[name]
    config = model_config(kind, preset, **changes, dtype=dtype)
    model = build_model(config, sizes_of(VOCAB))
    check_update(model, pairs(B, S))
    check_search(model, DecodingConfig(beam_size=3, length_penalty=0.6, max_extra_length=5))


def test_a_type_that_a_family_does_not_offer():
    kind, preset, changes = CASES["convolutional"]
    with pytest.raises(UserError, match="must be one of: float32, bfloat16"):
        model_config(kind, preset, **changes, dtype="float64")


def check_search(model, config, grammar=None, **asked):
    translator = Translator(model, NO_LANGUAGES, config, data_mesh(jax.devices()[:1]), grammar)
    inputs = SearchInputs(np.full(B, 9, np.int32), np.full(B, 2, np.int32), **asked)

    def search(params, src_BS, inputs):
        variables = model.in_layout(params, {}, WeightLayout.FEW_ROWS), {}
        how = {"beam_size": config.beam_size, "nbest": 1, "weight_layout": WeightLayout.FEW_ROWS}
        return translator.find(variables, src_BS, inputs, **how)

    found = jax.eval_shape(search, model.abstract_params(), pairs(B, S).src_BS, inputs)
    assert types(found) == ("int32", "float32", "float32", "float32")


PIECES = ["", "", "", "", *["(S", ")S", "(NP", ")NP", "XX"], *map(str, range(VOCAB - 9))]
SEARCHES = {
    "greedy": {"beam_size": 1},
    "diverse, with rules": {"beam_size": 4, "beam_groups": 2, "diversity": 0.5}
    | {"coverage_penalty": 0.2, "no_repeat_ngram": 2, "length_penalty_form": "power"},
    "samples": {"temperature": 1.0, "top_k": 5, "top_p": 0.9},
    "brackets": {"brackets": True},
    "constraints": {},
}


@pytest.mark.parametrize("name", SEARCHES)
def test_all_kinds_of_searches_with_64_bits(name):
    fields = {"beam_size": 3, "length_penalty": 0.6, "max_extra_length": 5} | SEARCHES[name]
    asked = {
        "samples": {"seed_B": np.zeros(B, np.uint32), "prefix_BP": np.zeros((B, 2), np.int32)},
        "brackets": {"grammar": grammar_of(PIECES), "words_B": np.ones(B, np.int32)},
        "constraints": {
            "phrase_BPC": np.full((B, 2, 4), 5, np.int32),
            "next_BPCC": np.zeros((B, 2, 4, 4), np.int32),
        },
    }
    kind, preset, changes = CASES["pre"]
    model = build_model(model_config(kind, preset, **changes), sizes_of(VOCAB))
    check_search(model, DecodingConfig(**fields), **asked.get(name, {}))


def test_an_update_of_bert():
    head = {"head": "pre_training", "dtype": "bfloat16"}
    config = dataclasses.replace(BERT.model, dropout=0.2, num_layers=1, **head)
    check_update(build_model(config, Sizes(VOCAB, VOCAB, False, 13, 13)), masked(), parts=1)


@slow
def test_an_update_of_images():
    section = sagan_cifar10.get_model().to_dict()
    small = {"generator_width": 8, "discriminator_width": 8, "dtype": "bfloat16"}
    model = build_model(SAGANConfig(**section | small), Sizes(3, 3, False, 1, 1))
    batch = ImageBatch(np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, np.int32))
    optimizer = make_optimizer(PAPER.optimizer, make_schedule(PAPER.optimizer, 14))
    task = ImagesConfig(**sagan_cifar10.get_task().to_dict())

    def make(optimizer, mesh):
        return make_adversarial_step(model, optimizer, PAPER.training, task, (128, 3), True, mesh)

    both = by_part({"discriminator": optimizer, "generator": optimizer})
    check_update(model, batch, make, both)
