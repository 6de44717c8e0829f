"""Hugging Face's MarianMTModel computes what our exports compute."""

import numpy as np
import pytest
from small_models import LINES, trained, trained_model

from transformer.data.vocabulary import BOS, EOS
from transformer.exports import marian
from transformer.exports.folder import new_folder

torch = pytest.importorskip("torch", reason=".[bert-test]")
transformers = pytest.importorskip("transformers", reason=".[bert-test]")

POST = {"norm_epsilon": 1e-5, "activation": "swish", "attention_bias": True}


def loaded(model, folder):
    with new_folder(folder) as temporary:
        marian.write(model, temporary)
    theirs = transformers.MarianMTModel.from_pretrained(folder).eval()
    return theirs, transformers.MarianTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("vocab_sizes", "changes"),
    [
        ((271,), POST),
        ((271,), POST | {"activation": "relu", "attention_bias": False, "output_bias": True}),
        ((271,), POST | {"share_embeddings": "decoder", "scale_embeddings": False}),
        ((271, 269), POST | {"share_embeddings": "none", "num_encoder_layers": 2}),
        ((271, 269), POST | {"share_embeddings": "decoder", "activation": "gelu"}),
    ],
)
def test_its_logits_are_ours(random_params, tmp_path, vocab_sizes, changes):
    model = trained_model(random_params, vocab_sizes, **changes)
    theirs, tokenizer = loaded(model, tmp_path / "exported")
    source, target = model.task.tokenizers
    bound = model.task.model.bind(model.params)
    for line, other in zip(LINES, LINES[::-1], strict=True):
        inputs = tokenizer(line, text_target=other, return_tensors="pt")
        src = [[*source.encode(line), EOS]]
        tgt = [*target.encode(other), EOS]
        assert inputs["input_ids"].tolist() == src
        assert inputs["labels"].tolist() == [tgt]
        tgt_in = [[BOS, *tgt[:-1]]]
        ours = bound(np.array(src), np.array(tgt_in))
        with torch.no_grad():
            found = theirs(inputs["input_ids"], decoder_input_ids=torch.tensor(tgt_in)).logits
            shifted = theirs(**inputs).logits
        np.testing.assert_allclose(found, ours, atol=1e-4)
        np.testing.assert_array_equal(shifted, found)
        assert tokenizer.decode(tgt, skip_special_tokens=True) == other


def test_generate_finds_our_translations(random_params, tmp_path):
    model = trained(trained_model(random_params, num_decoder_layers=2, **POST))
    theirs, tokenizer = loaded(model, tmp_path / "exported")
    ours = model.task.translate(model.params, {}, LINES)
    assert len(set(ours)) == 5
    inputs = tokenizer(LINES, return_tensors="pt", padding=True)
    found = theirs.generate(**inputs, length_penalty=0.0, early_stopping="never")
    assert tokenizer.batch_decode(found, skip_special_tokens=True) == ours
