"""The mesh and the table. What needs several devices runs in processes of its own."""

import collections
import dataclasses
import itertools
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from processes import on_devices
from scripts import ROOT
from small_configs import SINCE_2017, sizes_of
from test_step import ADAM, MODEL, TRAINING, adam_of, reversible_pairs

from configs import base
from transformer.data.batches import Batch, PackedPairs, TrainingBatches, layout
from transformer.data.sentencepiece import train_sentencepiece
from transformer.data.tokenizers import Tokenizers
from transformer.decoding.config import DecodingConfig
from transformer.decoding.inputs import Request
from transformer.decoding.translation import Translator, best_texts
from transformer.models import fused_norm
from transformer.models.attention import KeyValues, Mask, _cudnn_attention
from transformer.models.family import build_model
from transformer.models.functional import FunctionalModel, Params
from transformer.models.transformer import FAMILY, TransformerConfig
from transformer.runs.checkpoints import Checkpoints
from transformer.runs.integrity import digest
from transformer.system.errors import UserError
from transformer.system.preemption import StopRequest
from transformer.system.sharding import (
    MeshConfig,
    bytes_per_device,
    distribute,
    make_mesh,
    on_each_device,
    row_shards,
    split_rows,
    state_sharding,
    summed_over_rows,
    without_a_rule,
)
from transformer.training.optimizers import OptimizerConfig
from transformer.training.step import (
    TrainState,
    abstract_state,
    init_state,
    make_nll_step,
    make_train_step,
    norm_by_squares,
)

MESHES = ((1, 1, 1), (2, 4, 1), (2, 2, 2))
SOME_MESHES = MESHES[0], MESHES[-1]


def abstract_mesh(*shape: int) -> AbstractMesh:
    axes = ("data", "fsdp", "tensor")
    return AbstractMesh(shape, axes, axis_types=3 * (AxisType.Auto,))  # as that of make_mesh


def toy_model(**changes) -> FunctionalModel:
    """Every dimension can be split in 8, but for the 4 heads."""
    sizes = {"d_model": 16, "d_ff": 24, "num_heads": 4}
    rates = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.1}
    return build_model(dataclasses.replace(MODEL, **sizes, **rates, **changes), sizes_of(264))


# --- Meshes -------------------------------------------------------------------------------


def test_a_mesh_takes_all_devices():
    (device,) = jax.devices()[:1]
    for config in (MeshConfig(0, 1, 1), MeshConfig(1, 1, 0), MeshConfig(1, 1, 1)):
        assert make_mesh(config, [device]).shape == {"data": 1, "fsdp": 1, "tensor": 1}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What a GPU of another node shows of itself."""

    id: int
    platform: str = "gpu"

    @property
    def slice_index(self) -> int:  # JAX's count of nodes
        return self.id // 4


def test_gpus_of_several_nodes_keep_tensor_within_a_node():
    mesh = make_mesh(MeshConfig(data=0, fsdp=2, tensor=2), [Gpu(i) for i in range(8)])
    assert mesh.shape == {"data": 2, "fsdp": 2, "tensor": 2}
    nodes = [[device.slice_index for device in part.flat] for part in mesh.devices]
    assert nodes == [4 * [0], 4 * [1]]


def test_tpu_slices_lie_along_data():
    devices = [Gpu(i, platform="tpu") for i in range(8)]
    with pytest.raises(UserError, match=r"mesh\.data = 1 is not divisible by the 2 TPU slices"):
        make_mesh(MeshConfig(data=1, fsdp=8, tensor=1), devices)


@pytest.mark.parametrize("shape", [(2, 2, 2), (0, 2, 1), (2, 0, 1)])
def test_a_mesh_that_does_not_fit_the_devices(shape):
    message = rf"mesh.tensor = {shape[0]} x {shape[1]} x {shape[2]} does not fit 1 device\(s\)"
    with pytest.raises(UserError, match=message):
        make_mesh(MeshConfig(*shape), jax.devices()[:1])


def test_meshes_that_cannot_be():
    with pytest.raises(UserError, match=r"0 x 2 x 0 leaves .* only one of them may be 0"):
        MeshConfig(0, 2, 0)
    with pytest.raises(UserError, match=r"mesh.fsdp is -1; it must be at least 0"):
        MeshConfig(1, -1, 1)


# --- The table ----------------------------------------------------------------------------


def paths(tree) -> list[str]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return ["/".join(str(key.key) for key in path) for path, _ in leaves]


def test_every_parameter_has_one_rule_and_every_rule_a_parameter():
    used = set()
    choices = {
        "norm": ("pre", "post", "rezero"),
        "positions": ("sinusoidal", "learned", "t5"),
        "qk_norm": (False, True),
        "share_embeddings": ("all", "decoder", "none"),
        "attention_bias": (False, True),
        "output_bias": (False, True),
        "words_per_position": (1, 3),
        "normalization": ("layer_norm", "rms_norm"),
    }
    first = {name: values[0] for name, values in choices.items()}
    changes = [{}, *({name: x} for name, values in choices.items() for x in values[1:])]
    for change in changes:
        params = toy_model(**first | change).abstract_params()
        for path, leaf in zip(paths(params), jax.tree.leaves(params), strict=True):
            matches = [rule for rule in FAMILY.sharding if re.fullmatch(rule[0], path)]
            assert len(matches) == 1, path
            assert len(matches[0][1]) in (0, leaf.ndim), path
            used.add(matches[0])
    assert used == set(FAMILY.sharding)


def test_a_parameter_without_a_rule_is_not_split():
    adapter = {"adapter": {"kernel": np.zeros((2, 2))}}
    with pytest.raises(ValueError, match=r"match the parameter adapter/kernel; found: none"):
        state_sharding(abstract_mesh(2, 2, 2), adapter, FAMILY.sharding)
    assert without_a_rule(adapter, FAMILY.sharding) == ["adapter/kernel"]
    # Nothing is split here, and a newcomer's layer may be tried before its row is written.
    (copied,) = jax.tree.leaves(state_sharding(abstract_mesh(8, 1, 1), adapter, FAMILY.sharding))
    assert copied.spec == P()
    twice = (("adapter/.+", P()), (".+/kernel", P("fsdp", None)))
    with pytest.raises(ValueError, match=r"adapter/kernel; found: adapter/\.\+, \.\+/kernel"):
        state_sharding(abstract_mesh(2, 2, 2), adapter, twice)


def test_moments_lie_as_their_parameters():
    state = abstract_state(toy_model(), adam_of(dataclasses.replace(ADAM, max_grad_norm=1.0), 16))
    shardings = state_sharding(abstract_mesh(1, 2, 4), state, FAMILY.sharding)
    adam = next(x for x in jax.tree.leaves(shardings.opt_state, is_leaf=is_adam) if is_adam(x))
    assert adam.mu == adam.nu == shardings.params
    assert adam.count.spec == shardings.step.spec == P()
    query = shardings.params["encoder_layers"][0]["self_attention"]["query"]["kernel"]
    assert query.spec == P("fsdp", "tensor")


class State(NamedTuple):
    params: dict
    extra: dict


def test_extra_state_is_copied_unless_a_rule_names_it():
    kernel = {"kernel": np.zeros((2, 4))}
    state = State({"dense": kernel}, {"dense": {"u": np.zeros(2), "v": np.zeros(4)}})
    rules = (("dense/kernel", P("fsdp", "tensor")), ("dense/v", P("tensor")))
    shardings = state_sharding(abstract_mesh(1, 2, 4), state, rules)
    specs = jax.tree.map(lambda x: x.spec, shardings)
    assert specs == State(
        {"dense": {"kernel": P("fsdp", "tensor")}}, {"dense": {"u": P(), "v": P("tensor")}}
    )


def test_moments_with_fewer_dimensions_than_their_parameter_are_copied():
    factored = optax.adafactor(0.1, min_dim_size_to_factor=2)
    params = {"dense": {"kernel": np.zeros((2, 4), np.float32)}}
    state = jax.eval_shape(factored.init, params)
    mesh, rules = abstract_mesh(1, 2, 2), (("dense/kernel", P("fsdp", "tensor")),)
    specs = {x.spec for x in jax.tree.leaves(state_sharding(mesh, state, rules))}
    assert specs == {P()}


def is_adam(x) -> bool:
    return hasattr(x, "mu")


def test_a_dimension_that_cannot_be_split_evenly_is_copied():
    params = {"target_embedding": {"table_VD": jax.ShapeDtypeStruct((37_000, 512), np.float32)}}
    for tensor, axis in ((8, "tensor"), (16, None)):
        mesh = abstract_mesh(1, 4, tensor)
        (sharding,) = jax.tree.leaves(state_sharding(mesh, params, FAMILY.sharding))
        assert sharding.spec == P(axis, "fsdp")


def test_the_base_model_on_each_device():
    config = base.get_config().to_dict()
    model = build_model(TransformerConfig(**config["model"]), sizes_of(37_000))
    state = abstract_state(model, adam_of(OptimizerConfig(**config["optimizer"]), 512))
    for shape, params in {
        (8, 1, 1): 62_984_192 + 24_576 + 36_864,  # matrices; vectors of size d_ff; of d_model
        (1, 8, 1): 62_984_192 / 8 + 24_576 + 36_864,
        (1, 1, 8): 62_984_192 / 8 + 24_576 / 8 + 36_864,
        (2, 2, 2): 62_984_192 / 4 + 24_576 / 2 + 36_864,
    }.items():
        like = laid_out(state, state_sharding(abstract_mesh(*shape), state, model.sharding))
        assert bytes_per_device(like.params) == 4 * params
        assert bytes_per_device(like.opt_state) == 2 * 4 * params + 4  # and a counter


def laid_out(shapes, shardings):
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        shapes,
        shardings,
    )


def test_a_search_calls_kernels_as_they_are():
    """Its devices differ along tensor, too: their sentences must not be mixed."""
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])

    def is_split(axes: set[str]) -> bool:
        whole = {"in_specs": P(), "out_specs": P(), "check_vma": False}
        call = jax.shard_map(
            lambda x: on_each_device(jnp.sin, x), mesh=mesh, axis_names=axes, **whole
        )
        return str(jax.make_jaxpr(call)(1.0)).count("shard_map") > 1

    assert is_split({"data", "fsdp"})
    assert not is_split(set(mesh.axis_names))


# --- Eight devices ------------------------------------------------------------------------


class Toy:
    """A model on a mesh, with dropout, and updates of 11 rows, one on each device at a time."""

    def __init__(self, *shape: int, **changes):
        self.mesh = make_mesh(MeshConfig(*shape), jax.devices()[: np.prod(shape)])
        self.model, self.optimizer = toy_model(**changes), adam_of(ADAM, 16)
        shapes = abstract_state(self.model, self.optimizer)
        self.like = laid_out(shapes, state_sharding(self.mesh, shapes, FAMILY.sharding))
        step = make_train_step(self.model, self.optimizer, TRAINING, self.mesh)
        self.step = step.lower(self.like, self.batch(0)).compile()

    def init(self) -> jax.stages.Compiled:
        """The function that makes the first state."""
        shardings = jax.tree.map(lambda x: x.sharding, self.like)
        init = jax.jit(lambda: init_state(self.model, self.optimizer, 5), out_shardings=shardings)
        return init.lower().compile()

    def batch(self, number: int, made: list[list[int]] | None = None) -> Batch:
        """Packed rows; `made` gets the numbers of those made here, part by part."""
        packed = PackedPairs(reversible_pairs(97), 17, 17, seed=3)
        rows = TrainingBatches(packed, layout(11 * 17, 17, 17, 17, row_shards(self.mesh)), seed=3)

        def make(numbers: np.ndarray) -> Batch:
            if made is not None:
                made.append(numbers.ravel().tolist())
            return packed.batch(numbers)

        return distribute(make, rows.rows(number), split_rows(self.mesh, axis=1))

    def updates(self, state: TrainState, *numbers: int) -> tuple[TrainState, list[float]]:
        """The state after these updates, and the loss of each, per token."""
        losses = []
        for number in numbers:
            state, metrics = self.step(state, self.batch(number))
            losses.append(float(metrics.loss / metrics.tokens))
        return state, losses

    def nll(self, params: Params) -> float:
        nll_step = make_nll_step(self.model, self.mesh)
        rows = np.arange(16)
        packed = PackedPairs(reversible_pairs(97), 17, 17, seed=3)
        batch = distribute(packed.batch, rows, split_rows(self.mesh, axis=0))
        loss = nll_step(params, {}, batch)
        return float(loss.nll / loss.tokens)

    def translations(self, params: Params) -> list[str]:
        tokenizer = train_sentencepiece(["abc"], vocab_size=264, model_type="bpe")
        decoding = DecodingConfig(beam_size=2, length_penalty=0.6, max_extra_length=5)
        translator = Translator(self.model, Tokenizers(tokenizer, tokenizer), decoding, self.mesh)
        rng = np.random.default_rng(2)  # for fresh parameters, all sentences are the same
        params = jax.tree.map(
            lambda x: jax.device_put(rng.normal(0, 0.3, x.shape).astype("float32"), x.sharding),
            params,
        )
        sentences = ["a b", "c", "b a c a", "", "cc", "bac"]
        return best_texts(translator.search((params, {}), list(map(Request, sentences))))


def gradient_with_kernels(mesh: jax.sharding.Mesh, H: int) -> dict[str, Any]:
    """Of self-attention, then add & norm, by kernels; and the heads that each call gets.

    JAX's own attention stands for cuDNN's; Pallas interprets the other.
    """
    B, T, K = 4, 6, 8
    attend, heads = jax.nn.dot_product_attention, []

    def cudnn(query_BTHK, key_BTHK, value_BTHK, mask, implementation):
        heads.append(query_BTHK.shape[2])
        return attend(query_BTHK, key_BTHK, value_BTHK, mask=mask)

    def gradient(params: Params, x_ABTD: jax.Array):
        def loss(params):
            x_BTD, one_BT = x_ABTD[0], jnp.ones((1, T), jnp.int32)
            mask = Mask(one_BT, one_BT, jnp.arange(T))
            y_BHTK = (x_BTD @ params["kernel"]).reshape(-1, T, H, K).swapaxes(1, 2)
            y_BHTK = _cudnn_attention(y_BHTK, KeyValues(y_BHTK, y_BHTK), mask)
            y_BTD = y_BHTK.swapaxes(1, 2).reshape(x_BTD.shape)
            norm = params["scale"], params["bias"]
            z_BTD = fused_norm.add_and_norm(
                x_BTD, y_BTD, None, *norm, fused_norm.Settings(0.0, 1e-6, interpret=True)
            )
            return jnp.sum(z_BTD**3)

        value, grads = jax.value_and_grad(loss)(params)
        return grads, value

    def normal(number: int, *shape: int) -> jax.Array:
        return jax.random.normal(jax.random.key(number), shape)

    D = H * K
    params = {"kernel": normal(0, D, D), "scale": normal(1, D), "bias": normal(2, D)}
    rules = (("kernel", P("fsdp", "tensor")), ("scale|bias", P()))
    with mock.patch.object(jax.nn, "dot_product_attention", cudnn):
        step = jax.jit(summed_over_rows(mesh, rules, gradient))
        grads, value = step(params, normal(3, 1, B, T, D))
    return {"value": float(value), "heads": heads, **{k: v.tolist() for k, v in grads.items()}}


def bytes_on_first_device(tree) -> int:
    shards = [shard for x in jax.tree.leaves(tree) for shard in x.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device == jax.devices()[0])


COLLECTIVES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"


def messages(compiled: jax.stages.Compiled, kinds: str = COLLECTIVES) -> list[str]:
    """The types of what devices send each other, such as f32[2,3]."""
    lines = re.findall(rf"= (.*) (?:{kinds})(?:-start)?\(", compiled.as_text())
    return sorted(kind for line in lines for kind in re.findall(r"\w+\[[\d,]*\]", line))


def on_eight_devices(workdir: Path) -> dict[str, dict]:
    """What the tests below look at, by mesh."""
    report = {}
    for shape in MESHES:
        toy, seen = Toy(*shape), {}
        report[str(shape)] = seen
        checkpoints = Checkpoints(workdir, keep_last=9, best_metric="nll", direction="lower")
        if shape == (1, 1, 1):
            checkpoints.save(toy.init()(), {}, scheduled=True)
        # 1. From the first state of one device: two updates, a checkpoint, and two more.
        state = checkpoints.restore_newest(toy.like).state
        seen["first state"] = digest(state)
        if shape in SOME_MESHES:
            seen["nll"] = toy.nll(state.params)
            seen["translations"] = toy.translations(state.params)
            other = Toy(*shape, **SINCE_2017["relative"])
            seen["since 2017"] = other.updates(other.init()(), 0, 1)[1]
            seen["kernels"] = [gradient_with_kernels(toy.mesh, heads) for heads in (4, 3)]
        state, losses = toy.updates(state, 0, 1)
        seen["bytes"] = [bytes_on_first_device(x) for x in (state.params, state.opt_state)]
        seen["planned bytes"] = [bytes_per_device(x) for x in (toy.like.params, toy.like.opt_state)]
        own = Checkpoints(workdir / str(shape), keep_last=9, best_metric="nll", direction="lower")
        own.save(state, {}, scheduled=True)
        state, more = toy.updates(state, 2, 3)
        seen["losses"] = losses + more
        # 2. The latter two once more.
        again, _ = toy.updates(own.restore_newest(toy.like).state, 2, 3)
        seen["resumed"] = [digest(state), digest(again)]
        seen["messages"] = messages(toy.step)
        seen["sums"] = messages(toy.step, "all-reduce|reduce-scatter")
        norm = jax.jit(norm_by_squares).lower(*jax.tree.leaves(toy.like.params))
        seen["messages of the norm"] = messages(norm.compile())
        seen["parts"] = []
        toy.batch(0, seen["parts"])
        own.close()
        checkpoints.close()
    # 3. A first state that was never whole on one device.
    init = toy.init()
    memory = init.memory_analysis()
    seen["bytes to begin"] = memory.output_size_in_bytes, memory.temp_size_in_bytes
    seen["first loss"] = toy.updates(init(), 0)[1][0]
    return report


def child(devices: int, *arguments: object) -> subprocess.Popen:
    """This file as a script; it prints JSON."""
    environment = on_devices(devices)
    environment["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'tests/training'}"
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def output(process: subprocess.Popen) -> dict:
    with process:
        text, _ = process.communicate(timeout=900)
    assert process.returncode == 0
    return json.loads(text.splitlines()[-1])  # Gloo may have a word before


@pytest.fixture(scope="module")
def eight(tmp_path_factory) -> dict[tuple[int, int, int], dict]:
    report = output(child(8, tmp_path_factory.mktemp("meshes")))
    return {shape: report[str(shape)] for shape in MESHES}


@pytest.mark.slow
def test_losses_are_those_of_one_device(eight):
    """To rounding: sums of float32 in another order, and what four updates make of it."""
    for shape in MESHES[1:]:
        np.testing.assert_allclose(eight[shape]["losses"], eight[1, 1, 1]["losses"], rtol=1e-5)
        assert len(set(eight[shape]["losses"])) == 4


@pytest.mark.slow
def test_losses_with_fewer_heads_of_keys(eight):
    """One head of keys, which tensor=2 cuts."""
    found = [eight[shape]["since 2017"] for shape in SOME_MESHES]
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.slow
def test_memory_shrinks(eight):
    """Here 264 * 16 + 12 * 16^2 + 4 * 16 * 24 parameters, 2 * 24 in vectors, and 12 * 16."""
    parts = {(2, 4, 1): (4, 1), (2, 2, 2): (4, 2)}
    for shape, (matrices, vectors) in parts.items():
        params = (264 * 16 + 12 * 16**2 + 4 * 16 * 24) / matrices + 2 * 24 / vectors + 12 * 16
        assert eight[shape]["bytes"] == [4 * params, 2 * 4 * params + 4]
        assert eight[shape]["bytes"] == eight[shape]["planned bytes"]


@pytest.mark.slow
def test_a_checkpoint_moves_to_any_mesh_and_goes_on_to_the_bit(eight):
    for shape in MESHES:
        assert eight[shape]["first state"] == eight[1, 1, 1]["first state"]
        assert len(set(eight[shape]["resumed"])) == 1


@pytest.mark.slow
def test_the_first_state_is_never_whole_on_one_device(eight):
    seen = eight[2, 2, 2]
    made, temporary = seen["bytes to begin"]
    assert sum(seen["bytes"]) <= made < sum(seen["bytes"]) + 1024
    assert made + temporary < 2 / 3 * sum(eight[1, 1, 1]["bytes"])
    np.testing.assert_allclose(seen["first loss"], eight[1, 1, 1]["losses"][0], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "table", "kernel"),
    [((2, 4, 1), "f32[264,4]", "f32[24,4]"), ((2, 2, 2), "f32[132,8]", "f32[12,8]")],
)
def test_what_devices_send_each_other(eight, shape, table, kernel):
    """Over data and fsdp parameters and gradients, never activations of 17 positions; over tensor
    those too.

    Not logits, whose vocabulary stays split.
    """
    sizes = [re.findall(r"\d+", kind.partition("[")[2]) for kind in eight[shape]["messages"]]
    sent = [size for size in sizes if any(int(x) % 17 == 0 for x in size)]
    assert bool(sent) == (shape[2] > 1)
    assert not any(size[-1] in ("264", "132") for size in sent)
    if not sent:
        assert all(len(size) < 3 or size == ["1", "264", "16"] for size in sizes)
    # Gradients once an update: of both parts together, scattered over fsdp, and what is left of
    # them added up over data. The embedding, 264 x 16, is looked up twice and is the output layer.
    # Kernels of 24 x 16 are those of an encoder's and a decoder's layer.
    sums = collections.Counter(eight[shape]["sums"])
    assert {kind: n for kind, n in sums.items() if kind in (table, "f32[264,16]")} == {table: 2}
    assert sums[kernel] == 4
    # For the norm of gradients matrices stay where they are.
    kinds = eight[shape]["messages of the norm"]
    assert "f32[]" in kinds
    assert not any("," in kind for kind in kinds)


@pytest.mark.slow
def test_kernels_get_what_a_device_has(eight):
    """Add & norm its rows, attention its heads; or all heads if tensor does not divide them."""
    for number, heads in enumerate([2, 3]):
        one, mixed = (eight[shape]["kernels"][number] for shape in SOME_MESHES)
        assert set(mixed.pop("heads")) == {heads}
        one.pop("heads")
        for name, wanted in one.items():
            np.testing.assert_allclose(mixed[name], wanted, rtol=1e-4, atol=5e-3)


@pytest.mark.slow
def test_validation_and_translations_are_those_of_one_device(eight):
    one, mixed = (eight[shape] for shape in SOME_MESHES)
    np.testing.assert_allclose(mixed["nll"], one["nll"], rtol=1e-5)
    assert mixed["translations"] == one["translations"]
    assert len(set(one["translations"])) > 3


def rows_of(parts: list[list[int]]) -> list[int]:
    return sorted(row for row in itertools.chain(*parts) if row >= 0)


@pytest.mark.slow
def test_a_part_of_a_batch_is_made_once(eight):
    """Also where the devices along tensor share it."""
    rows = rows_of(eight[1, 1, 1]["parts"])
    for shape in MESHES:
        parts = eight[shape]["parts"]
        assert len(parts) == shape[0] * shape[1]
        assert rows_of(parts) == rows


# --- Two processes ------------------------------------------------------------------------


def in_two_processes(port: str, number: str) -> dict:
    jax.distributed.initialize(f"localhost:{port}", 2, int(number))
    toy = Toy(1, 4, 1)
    parts: list[list[int]] = []
    toy.batch(0, parts)
    state, losses = toy.updates(toy.init()(), 0, 1)
    stops = []
    with StopRequest() as stop:
        stop.wait_for_steps(make_mesh(MeshConfig(1, 1, 4)))
        for step in range(6):
            stop._received = number == "1" and step >= 1
            stops.append(stop.seen())
    report = {"parts": parts, "losses": losses, "stops": stops, "state": digest(state)}
    jax.distributed.shutdown()
    return report


@pytest.fixture(scope="module")
def two() -> list[dict]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    return [output(process) for process in [child(2, port, number) for number in (0, 1)]]


@pytest.mark.slow
def test_parameters_split_over_two_processes(two, eight):
    assert two[0]["losses"] == two[1]["losses"]
    assert two[0]["state"] == two[1]["state"]
    np.testing.assert_allclose(two[0]["losses"], eight[1, 1, 1]["losses"][:2], rtol=1e-5)
    # Each makes its share of the batch.
    first, second = (set(rows_of(x["parts"])) for x in two)
    assert first.isdisjoint(second)
    assert first | second == set(rows_of(eight[1, 1, 1]["parts"]))
    assert min(len(first), len(second)) == 5
    # All stop at the same step, although those along tensor share their rows.
    assert two[0]["stops"] == two[1]["stops"]
    assert two[0]["stops"].index(True) == 3  # asked at 1, and told two calls later


if __name__ == "__main__":
    arguments = sys.argv[1:]
    found = (
        on_eight_devices(Path(*arguments)) if len(arguments) == 1 else in_two_processes(*arguments)
    )
    print(json.dumps(found))
