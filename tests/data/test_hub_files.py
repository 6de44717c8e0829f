"""Folders of the hub that are spoiled, by a hand or a disk, are refused in one line."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from small_bert import CONFIG as BERT
from small_bert import PIECES, TINY, WORDS, write_vocabulary
from small_configs import PAPER, model_config
from small_models import trained_model

from configs import rnn_bahdanau
from transformer.data.hub_files import WEIGHTS
from transformer.exports import bert_folder, marian
from transformer.models.family import Sizes, build_model
from transformer.models.rnn.rnn import RNNConfig
from transformer.runs.init_from import load, of_hub, with_its_model
from transformer.runs.restore import Chosen, TrainedModel
from transformer.system.errors import UserError
from transformer.tasks import pretrained_bert

numpy_files = pytest.importorskip("safetensors.numpy", reason=".[exports]")
DEEP = "[" * 100_000 + "]" * 100_000
POSITIONS = "model.encoder.embed_positions.weight"


@pytest.fixture(scope="module")
def folder_of_marian(random_params, tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    model = trained_model(random_params, attention_bias=True, output_bias=True, norm_epsilon=1e-5)
    marian.write(model, folder)
    return model, folder


@pytest.fixture(scope="module")
def folder_of_bert(random_params, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = write_vocabulary(folder)
    config = dataclasses.replace(BERT, model=dataclasses.replace(BERT.model, head="pre_training"))
    model = build_model(config.model, Sizes(*2 * [tokenizer.vocab_size], False, 1, 1))
    task, chosen = pretrained_bert.HubTask(model, tokenizer, None), Chosen("last", [3], 3, False)
    model = TrainedModel(folder, config, task, chosen, random_params(model), {})
    bert_folder.write(model, folder)
    return model, folder


def copied(folder, to):
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def spoil(folder, name, change):
    """change: text; fields of the file, where None takes one out; or tensors."""
    path = folder / name
    if isinstance(change, str):
        path.write_text(change)
        return
    content = numpy_files.load_file(path) if name == WEIGHTS else json.loads(path.read_text())
    content = {key: x for key, x in (content | change).items() if x is not None}
    if name == WEIGHTS:
        numpy_files.save_file(content, path)
    else:
        path.write_text(json.dumps(content))


def test_marian_there_and_back(folder_of_marian, tmp_path):
    """With what older folders have besides."""
    model, folder = folder_of_marian
    copied(folder, tmp_path)
    more = {"num_hidden_layers": 6, "num_beams": 4, "use_cache": True, "_name_or_path": "x"}
    spoil(tmp_path, "config.json", more | {"rope_scaling": None, "normalize_before": False})
    copies = {name: np.ones((2, 3), "f") for name in ("lm_head.weight", POSITIONS)}
    spoil(tmp_path, WEIGHTS, copies)
    found = of_hub(tmp_path, PAPER)
    jax.tree.map(np.testing.assert_array_equal, found.params, model.params)
    assert found.task.tokenizers.source.pieces == model.task.tokenizers.source.pieces


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", {"d_model": "128"}, r"d_model is '128'; expected a whole number; take"),
        ("config.json", {"d_model": None}, "lacks 'd_model'"),
        ("config.json", {"encoder_layers": 0}, "num_encoder_layers is 0; it must be at least 1"),
        ("config.json", {"decoder_start_token_id": [1]}, r"token_id is \[1\]; expected a whole"),
        ("config.json", {"static_position_embeddings": False}, "static_position_embeddings is Fal"),
        ("config.json", DEEP, "config.json is damaged"),
        ("config.json", {"qk_norm": True}, "config.json: qk_norm is True, which ours does not kno"),
        ("config.json", {"rope_scaling": {"type": "x"}}, "rope_scaling is {'type': 'x'}, which"),
        ("vocab.json", {"</s>": "2"}, "vocab.json gives other ids; expected ids below 271"),
        ("vocab.json", {"more": 271}, "vocab.json holds 272 pieces; expected ids below 271"),
        ("source.spm", "no model", "source.spm is not a vocabulary"),
        (WEIGHTS, {"final_logits_bias": np.array(3.0, "f")}, r"_bias has shape \(\); exp"),
        (
            WEIGHTS,
            {"model.encoder.layers.0.fc1.weight": np.ones((11, 14, 1), "f")},
            r"does not fit its config.json: .*fc1.weight has shape \(11, 14, 1\); .* \(11, 14\)",
        ),
        (WEIGHTS, {"model.encoder.layers.0.fc1.bias": None}, "lacks model.encoder.layers.0.fc1.b"),
        (
            WEIGHTS,
            {"model.encoder.layers.0.self_attn.q_norm.weight": np.ones(7, "f")},
            "has the tensor model.encoder.layers.0.self_attn.q_norm.weight, for which ours has no",
        ),
        (WEIGHTS, "no tensors", "model.safetensors cannot be read"),
        ("config.json", {"model_type": "t5"}, "model_type 't5'; expected 'marian' or 'm2m_100'"),
        ("config.json", {"activation_function": "gelu"}, "activation_function is 'gelu'; ours has"),
        ("config.json", {"decoder_ffn_dim": 13}, "encoder_ffn_dim and decoder_ffn_dim differ"),
        ("config.json", {"encoder_layers": 3}, "safetensors lacks model.encoder.layers.1.self_att"),
    ],
)  # fmt: skip
def test_a_spoiled_folder_of_marian(folder_of_marian, tmp_path, name, change, message):
    spoil(copied(folder_of_marian[1], tmp_path), name, change)
    with pytest.raises(UserError, match=message) as error:
        of_hub(tmp_path, PAPER)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["marian", "bert"])
def test_the_sizes_come_from_the_folder(request, tmp_path, kind):
    """So no flag repeats them."""
    model, folder = request.getfixturevalue(f"folder_of_{kind}")
    base = {"marian": PAPER, "bert": TINY}[kind]
    training = dataclasses.replace(base.training, init_from=str(folder))
    found = with_its_model(dataclasses.replace(base, training=training), tmp_path, [])
    assert (found.model.d_model, found.model.d_ff, found.model.num_heads) == (14, 11, 2)
    begun = load(found)
    jax.tree.map(np.testing.assert_array_equal, begun.params, model.params)


def test_a_config_of_another_family(folder_of_marian):
    model = model_config(RNNConfig, rnn_bahdanau)
    with pytest.raises(UserError, match=r"model.family is .rnn.; a run of the family .trans"):
        of_hub(folder_of_marian[1], dataclasses.replace(PAPER, model=model))


def test_bert_there_and_back(folder_of_bert, tmp_path):
    model, folder = folder_of_bert
    copied(folder, tmp_path)
    spoil(tmp_path, "config.json", {"pooler_type": "first_token_transform", "use_cache": True})
    spoil(tmp_path, WEIGHTS, {"bert.embeddings.position_ids": np.arange(13)[None]})
    found = of_hub(tmp_path, BERT)
    jax.tree.map(np.testing.assert_array_equal, found.params, model.params)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", {"hidden_act": ["gelu"]}, r"hidden_act is \['gelu'\]; expected a text"),
        ("config.json", {"tie_word_embeddings": False}, "tie_word_embeddings is False; ours has"),
        ("config.json", {"qk_norm": True}, "qk_norm is True, which ours does not know; if outputs"),
        (WEIGHTS, {"bert.x.weight": np.ones(3, "f")}, "has the tensor bert.x.weight, for which"),
        (WEIGHTS, {"classifier.weight": np.array(1.0, "f")}, "lacks classifier.bias|fit"),
        (
            WEIGHTS,
            {"bert.embeddings.word_embeddings.weight": np.array(1.0, "f")},
            "WEIGHTS has embeddings of 1",
        ),
        (
            WEIGHTS,
            {"bert.pooler.dense.weight": np.ones((14, 14, 2), "f")},
            "does not fit the config",
        ),
        ("config.json", {"model_type": "gpt2"}, "has model_type 'gpt2'; expected 'bert'"),
        ("config.json", {"hidden_act": "tanh"}, "hidden_act is 'tanh'; ours has gelu"),
        ("config.json", {"position_embedding_type": "x"}, "position_embedding_type is 'x'"),
        ("config.json", {"intermediate_size": 12}, "does not fit the config.json beside it"),
        ("config.json", {"hidden_size": None}, "lacks 'hidden_size'"),
        (
            "vocab.txt",
            "".join(f"{piece}\n" for piece in [*PIECES, *WORDS, "more"]),
            r"a vocabulary of \d+ pieces, and WEIGHTS has embeddings of \d+",
        ),
    ],
)
def test_a_spoiled_folder_of_bert(folder_of_bert, tmp_path, name, change, message):
    spoil(copied(folder_of_bert[1], tmp_path), name, change)
    with pytest.raises(UserError, match=message.replace("WEIGHTS", WEIGHTS)) as error:
        of_hub(tmp_path, BERT)
    assert "\n" not in str(error.value)
