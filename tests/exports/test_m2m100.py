"""Hugging Face's M2M100 and NLLB compute what ours compute, from the same folders and back."""

import dataclasses

import jax
import numpy as np
import pytest
from small_m2m import M2M100 as BASE
from small_m2m import TEXT, write_folder
from test_pretrained_seq2seq import padded, theirs_of

from transformer.data.vocabulary import BOS, EOS, PAD
from transformer.decoding.inputs import Request
from transformer.exports import m2m100
from transformer.runs.init_from import of_hub

torch = pytest.importorskip("torch", reason=".[bert-test]")
transformers = pytest.importorskip("transformers", reason=".[bert-test]")

KINDS = {
    "nllb": ("NllbTokenizer", "eng_Latn", "deu_Latn"),
    "wmt21": ("M2M100Tokenizer", "en", "de"),
}
TARGETS = ["drei", "zwei eins", "one", "two"]


@pytest.fixture(scope="module", params=list(KINDS))
def folder(request, tmp_path_factory):
    """A model of an odd size, a little trained there, so that a search ends by itself."""
    folder = tmp_path_factory.mktemp(request.param)
    write_folder(folder, request.param)
    model, tokenizer = of_theirs(folder)
    adam = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(25):
        for source, target in zip(TEXT, TARGETS, strict=True):
            adam.zero_grad()
            model(**tokenizer(source, text_target=target, return_tensors="pt")).loss.backward()
            adam.step()
    model.save_pretrained(folder)
    return folder


def of_theirs(folder):
    """Without dropout."""
    name, source, target = KINDS[folder.name.rstrip("0")]
    tokenizer = getattr(transformers, name).from_pretrained(
        folder, src_lang=source, tgt_lang=target
    )
    return transformers.M2M100ForConditionalGeneration.from_pretrained(folder).eval(), tokenizer


def test_logits_and_loss_are_theirs_with_padding(folder):
    theirs, tokenizer = of_theirs(folder)
    inputs = tokenizer(TEXT, text_target=TARGETS, return_tensors="pt", padding=True)
    inputs["labels"][inputs["labels"] == 1] = -100
    with torch.no_grad():
        expected = theirs(**inputs)
    ours = of_hub(folder, BASE)
    source, target = ours.task.tokenizers
    src, tgt = ([[*x.encode(y), EOS] for y in z] for x, z in ((source, TEXT), (target, TARGETS)))
    for row, (ids, labels) in enumerate(zip(src, tgt, strict=True)):
        assert theirs_of(ids) == [i for i in inputs["input_ids"][row].tolist() if i != 1]
        assert labels == [i for i in inputs["labels"][row].tolist() if i >= 0]
    tgt_in = padded([[BOS, *ids[:-1]] for ids in tgt])
    found = np.asarray(ours.task.model.bind(ours.params)(padded(src), tgt_in))
    order = theirs_of(range(target.vocab_size))
    real = padded(tgt) != PAD
    np.testing.assert_allclose(found[real], expected.logits.numpy()[..., order][real], atol=1e-4)
    log_probs = jax.nn.log_softmax(found)
    nll = -np.take_along_axis(np.asarray(log_probs), padded(tgt)[..., None], -1)[..., 0][real]
    np.testing.assert_allclose(nll.mean(), expected.loss, rtol=1e-5)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_its_search_and_that_of_its_export_find_the_same(folder, beam_size, tmp_path):
    base = dataclasses.replace(
        BASE, decoding=dataclasses.replace(BASE.decoding, beam_size=beam_size, length_penalty=0.0)
    )
    ours = of_hub(folder, base)
    target = ours.task.tokenizers.target
    outputs = ours.task.search(ours.params, {}, list(map(Request, TEXT)))
    outputs = [[*map(int, found[0].tokens)] for found in outputs]
    assert len(set(map(tuple, outputs))) > 2
    out = tmp_path / folder.name
    out.mkdir()
    m2m100.write(ours, out)
    for place in (folder, out):
        theirs, tokenizer = of_theirs(place)
        for text, expected in zip(TEXT, outputs, strict=True):
            inputs = tokenizer(text, return_tensors="pt")
            found = theirs.generate(
                **inputs, forced_bos_token_id=target.beginning[0], num_beams=beam_size,
                length_penalty=0.0, early_stopping="never" if beam_size > 1 else False,
                bad_words_ids=[[0], [1]], max_length=inputs["input_ids"].shape[1] + 9,
            )  # fmt: skip
            assert [i for i in found[0].tolist()[1:] if i != 1] == expected
