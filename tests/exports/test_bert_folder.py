"""BERT models of Hugging Face's library, imported and exported, compute what ours compute."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_bert import CONFIG, write_vocabulary

from transformer.data.sequences import Labelled
from transformer.exports import bert_folder
from transformer.models.functional import num_params
from transformer.runs.init_from import of_hub

torch = pytest.importorskip("torch", reason=".[bert-test]")
transformers = pytest.importorskip("transformers", reason=".[bert-test]")

KINDS = {
    "none": "BertModel",
    "masked_lm": "BertForMaskedLM",
    "pre_training": "BertForPreTraining",
    "classification": "BertForSequenceClassification",
}
# Rows with padding; and with one token type and with two.
LENGTHS = (11, 7, 2)


def their_model(head, folder, vocab_size, **changes):
    config = transformers.BertConfig(
        vocab_size=vocab_size,
        **{
            "hidden_size": 14,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 11,
            "max_position_embeddings": 13,
            "num_labels": 3,
            **changes,
        },
    )
    torch.manual_seed(3)
    model = getattr(transformers, KINDS[head])(config).eval()
    with torch.no_grad():  # what begins at 0 or 1, too
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return model


def inputs(vocab_size):
    rng = np.random.default_rng(0)
    tokens = np.zeros((len(LENGTHS), max(LENGTHS)), np.int64)
    types = np.zeros_like(tokens)
    for row, length in enumerate(LENGTHS):
        tokens[row, :length] = rng.integers(1, vocab_size, length)
        types[row, length // 2 : length] = row != 1
    return tokens, types


def their_outputs(model, tokens, types):
    with torch.no_grad():
        found = model(
            input_ids=torch.tensor(tokens),
            token_type_ids=torch.tensor(types),
            attention_mask=torch.tensor((tokens > 0).astype(np.int64)),
        )
    return {name: x.numpy() for name, x in found.items()}


def our_outputs(model, tokens, types):
    """The same outputs, by the names that they have there."""
    bound = model.task.model.bind(jax.tree.map(jnp.asarray, model.params))
    head, firsts = model.config.model.head, np.zeros((len(tokens), 1), np.int32)
    if head == "classification":
        batch = Labelled(tokens, types, (tokens > 0).astype(np.int32), firsts, firsts, firsts + 1)
        return {"logits": bound.classify(batch)[:, 0]}
    x_BSD, _ = bound.encode(tokens, types)
    if head == "none":
        pooled = bound.pool(x_BSD, firsts)[:, 0]
        return {"last_hidden_state": x_BSD, "pooler_output": pooled}
    logits = bound.masked_lm_logits(x_BSD)
    if head == "masked_lm":
        return {"logits": logits}
    pairs = bound.next_sentence_logits(bound.pool(x_BSD, firsts))[:, 0]
    return {"prediction_logits": logits, "seq_relationship_logits": pairs}


def assert_same_outputs(found, expected, tokens):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        of_tokens = x.ndim == 3
        real = tokens > 0 if of_tokens else slice(None)
        np.testing.assert_allclose(found[name][real], x[real], atol=1e-5, err_msg=name)
        assert np.ptp(x[real]) > 0.1


@pytest.mark.parametrize("head", KINDS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_an_imported_model_and_its_export(head, activation, tmp_path):
    tokenizer = write_vocabulary(tmp_path / "theirs")
    theirs = their_model(head, tmp_path / "theirs", tokenizer.vocab_size, hidden_act=activation)
    tokens, types = inputs(tokenizer.vocab_size)
    expected = their_outputs(theirs, tokens, types)

    imported = of_hub(tmp_path / "theirs", CONFIG)
    assert imported.config.model.head == head
    assert_same_outputs(our_outputs(imported, tokens, types), expected, tokens)

    task = imported.task
    if head == "classification":
        task = Classes(*imported.task[:2], labels=["x", "y", "z"])
    (tmp_path / "exported").mkdir()
    bert_folder.write(dataclasses.replace(imported, task=task), tmp_path / "exported")
    cls = getattr(transformers, KINDS[head])
    back, info = cls.from_pretrained(tmp_path / "exported", output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert back.config.hidden_act == activation
    assert_same_outputs(their_outputs(back.eval(), tokens, types), expected, tokens)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    text = "Three one, two-one [MASK] unknown"
    ours = [tokenizer.cls, *tokenizer.encode_batch(["three one, two-one"])[0]]
    assert again(text)["input_ids"][: len(ours)] == ours
    assert again(text)["input_ids"][-1] == tokenizer.sep
    assert again.mask_token_id == tokenizer.mask


@dataclasses.dataclass
class Classes:
    model: object
    tokenizer: object
    labels: list[str]
    is_regression: bool = False


def test_a_size_of_the_hub_has_the_published_number_of_parameters(tmp_path):
    """bert_tiny in our count and in theirs."""
    from configs import bert_tiny
    from transformer.models.bert.bert import BertConfig
    from transformer.models.family import Sizes, build_model

    theirs = transformers.BertModel(
        transformers.BertConfig(
            hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
        )
    )
    config = bert_tiny.get_config().model.to_dict() | {"head": "none"}
    ours = build_model(BertConfig(**config), Sizes(30_522, 30_522, True, 128, 128))
    assert num_params(ours.abstract_params()) == theirs.num_parameters() == 4_385_920


def test_names_of_older_files_and_weights_without_a_prefix(tmp_path):
    """The hub's bert-base-uncased calls scale and bias gamma and beta."""
    from safetensors.numpy import load_file, save_file

    tokenizer = write_vocabulary(tmp_path)
    their_model("pre_training", tmp_path, tokenizer.vocab_size)
    expected = of_hub(tmp_path, CONFIG).params
    weights = load_file(tmp_path / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): weight
        for name, weight in weights.items()
    }
    assert old.keys() != weights.keys()
    save_file(old, tmp_path / "model.safetensors")
    found = of_hub(tmp_path, CONFIG).params
    jax.tree.map(np.testing.assert_array_equal, found, expected)
