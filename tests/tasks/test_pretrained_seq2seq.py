"""Folders of M2M100 and NLLB-200 are ours after reading them, and theirs again after an export."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_m2m import LANGUAGES, TEXT, Reference, write_folder
from small_m2m import M2M100 as BASE

from transformer.data.batches import Batch
from transformer.data.vocabulary import BOS, EOS, PAD
from transformer.decoding.inputs import Request
from transformer.exports import m2m100
from transformer.runs import init_from
from transformer.runs.init_from import of_hub
from transformer.system.errors import UserError

numpy_files = pytest.importorskip("safetensors.numpy", reason=".[exports]")
SIDES = [([5, 7, 9, 4, 11], [6, 4]), ([8, 6], [10, 12, 9, 5])]  # without languages and </s>


@pytest.fixture(scope="module", params=list(LANGUAGES))
def hub(request, tmp_path_factory):
    """A folder, its model, and the same in NumPy."""
    folder = tmp_path_factory.mktemp(request.param)
    config, weights = write_folder(folder, request.param)
    return folder, of_hub(folder, BASE), Reference(config, weights), weights


def theirs_of(ids):
    """Ids there; only those of <s> and <pad> differ."""
    return [{PAD: 1, BOS: 0}.get(i, i) for i in ids]


def padded(rows):
    width = max(map(len, rows))
    return np.array([[*row, *[PAD] * (width - len(row))] for row in rows])


@pytest.mark.parametrize("hub", ["nllb"], indirect=True)
def test_its_logits_are_theirs(hub):
    """With padding; with two pairs in a row; and by its loss."""
    _, model, reference, _ = hub
    (source, target), V = model.task.tokenizers, model.task.tokenizers.target.vocab_size
    src = [[*source.beginning, *ids, EOS] for ids, _ in SIDES]
    tgt = [[*target.beginning, *ids, EOS] for _, ids in SIDES]
    tgt_in = [[BOS, *ids[:-1]] for ids in tgt]
    segments = [[[n] * len(ids) for n, ids in enumerate(x, 1)] for x in (src, tgt)]
    in_a_row = [jnp.array([[*itertools.chain(*x)]]) for x in (src, tgt_in, tgt, *segments)]

    @jax.jit
    def both(params):
        bound = model.task.model.bind(params)
        packed = bound(in_a_row[0], in_a_row[1], in_a_row[3], in_a_row[4])
        batch = Batch(in_a_row[0], in_a_row[3], in_a_row[1], in_a_row[2], in_a_row[4])
        return bound(padded(src), padded(tgt_in)), packed[0], bound.loss(batch, None, 0.0)

    found, packed, loss = jax.tree.map(np.asarray, both(model.params))
    begin, nll = 0, 0.0
    for row, (source_ids, target_ids) in enumerate(zip(src, tgt, strict=True)):
        # There, </s> begins a target.
        shifted = [EOS, *theirs_of(target_ids[:-1])]
        expected = reference.logits(theirs_of(source_ids), shifted)[:, theirs_of(range(V))]
        end = begin + len(target_ids)
        np.testing.assert_allclose(found[row, : len(target_ids)], expected, atol=1e-4)
        np.testing.assert_allclose(packed[begin:end], expected, atol=1e-4)
        normal = np.log(np.exp(expected).sum(-1))
        nll += (normal - expected[np.arange(len(target_ids)), target_ids]).sum()
        begin = end
    np.testing.assert_allclose(loss.nll, nll, rtol=1e-5)


@pytest.mark.parametrize("hub", ["nllb"], indirect=True)
def test_a_greedy_search_writes_what_theirs_writes(hub):
    _, model, reference, _ = hub
    source, target = model.task.tokenizers
    outputs = model.task.search(model.params, {}, list(map(Request, TEXT)))
    for text, found in zip(TEXT, outputs, strict=True):
        ids = [*theirs_of(source.encode(text)), EOS]
        longest = model.config.decoding.longest(len(ids) - 1)
        expected = reference.greedy(ids, target.beginning[0], longest)
        assert [*found[0].tokens[:-1]] == expected[: len(found[0].tokens) - 1]
        assert len(expected) > 3


def test_an_export_has_the_tensors_of_the_folder(hub, tmp_path):
    folder, model, _, weights = hub
    m2m100.write(model, tmp_path)
    found = numpy_files.load_file(tmp_path / "model.safetensors")
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        np.testing.assert_array_equal(found[name], weight, err_msg=name)
    ours, own = (json.loads((x / "config.json").read_text()) for x in (tmp_path, folder))
    same = own.keys() - {"num_hidden_layers"}
    assert {name: ours[name] for name in same} == {name: own[name] for name in same}
    again = of_hub(tmp_path, BASE)
    assert [x.sha256 for x in again.task.tokenizers] == [x.sha256 for x in model.task.tokenizers]
    search = json.loads((tmp_path / "generation_config.json").read_text())
    pieces = model.task.tokenizers.target.pieces
    assert pieces[search["forced_bos_token_id"]].strip("_") in ("deu_Latn", "de")


def test_the_sizes_come_from_the_folder(hub, tmp_path, capsys):
    folder, model, _, _ = hub
    training = dataclasses.replace(BASE.training, init_from=str(folder))
    config = dataclasses.replace(BASE, training=training)
    found = init_from.with_its_model(config, tmp_path, [])
    assert found.model == dataclasses.replace(
        model.config.model, kernels=BASE.model.kernels, dropout=BASE.model.dropout
    )
    assert found.tokenizer.vocab_size == len(model.task.tokenizers.source.pieces)
    assert "model.d_model=15" in capsys.readouterr().out
    given = ["model.d_model", "model.num_heads", "training.steps"]
    said = r"d_model is 15 in .*: --config.model.d_model=15 --config.model.num_heads=3$"
    with pytest.raises(UserError, match=said):
        init_from.with_its_model(config, tmp_path, given)


def in_shards(folder, weights, change=lambda files, index: None):
    """The folder with its weights in two files; `change` may spoil these and the index."""
    names = sorted(weights)
    files = {f"model-0000{n + 1}-of-00002.safetensors": names[n::2] for n in range(2)}
    index = {name: file for file, own in files.items() for name in own}
    files = {file: {name: weights[name] for name in own} for file, own in files.items()}
    change(files, index)
    for file, own in files.items():
        numpy_files.save_file(own, folder / file)
    (folder / "model.safetensors").unlink()
    content = {"metadata": {"total_size": 3}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def test_a_model_in_shards(tmp_path):
    _, weights = write_folder(tmp_path)
    expected = of_hub(tmp_path, BASE).params
    in_shards(tmp_path, weights)
    jax.tree.map(np.testing.assert_array_equal, of_hub(tmp_path, BASE).params, expected)


FIRST, SECOND = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files, index: files.pop(SECOND), f"index.json names {SECOND}, which is not there"),
        (lambda files, index: index.update(x="../x"), "names '../x'; expected a file beside it"),
        (lambda files, index: index.update(x="/etc/passwd"), "names '/etc/passwd'; expected a f"),
        (lambda files, index: index.update(x=".."), "names '..'; expected a file beside it"),
        (lambda files, index: index.update(x=3), "index.json is damaged .*weight_map.*; take"),
        (
            lambda files, index: files[SECOND].update(files[FIRST]),
            rf"{FIRST} and {SECOND} both have the tensor model.decoder.layer_norm.bias; take",
        ),
        (
            lambda files, index: files[SECOND].popitem(),
            "index.json lacks model.encoder.layers.1.self_attn_layer_norm.weight; take the file",
        ),
        (
            lambda files, index: files[FIRST].update({"model.x": np.ones(3, "f")}),
            "index.json has the tensor model.x, for which ours has no place",
        ),
        (
            lambda files, index: files[FIRST].update(
                {"model.encoder.layer_norm.bias": np.ones(15, np.int8)}
            ),
            "layer_norm.bias has type I8, which ours does not read; give a model whose",
        ),
    ],
)  # fmt: skip
def test_spoiled_shards(tmp_path, change, message):
    _, weights = write_folder(tmp_path)
    in_shards(tmp_path, weights, change)
    with pytest.raises(UserError, match=message) as error:
        of_hub(tmp_path, BASE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 18}, "does not fit its config.json: model.shared.weight has shape"),
        ({"decoder_layers": 2}, "lacks model.decoder.layers.1.self_attn.q_proj.weight"),
        ({"encoder_layers": 1}, "has the tensor model.encoder.layers.1.* more, for which"),
        ({"decoder_ffn_dim": 13}, "encoder_ffn_dim and decoder_ffn_dim differ; ours are one"),
        ({"vocab_size": 9}, "which do not fit a vocab_size of 9"),
        ({"decoder_start_token_id": 0}, "decoder_start_token_id is 0; ours has 2 there"),
        ({"pad_token_id": 3}, "pad_token_id is 3; ours has 1 there"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False; ours are tied there"),
        ({"scale_embedding": None}, "scale_embedding"),
        ({"num_experts": 8}, "num_experts is 8, which ours does not know"),
        ({"model_type": "nllb-moe"}, "model_type 'nllb-moe'; expected 'marian' or 'm2m_100'"),
    ],
)
def test_what_is_no_such_model(tmp_path, changes, message):
    config, _ = write_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UserError, match=message) as error:
        of_hub(tmp_path, BASE)
    assert "\n" not in str(error.value)


def test_halves_and_copies_are_read_as_well(tmp_path):
    """16 bits; and only lm_head for the shared table, as some conversions leave it."""
    import ml_dtypes

    _, weights = write_folder(tmp_path)
    expected = of_hub(tmp_path, BASE).params
    for kind in (np.float16, ml_dtypes.bfloat16):
        halves = {name: x.astype(kind) for name, x in weights.items()}
        halves["lm_head.weight"] = halves.pop("model.shared.weight")
        halves["model.encoder.embed_positions.weights"] = np.ones((3, 2), np.float16)
        numpy_files.save_file(halves, tmp_path / "model.safetensors")
        rounded = jax.tree.map(lambda x, kind=kind: x.astype(kind).astype(np.float32), expected)
        jax.tree.map(np.testing.assert_array_equal, of_hub(tmp_path, BASE).params, rounded)


PEAK = """
import resource, sys
from pathlib import Path
import jax
from test_pretrained_seq2seq import BASE, of_hub
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
folder = Path(sys.argv[1])
of_hub(folder / "small", BASE)  # what imports and a first reading need
before = peak()
model = of_hub(folder, BASE)
print(sum(x.nbytes for x in jax.tree.leaves(model.params)), peak() - before)
"""


@pytest.mark.slow
def test_reading_needs_little_more_memory_than_the_weights(tmp_path):
    """Of a model half of which is its table of embeddings."""
    sizes = {"d_model": 516, "encoder_layers": 4, "decoder_layers": 8}
    sizes |= {f"{side}_ffn_dim": 2048 for side in ("encoder", "decoder")}
    write_folder(tmp_path, "wmt21", more=100_000, **sizes)
    write_folder(tmp_path / "small")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    weights, peak = map(int, done.stdout.split())
    assert weights > 3.5e8
    assert peak < 1.3 * weights
