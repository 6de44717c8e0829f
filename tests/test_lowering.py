"""Every step lowers for CUDA and for TPU, full-size models too, on a machine that has neither."""

import functools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.sharding import AbstractMesh, AxisType
from small_configs import NO_LANGUAGES, SINCE_2017, sizes_of

from configs import (
    base,
    bert_base,
    big,
    classification,
    convs2s_iwslt,
    rnn_luong,
    t_dmca,
    universal_act_base,
)
from transformer.data.batches import Batch
from transformer.data.sequences import Labelled, Masked
from transformer.decoding.translation import SearchInputs, Translator
from transformer.models.family import build_model
from transformer.runs.run_config import Config
from transformer.training.optimizers import make_optimizer
from transformer.training.schedules import make_schedule
from transformer.training.step import init_state, make_nll_step, make_train_step

MESH = AbstractMesh((2, 2, 2), ("data", "fsdp", "tensor"), 3 * (AxisType.Auto,))
SHORT = {"float32": "f32", "bfloat16": "bf16"}
# What a program may call that is not StableHLO. A callback into Python would show here.
KNOWN_CUSTOM_CALLS = {"Sharding"}


def small():
    config = base.get_config()
    config.model.update(num_encoder_layers=1, num_decoder_layers=1, d_model=24, d_ff=11)
    return config


def experts():
    config = t_dmca.get_config()
    config.model.update(layers="LM", expert_layer=2)
    return config


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def masked(*rows: int) -> Masked:
    sizes = 128, 128, 128, 20, 20, 1, 1
    weight = jax.ShapeDtypeStruct(rows, jnp.float32)
    return Masked(*(ints(*rows, size) for size in sizes), weight)


def labelled(*rows: int) -> Labelled:
    labels = jax.ShapeDtypeStruct((*rows, 32), jnp.float32)
    return Labelled(*[ints(*rows, 128)] * 3, ints(*rows, 32), labels, ints(*rows, 32))


@functools.cache
def programs(get_config: Callable, dtype: str) -> dict[str, tuple]:
    """The jitted steps of a config, each with abstract arguments."""
    config = get_config()
    config.model.dtype = dtype
    config = Config.from_dict(config.to_dict())
    sizes = sizes_of(37_000)
    if config.model.family == "bert":
        sizes = sizes._replace(max_source_length=config.data.max_length)
    model = build_model(config.model, sizes)
    schedule = make_schedule(config.optimizer, config.model.width)
    adam = make_optimizer(config.optimizer, schedule)
    state = jax.eval_shape(lambda: init_state(model, adam, seed=0))
    train_step = make_train_step(model, adam, config.training, MESH)
    # A step in parts has the gradient twice, which takes twice as long.
    parts = 2 if (get_config, dtype) == (small, "bfloat16") else 1
    if config.model.family == "bert":
        batch = {"masked_lm": masked, "classification": labelled}[config.task.name]
        nll_step = make_nll_step(model, MESH)
        return {
            "train": (train_step, state, batch(parts, 16)),
            "nll": (nll_step, state.params, state.extra, batch(16)),
        }
    translator = Translator(model, NO_LANGUAGES, config.decoding, MESH)
    search = translator.programs.jitted(beam_size=4, nbest=1)
    inputs = SearchInputs(ints(16))
    return {
        "train": (train_step, state, Batch(*[ints(parts, 16, 256)] * 5)),
        "nll": (make_nll_step(model, MESH), state.params, state.extra, Batch(*[ints(16, 256)] * 5)),
        "search": (search, (state.params, state.extra), ints(16, 64), inputs),
    }


def since_2017():
    """d_k is even, and two heads share a key."""
    config = small()
    config.model.update(SINCE_2017["rotary"], num_heads=4)
    return config


def relative():
    config = small()
    config.model.update(SINCE_2017["relative"], num_heads=4)
    return config


QUICK = [
    (small, "bfloat16", "train"),  # where products could be of two types
    (small, "float32", "search"),
]
SLOW = [  # seconds each
    *((since_2017, "bfloat16", program) for program in ("train", "search")),
    *((relative, "float32", program) for program in ("train", "search")),
    (small, "float32", "train"),
    *((experts, "bfloat16", program) for program in ("train", "search")),
    *((base.get_config, "float32", program) for program in ("train", "nll", "search")),
    *((big.get_config, "bfloat16", program) for program in ("train", "nll", "search")),
    *((rnn_luong.get_config, "bfloat16", program) for program in ("train", "search")),
    *((convs2s_iwslt.get_config, "bfloat16", program) for program in ("train", "search")),
    *((universal_act_base.get_config, "float32", program) for program in ("train", "search")),
    (bert_base.get_config, "bfloat16", "train"),
    (classification.get_config, "float32", "train"),
]


@pytest.mark.parametrize(
    ("get_config", "dtype", "program"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
    ids=lambda value: getattr(value, "__module__", value).removeprefix("configs."),
)
def test_lowers_without_the_device(get_config, dtype, program):
    step, *arguments = programs(get_config, dtype)[program]
    exported = export.export(step, platforms=["cuda", "tpu"])(*arguments)
    assert exported.platforms == ("cuda", "tpu")
    assert exported.nr_devices == 8
    module = exported.mlir_module()

    custom_calls = re.findall(r"custom_call @([\w.]+)", module)
    assert set(custom_calls) <= KNOWN_CUSTOM_CALLS

    # Operand types of the matrix products, forward and backward; the norm of the gradient,
    # a product of vectors, is none.
    products = re.findall(
        r"stablehlo.dot_general.* : \(tensor<\d+x[\dx]*x(\w+)>, tensor<\d+x[\dx]*x(\w+)>\)",
        module,
    )
    assert len(products) > 10
    assert set(products) == {(SHORT[dtype],) * 2}

    # The train step reuses the memory of every array of the state, and of nothing else.
    reused = re.findall(r"tf.aliasing_output|jax.buffer_donor", module)
    assert len(reused) == (program == "train") * len(jax.tree.leaves(arguments[0]))
