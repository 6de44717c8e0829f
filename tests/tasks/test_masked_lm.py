"""Masked language modelling: batches, metrics, and a model that learns a few sentences."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from small_bert import CONFIG, with_fields

from transformer.runs import init_from, train
from transformer.runs.restore import restore
from transformer.system.errors import UserError
from transformer.system.preemption import StopRequest
from transformer.system.sharding import data_mesh
from transformer.tasks import masked_lm
from transformer.training.optimizers import make_optimizer

SENTENCES = [
    "the cat sits on the mat",
    "a dog runs in the park",
    "she reads an old book",
    "he drinks cold water now",
    "birds fly over the house",
    "we eat bread and cheese",
    "the train leaves at noon",
    "my friend plays the piano",
    "snow falls in the winter",
    "they build a wooden boat",
]


class Going(StopRequest):
    """A request to stop that never comes."""

    def __init__(self):
        pass

    def wait_for_steps(self, mesh) -> None:
        pass

    def seen(self) -> bool:
        return False


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    documents = ["\n".join(SENTENCES[i : i + 2]) for i in range(0, 10, 2)]
    (folder / "train.txt").write_text("\n\n".join(documents) + "\n")
    return folder


def config_of(text, **changes):
    fields = {
        "train_file": f"{text}/train.txt",
        "validation_file": f"{text}/train.txt",
        "test_file": f"{text}/train.txt",
        "max_length": 20,
        "duplicates": 1,
        "vocab_size": 90,
        "max_positions": 20,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "name": "adam",
        "weight_decay": 0.0,
        "steps": 4,
        "warmup_steps": 2,
        "decay_steps": 400,
        "tokens_per_update": 100,
        "max_tokens_per_device": 40,
        "checkpoint_every": 2,
        "log_every": 2,
    } | changes
    return with_fields(CONFIG, fields)


def prepared(text, **changes):
    config = config_of(text, **changes)
    return masked_lm.prepare(config, data_mesh(jax.devices()[:1]), text / "new", None)


def test_a_batch_is_a_function_of_its_number(text):
    """Static masks come again in each epoch, dynamic ones do not."""
    for masking, is_same in (("static", True), ("dynamic", False)):
        training, other = (prepared(text, masking=masking) for _ in range(2))
        assert training.data_id == other.data_id
        found = [jax.device_get(training.batch(k)[0]) for k in range(30)]
        for k in (7, 0, 23):
            again = jax.device_get(other.batch(k)[0])
            jax.tree.map(np.testing.assert_array_equal, again, found[k])
        # Row by row: the same sequence, masked in the same way.
        seen = {}
        for batch in found:
            rows = (x.reshape(-1, x.shape[-1]) for x in (*batch[:2], *batch[3:5]))
            for tokens, types, places, labels in zip(*rows, strict=True):
                real = labels > 0
                whole = tokens.copy()
                whole[places[real]] = labels[real]
                key = whole.tobytes() + types.tobytes()
                seen.setdefault(key, set()).add(tuple(places[real]))
        most = max(map(len, seen.values()))
        assert most == 1 if is_same else most > 3
    assert prepared(text, seed=1).data_id != prepared(text).data_id


def test_the_weight_is_that_of_the_whole_update(text):
    """An update of 5 rows in parts of 2, 2 and 1."""
    batch, tokens = prepared(text).batch(0)
    assert batch.tokens_BS.shape == (3, 2, 20)
    predictions, sequences = (batch.labels_BP > 0).sum(), (batch.is_random_BC >= 0).sum()
    np.testing.assert_allclose(batch.weight_B, predictions / sequences, rtol=1e-6)
    assert tokens == (batch.segments_BS > 0).sum()


@pytest.mark.slow
def test_accumulated_is_all_at_once(text):
    def step(**changes):
        training = prepared(text, **changes)
        optimizer = make_optimizer(
            config_of(text).optimizer, train.make_schedule(config_of(text).optimizer, 14)
        )
        state = train.init_state(training.task.model, optimizer, 0)
        return training.make_step(optimizer)(state, training.batch(0)[0])

    (a, first), (b, second) = step(), step(max_tokens_per_device=100)
    np.testing.assert_allclose(first.loss, second.loss, rtol=1e-5)
    np.testing.assert_allclose(first.grad_norm, second.grad_norm, rtol=1e-4)
    np.testing.assert_allclose(
        first.terms["next_sentence"], second.terms["next_sentence"], rtol=1e-5
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), a.params, b.params)


@pytest.mark.slow
def test_it_learns_ten_sentences_by_heart(text, tmp_path):
    """Without dropout, on the text it is measured on."""
    config = config_of(
        text,
        d_model=64,
        d_ff=128,
        head="masked_lm",
        max_length=10,
        steps=600,
        decay_steps=600,
        warmup_steps=60,
        peak_learning_rate=3e-3,
        checkpoint_every=600,
        max_tokens_per_device=100,
        masking="dynamic",
        max_predictions=1,
    )
    train.train(config, tmp_path / "run", Going())
    last = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()][-1]
    assert last["eval/validation/masked_accuracy"] > 98


@pytest.mark.slow
def test_validation_is_evaluation_and_a_new_head_is_begun(text, tmp_path):
    """What training measures is what evaluate.py says. Then the encoder goes on without pairs."""
    train.train(config_of(text), tmp_path / "run", Going())
    lines = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    validation = [x for x in lines if "eval/validation/masked_accuracy" in x][-1]
    model = restore(tmp_path / "run", "last")
    outputs = model.task.evaluate(model.params, model.extra, "validation", lambda *_: None)
    for name in ("nll", "masked_accuracy", "next_sentence_accuracy"):
        expected = validation[f"eval/validation/{name}"]
        assert outputs.scores[name]["score"] == pytest.approx(expected, rel=1e-5)
    assert any("[MASK]" in source for source in outputs.texts["sources"])

    task = prepared(text, head="masked_lm").task
    found = init_from.with_heads(model, task, config_of(text, head="masked_lm")).params
    assert set(model.params) - set(found) == {"pooler", "next_sentence"}
    for name in found:
        jax.tree.map(np.testing.assert_array_equal, found[name], model.params[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_file": None}, r"no files for the train split; give data\.train_file"),
        ({"validation_file": "nowhere/*"}, r"data\.validation_file: there is no file nowhere/\*"),
        ({"max_length": 21}, r"data\.max_length is 21, but model\.max_positions is 20"),
        ({"head": "classification"}, r"model\.head is 'classification', and task\.name is 'mask"),
        ({"vocab_size": 5000}, r"the training text gives only \d+ pieces"),
    ],
)
def test_what_cannot_be_learned(changes, message, text):
    with pytest.raises(UserError, match=message):
        prepared(text, **changes)


def test_a_text_without_documents(text, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    # The vocabulary is of another text: an empty one has none.
    vocabulary = prepared(text).task.tokenizer
    vocabulary.save(tmp_path)
    path = str(tmp_path / "empty.txt")
    with pytest.raises(UserError, match=r"empty\.txt hold no documents; give text with one"):
        prepared(text, train_file=path, source_model=str(tmp_path / "vocab.txt"))


def test_settings_that_cannot_be():
    for field, value, message in (
        ("masking", "x", r"data\.masking is 'x'; it must be one of: static, dynamic"),
        ("max_length", 4, r"data\.max_length is 4; it must be at least 5"),
        ("mask_rate", 1.0, r"data\.mask_rate is 1\.0"),
    ):
        with pytest.raises(UserError, match=message):
            dataclasses.replace(CONFIG.data, **{field: value})
