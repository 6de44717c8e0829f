"""Classification: what it learns, where it begins, and what it says of new text."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_bert import CLASSIFICATION, CONFIG, with_fields, write_vocabulary
from test_masked_lm import Going

from transformer.models.bert.bert_weights import to_theirs
from transformer.models.family import Sizes, build_model
from transformer.runs import init_from, train
from transformer.runs.restore import Chosen, TrainedModel, restore
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh
from transformer.tasks import classification, pretrained_bert
from transformer.tasks.task import read_classes
from transformer.training.step import initial_variables

WORDS = "one", "two", "three", "four", "fourteen"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Is there a `two` in it? How many are there? Of pairs: are the first words the same?"""
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    for split, count in (("train", 199), ("validation", 31)):
        texts = [" ".join(rng.choice(WORDS, 1 + i % 4)) for i in range(count)]
        others = [" ".join(rng.choice(WORDS, 2)) for _ in texts]
        rows = {
            "classes": [f"{x}\t{'yes' if 'two' in x else 'no'}\n" for x in texts],
            "numbers": [f"{x}\t{x.split().count('two') / 2}\n" for x in texts],
            "pairs": [
                f"{x}\t{'same' if x.split()[0] == y.split()[0] else 'not'}\t{y}\n"
                for x, y in zip(texts, others, strict=True)
            ],
        }
        for name, lines in rows.items():
            (folder / f"{name}.{split}.tsv").write_text("".join(lines))
    write_vocabulary(folder)
    return folder


def config_of(text, name="classes", **changes) -> Config:
    fields = {
        "train_file": f"{text}/{name}.train.tsv",
        "validation_file": f"{text}/{name}.validation.tsv",
        "regression": name == "numbers",
        "second_field": "3" if name == "pairs" else None,
        "max_length": 13,
        "source_model": str(text / "vocab.txt"),
        "d_model": 14,
        "d_ff": 11,
        "num_heads": 2,
        "max_positions": 13,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "peak_learning_rate": 1e-2,
        "warmup_steps": 10,
        "steps": 4,
        "tokens_per_update": 13 * 7,
        "checkpoint_every": 4,
        "log_every": 4,
        "best_metric": "spearman" if name == "numbers" else "accuracy",
    } | changes
    return with_fields(CLASSIFICATION, fields)


def last_validation(workdir) -> dict[str, float]:
    lines = [json.loads(x) for x in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [x for x in lines if "eval/validation/nll" in x][-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classes", "numbers"])
def test_what_it_learns_and_says_of_new_text(name, text, tmp_path):
    config = config_of(text, name, steps=150, checkpoint_every=150)
    train.train(config, tmp_path / "run", Going())
    model = restore(tmp_path / "run")
    metrics = last_validation(tmp_path / "run")
    with pytest.raises(UserError, match=r"labels\.json is missing; restore it"):
        read_classes(tmp_path / "labels.json", list[str])
    outputs = model.task.evaluate(model.params, model.extra, "validation", lambda *_: None)
    for metric, score in outputs.scores.items():
        expected = metrics[f"eval/validation/{metric}"]
        assert score["score"] == pytest.approx(expected, rel=1e-5)
    again = classification.TASK.rescore(config.data, "validation", outputs.texts["hypotheses"])
    assert again == outputs.scores
    texts = ["one two three", "four one three four", "two two"] * 100
    found = model.task.classify(model.params, model.extra, [(x, None) for x in texts])
    if name == "numbers":
        assert metrics["eval/validation/pearson"] > 85
        numbers = [x["number"] for x in found]
        np.testing.assert_allclose(numbers[:3], [0.5, 0.0, 1.0], atol=0.25)
        np.testing.assert_allclose(numbers, numbers[:3] * 100, atol=1e-5)
        return
    assert metrics["eval/validation/accuracy"] > 95
    assert [x["label"] for x in found] == ["yes", "no", "yes"] * 100
    for x, (label, share) in zip(found, zip(["yes", "no", "yes"] * 100, [0.8] * 300)):
        assert list(x["probabilities"]) == ["no", "yes"]
        assert sum(x["probabilities"].values()) == pytest.approx(1)
        assert x["probabilities"][label] > share
    # A text's probabilities depend neither on its batch nor on what is packed beside it.
    (alone,) = model.task.classify(model.params, model.extra, [(texts[0], None)])
    assert alone["probabilities"]["yes"] == pytest.approx(
        found[0]["probabilities"]["yes"], abs=1e-5
    )


def hub_folder(text, folder, random_params, head="pre_training", **others):
    """A folder of the hub with the sizes of `config_of`; returns its model."""
    tokenizer = write_vocabulary(folder)
    model_config = dataclasses.replace(config_of(text).model, head=head, activation="gelu_exact")
    sizes = Sizes(tokenizer.vocab_size, 3 if head == "classification" else 7, False, 13, 13)
    model = build_model(model_config, sizes)
    params = random_params(model)
    theirs = {
        "model_type": "bert",
        "hidden_size": 14,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 11,
        "max_position_embeddings": 13,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        **others,
    }
    from safetensors.numpy import save_file

    save_file(to_theirs(params, model_config), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(theirs))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()  # vocab.txt is enough
    return params


def begun_with(text, folder, **changes):
    """The task of a run that begins with a folder, and the parameters before its first update."""
    fields = {
        "init_from": str(folder),
        "source_model": None,
        "activation": "gelu_exact",
        "vocab_size": write_vocabulary(text).vocab_size,
    }
    config = config_of(text, **fields | changes)
    origin = init_from.load(config)
    mesh = data_mesh(jax.devices()[:1])
    task = classification.prepare(config, mesh, text / "new", origin.task).task
    return task, init_from.with_heads(origin, task, config).params


def test_a_run_begins_with_a_folder_of_the_hub(text, tmp_path, random_params):
    """The encoder and the pooler are theirs, the classifier is new, the vocabulary is theirs."""
    given = hub_folder(text, tmp_path / "hub", random_params)
    task, found = begun_with(text, tmp_path / "hub")
    assert set(given) - set(found) == {"masked_lm", "next_sentence"}
    for name in set(found) & set(given):
        jax.tree.map(np.testing.assert_array_equal, found[name], given[name])
    fresh, _ = initial_variables(task.model, 0)
    jax.tree.map(np.testing.assert_array_equal, found["classifier"], fresh["classifier"])
    task.save(tmp_path)
    assert (tmp_path / "vocab.txt").read_text() == (tmp_path / "hub/vocab.txt").read_text()

    # Classes of the same names keep their classifiers, others begin with fresh ones.
    names = {"0": "x", "1": "y", "2": "no"}
    given = hub_folder(text, tmp_path / "named", random_params, "classification", id2label=names)
    _, found = begun_with(text, tmp_path / "named")
    no_kernel, yes_kernel = found["classifier"]["kernel"].T
    np.testing.assert_array_equal(no_kernel, given["classifier"]["kernel"][:, 2])
    np.testing.assert_array_equal(yes_kernel, fresh["classifier"]["kernel"][:, 1])
    # Without a pooler, that is new, too.
    hub_folder(text, tmp_path / "masked", random_params, "masked_lm")
    _, found = begun_with(text, tmp_path / "masked")
    jax.tree.map(np.testing.assert_array_equal, found["pooler"], fresh["pooler"])


def test_a_folder_of_other_sizes_is_refused_with_the_flags_that_fit(text, tmp_path, random_params):
    hub_folder(text, tmp_path / "hub", random_params)
    with pytest.raises(UserError) as error:
        begun_with(text, tmp_path / "hub", d_model=16, d_ff=12)
    assert "training.init_from: model.d_model is 14 in" in str(error.value)
    assert "--config.model.d_model=14 --config.model.d_ff=11" in str(error.value)
    with pytest.raises(UserError, match=r"--config\.tokenizer\.vocab_size="):
        begun_with(text, tmp_path / "hub", vocab_size=99)
    # Nor can a run of another family begin with it.
    other = dataclasses.replace(
        CONFIG, model=dataclasses.replace(CONFIG.model, family="transformer")
    )
    with pytest.raises(UserError, match="a run of the family 'bert' can begin with it"):
        pretrained_bert.read(tmp_path / "hub", other)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("classes", {"head": "pre_training"}, "model.head is 'pre_training', and task.name is"),
        ("classes", {"best_metric": "spearman"}, "'spearman', and data.regression is False; give"),
        ("numbers", {"best_metric": "f1"}, "'f1', and data.regression is True; give one of: spea"),
        ("classes", {"max_length": 14}, "data.max_length is 14, but model.max_positions is 13"),
        ("classes", {"regression": True, "best_metric": "nll"}, "the label is 'no', and data.reg"),
        ("classes", {"label_field": "1"}, "unknown label"),
        (
            "classes",
            {"train_file": None},
            "no files for the train split; give data.train_file, or data.dataset",
        ),
    ],
)
def test_what_cannot_be_learned(name, changes, message, text):
    config, mesh = config_of(text, name, **changes), data_mesh(jax.devices()[:1])
    with pytest.raises(UserError, match=message):
        classification.prepare(config, mesh, text / "new", None)


def test_pairs_and_their_export(text, tmp_path, random_params):
    """Hugging Face's library gives an exported classifier's probabilities of pairs."""
    torch = pytest.importorskip("torch", reason=".[bert-test]")
    transformers = pytest.importorskip("transformers", reason=".[bert-test]")
    from transformer.exports import bert_folder

    config, mesh = config_of(text, "pairs"), data_mesh(jax.devices()[:1])
    task = classification.prepare(config, mesh, tmp_path / "run", None).task
    params = random_params(task.model)
    model = TrainedModel(tmp_path, config, task, Chosen("last", [0], 0, False), params, {})
    (tmp_path / "out").mkdir()
    bert_folder.write(model, tmp_path / "out")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    pairs = [("one two", "two"), ("unknown fourteen", "one, three"), ("four", "four four")]
    inputs = tokenizer(*map(list, zip(*pairs)), padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = theirs.eval()(**inputs).logits.numpy()
    found = model.task.classify(model.params, model.extra, pairs)
    expected = jax.nn.softmax(jnp.asarray(logits), axis=-1)
    ours = np.array([list(x["probabilities"].values()) for x in found])
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    assert theirs.config.id2label == {0: "not", 1: "same"}
