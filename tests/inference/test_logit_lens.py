"""What each layer would predict."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_bert import trained_bert
from small_configs import model_config
from small_models import trained, trained_model
from test_attention_maps import RNN

from configs import t_dmca
from transformer.data.vocabulary import BOS, EOS
from transformer.inference.logit_lens import logit_lens
from transformer.models.attention import Mask
from transformer.models.decoder_only.decoder_only import DecoderOnlyConfig
from transformer.system.errors import UserError
from transformer.tasks.language_model import LanguageModel


def best(logits_TV) -> tuple[np.ndarray, np.ndarray]:
    probabilities_TV = np.asarray(jax.nn.softmax(logits_TV))
    return probabilities_TV.argmax(-1), probabilities_TV.max(-1)


def assert_row(found, layer, logits_TV):
    tokens_T, probabilities_T = best(logits_TV)
    np.testing.assert_array_equal(found.tokens_LT[layer], tokens_T)
    np.testing.assert_allclose(found.probabilities_LT[layer], probabilities_T, rtol=1e-4)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_each_layer_of_a_decoder(random_params, norm):
    """The last predicts as the model does; the lower ones as the model's parts by hand."""
    model = trained_model(random_params, num_decoder_layers=2, norm=norm)
    found = logit_lens(model, "one two three", "three  one")
    source, target = (x.encode(y) for x, y in
                      zip(model.task.tokenizers, ("one two three", "three  one")))  # fmt: skip
    src_BS, tgt_BT = np.array([[*source, EOS]]), np.array([[BOS, *target]])
    bound = model.task.model.bind(model.params)

    @jax.jit
    def by_hand():
        one_BT, positions_T = jnp.ones_like(tgt_BT), jnp.arange(tgt_BT.shape[1])
        embedded_BTD = bound._embed_target(tgt_BT, positions_T[None], None)
        layer = bound.decoder_layers[0]
        memory = layer.cross_attention.key_values(bound.encode(src_BS))
        masks = Mask(one_BT, one_BT, positions_T), Mask(one_BT, jnp.ones_like(src_BS))
        y_BTD, _ = layer(embedded_BTD, memory, *masks)
        lower = [bound.logits_of(bound.decoder_norm(x)) for x in (embedded_BTD, y_BTD)]
        return [*lower, bound(src_BS, tgt_BT)]

    for layer, logits_BTV in enumerate(by_hand()):
        assert_row(found, layer, logits_BTV[0])
    assert found.inputs[0] == "BOS"
    assert found.inputs[1:] == found.targets[:-1]
    assert found.targets[-1] == "EOS"
    assert [len(row) for row in found.texts] == 3 * [len(found.targets)]


def test_the_last_layer_writes_the_translation(random_params):
    model = trained(trained_model(random_params, beam_size=1), 60)
    found = logit_lens(model, "one two")
    assert found.texts[-1] == found.targets
    decode = model.task.tokenizers.target.decode
    assert [decode(found.tokens_LT[-1])] == model.task.translate(model.params, {}, ["one two"])


def test_a_decoder_alone(random_params):
    base = model_config(
        DecoderOnlyConfig, t_dmca, layers="LF", block_length=4, num_heads=2, d_model=14, d_ff=11
    )
    model = trained_model(random_params, base=base)
    found = logit_lens(model, "one", "two")
    source, target = model.task.tokenizers.source.encode("one"), found.tokens_LT.shape[1] - 1
    ids = model.task.tokenizers.target.encode("two")
    assert (len(found.texts), target) == (3, len(ids))
    bound = model.task.model.bind(model.params)
    logits_BTV = jax.jit(bound)(np.array([[*source, EOS]]), np.array([[BOS, *ids]]))
    assert_row(found, -1, logits_BTV[0])
    # A language model reads its one text.
    task = model.task
    task = LanguageModel(task.data, task.tokenizers, task.model, task.translator.config, task.mesh)
    text = logit_lens(dataclasses.replace(model, task=task), "two")
    assert text.inputs == found.inputs


def test_bert_predicts_what_it_reads(random_params):
    model = trained_bert(random_params)
    found = logit_lens(model, "one [MASK] three")
    assert found.inputs == found.targets == ["[CLS]", "one", "[MASK]", "three", "[SEP]"]
    bound, tokenizer = model.task.model.bind(model.params), model.task.tokenizer

    @jax.jit
    def real(ids_BS):
        return bound.masked_lm_logits(bound.encode(ids_BS, jnp.zeros_like(ids_BS))[0])

    assert_row(found, -1, real(np.array([[tokenizer.ids[x] for x in found.inputs]]))[0])
    for text, target, message in (
        ("one " * 12, None, "more than 13 tokens"),
        ("one", "two", "no target here"),
        (" ", None, "is empty"),
    ):
        with pytest.raises(UserError, match=message):
            logit_lens(model, text, target)


def test_models_without_such_layers_and_long_texts_are_refused(random_params):
    with pytest.raises(UserError, match="run has a model of the family rnn; give one of transf"):
        logit_lens(trained_model(random_params, base=RNN), "one")
    with pytest.raises(UserError, match="more than 64 tokens"):
        logit_lens(trained_model(random_params), "one", "two " * 64)
