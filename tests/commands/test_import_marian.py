"""Hugging Face's Marian models, of random weights, are ours after an import."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import sentencepiece
from small_configs import PAPER

from transformer.data.vocabulary import BOS, EOS, PAD, UNK
from transformer.exports import marian
from transformer.exports.folder import new_folder
from transformer.exports.workdir import export
from transformer.runs import init_from
from transformer.runs.init_from import of_hub
from transformer.runs.restore import restore
from transformer.system.errors import UserError

torch = pytest.importorskip("torch", reason=".[bert-test]")
transformers = pytest.importorskip("transformers", reason=".[bert-test]")

BASE = dataclasses.replace(
    PAPER, decoding=dataclasses.replace(PAPER.decoding, length_penalty=0.0, max_extra_length=9)
)
PAIRS = [("one two", "zwei"), ("three", "drei eins"), (">>deu<< two", "eins eins zwei"), ("ö", "ß")]


def train_spm(path, text, vocab_size):
    """As OPUS-MT trains them: no padding, and special tokens in other places than ours."""
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_writer=file, vocab_size=vocab_size,
            model_type="unigram", minloglevel=3, hard_vocab_limit=False,
        )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(i) for i in range(3, processor.vocab_size())]


@pytest.fixture(scope="module", params=["shared", "separate", "untied"])
def folder(request, tmp_path_factory):
    """What the hub has of a model, with weights drawn at random."""
    folder = tmp_path_factory.mktemp(request.param)
    source = train_spm(folder / "source.spm", ["one two three", "two one"], 29)
    target = train_spm(folder / "target.spm", ["eins zwei drei", "zwei eins"], 31)
    is_shared = request.param == "shared"
    sides = [[*dict.fromkeys([*source, *target])]] if is_shared else [source, target]
    # Where the padding is last there, and EOS first, all other ids differ from ours.
    vocabularies = [["</s>", "<unk>", ">>deu<<", *pieces] for pieces in sides]
    size = 270
    for pieces in vocabularies:
        pieces += [f"▁unused{i}" for i in range(size - len(pieces))] + ["<pad>"]
    for name, pieces in zip(("vocab.json", "target_vocab.json"), vocabularies, strict=False):
        ids = {piece: i for i, piece in enumerate(pieces)}
        (folder / name).write_text(json.dumps(ids))
    tokenizer_config = {"source_lang": "en", "target_lang": "de", "separate_vocabs": not is_shared}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    config = transformers.MarianConfig(
        vocab_size=size + 1, d_model=14, encoder_layers=2, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=11,
        decoder_ffn_dim=11, activation_function="swish", scale_embedding=True,
        max_position_embeddings=53, eos_token_id=0, forced_eos_token_id=0, pad_token_id=size,
        decoder_start_token_id=size, share_encoder_decoder_embeddings=is_shared,
        tie_word_embeddings=request.param != "untied",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MarianMTModel(config)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.final_logits_bias.normal_()
    for table in (model.get_encoder().embed_tokens, model.get_decoder().embed_tokens):
        table.weight.data[size] = 0
    model.generation_config.bad_words_ids = [[size]]
    # A little training, so that a search ends before its longest output.
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    adam = torch.optim.Adam(model.parameters(), 0.01)
    model.eval()  # without dropout
    for source, target in 60 * PAIRS:
        adam.zero_grad()
        model(**tokenizer(source, text_target=target, return_tensors="pt")).loss.backward()
        adam.step()
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def theirs(folder):
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    return model, transformers.MarianTokenizer.from_pretrained(folder)


def test_its_logits_are_theirs(folder, theirs):
    theirs, tokenizer = theirs
    ours = of_hub(folder, BASE)
    source, target = ours.task.tokenizers
    bound = ours.task.model.bind(ours.params)
    # Ids there by ids here; our PAD is new, and BOS is their padding.
    there = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
    ids = [there.get(piece, theirs.config.pad_token_id) for piece in target.pieces]
    assert ids[PAD] == ids[BOS] == theirs.config.pad_token_id
    for line, other in PAIRS:
        inputs = tokenizer(line, text_target=other, return_tensors="pt")
        src = [[*source.encode(line), EOS]]
        tgt = [*target.encode(other), EOS]
        src_there, tgt_there = (inputs[name][0].tolist() for name in ("input_ids", "labels"))
        assert [tokenizer.encoder[source.pieces[i]] for i in src[0]] == src_there
        assert [ids[i] for i in tgt] == tgt_there
        with torch.no_grad():
            expected = theirs(**inputs).logits[0].numpy()[:, ids]
        found = bound(np.array(src), np.array([[BOS, *tgt[:-1]]]))[0]
        np.testing.assert_allclose(found[:, BOS:], expected[:, BOS:], atol=1e-4)
        assert np.max(found[:, PAD]) < -50
        if UNK not in tgt:
            assert target.decode(tgt) == tokenizer.decode(tgt_there, skip_special_tokens=True)


def test_its_search_finds_what_generate_finds(folder, theirs, tmp_path):
    """From the work directory, as translate.py would."""
    theirs, tokenizer = theirs
    export(of_hub(folder, BASE), tmp_path / "run")
    ours = restore(tmp_path / "run")
    lines = [line for line, _ in PAIRS[:3]]
    translations = ours.task.translate(ours.params, {}, lines)
    assert len(set(translations)) > 1
    for line, expected in zip(lines, translations, strict=True):
        inputs = tokenizer(line, return_tensors="pt")
        found = theirs.generate(
            **inputs, num_beams=4, length_penalty=0.0, early_stopping="never",
            max_length=inputs["input_ids"].shape[1] + 9,
        )  # fmt: skip
        found = tokenizer.decode(found[0], skip_special_tokens=True)
        assert found.split() == expected.replace("⁇", " ").split()  # theirs leaves UNK out


def test_it_goes_there_and_back(folder, theirs, tmp_path):
    ours = of_hub(folder, BASE)
    with new_folder(tmp_path / "again") as temporary:
        marian.write(ours, temporary)
    again = of_hub(tmp_path / "again", BASE)
    assert again.task.tokenizers.source.pieces == ours.task.tokenizers.source.pieces
    assert [x.sha256 for x in again.task.tokenizers] == [x.sha256 for x in ours.task.tokenizers]
    jax.tree.map(np.testing.assert_array_equal, again.params, ours.params)


def test_a_run_begins_with_it(folder, tmp_path):
    model = of_hub(folder, BASE)
    export(model, tmp_path / "opus")
    training = dataclasses.replace(model.config.training, init_from=str(tmp_path / "opus"))
    begun = init_from.load(dataclasses.replace(model.config, training=training))
    jax.tree.map(np.testing.assert_array_equal, begun.params, model.params)
    with pytest.raises(UserError, match=r"sampling_alpha leaves out merges, and .* of Marian"):
        begun.task.tokenizers.source.sample_batch(["one"], 0.1, 0)
