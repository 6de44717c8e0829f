"""No export writes a model without an option that it does not know."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from small_bert import CONFIG as BERT
from small_bert import write_vocabulary
from small_configs import MODEL
from small_m2m import M2M100, write_folder
from small_models import trained_model

from transformer.data.subword_nmt import train_subword_nmt
from transformer.data.tokenizers import Tokenizers
from transformer.decoding.config import DecodingConfig
from transformer.exports import bert_folder, ctranslate2, m2m100, marian, stablehlo
from transformer.exports.folder import new_folder
from transformer.exports.options import NOT_AT_INFERENCE, OF_THE_CALL
from transformer.models.bert.bert import BertConfig
from transformer.models.family import Sizes, build_model
from transformer.models.transformer import TransformerConfig
from transformer.runs.init_from import of_hub
from transformer.runs.restore import Chosen, TrainedModel
from transformer.system.errors import UserError
from transformer.tasks.pretrained_bert import HubTask


def small_transformer(random_params, folder) -> TrainedModel:
    del folder
    return trained_model(random_params, attention_bias=True, norm_epsilon=1e-5)


def small_bert(random_params, folder) -> TrainedModel:
    tokenizer = write_vocabulary(folder / "vocabulary")
    config = dataclasses.replace(BERT, model=dataclasses.replace(BERT.model, head="masked_lm"))
    model = build_model(config.model, Sizes(*2 * [tokenizer.vocab_size], False, 1, 1))
    task, chosen = HubTask(model, tokenizer, None), Chosen("last", [3], 3, False)
    return TrainedModel(Path("run"), config, task, chosen, random_params(model), {})


def small_m2m100(random_params, folder) -> TrainedModel:
    (folder / "hub").mkdir()
    write_folder(folder / "hub", "wmt21")
    return of_hub(folder / "hub", M2M100)


class Export(NamedTuple):
    module: Any
    package: str
    make: Callable[..., TrainedModel]
    write: Callable[[TrainedModel, Path], None]


EXPORTS = {
    "ctranslate2": Export(
        ctranslate2, "ctranslate2", small_transformer, lambda *x: ctranslate2.write(*x, "float32")
    ),
    "huggingface": Export(marian, "safetensors", small_transformer, marian.write),
    "m2m100": Export(m2m100, "safetensors", small_m2m100, m2m100.write),
    "bert": Export(bert_folder, "safetensors", small_bert, bert_folder.write),
    "stablehlo": Export(
        stablehlo, "flatbuffers", small_transformer, lambda *x: stablehlo.write(*x, [3])
    ),
}


@dataclasses.dataclass(frozen=True)
class TransformerOption(TransformerConfig):
    value_norm: bool = False


@dataclasses.dataclass(frozen=True)
class BertOption(BertConfig):
    value_norm: bool = False


@dataclasses.dataclass(frozen=True)
class SearchOption(DecodingConfig):
    typical_p: float = 1.0


def with_option(section, **option):
    """The same section of a class that has one more field."""
    kinds = {TransformerConfig: TransformerOption, BertConfig: BertOption}
    kinds[DecodingConfig] = SearchOption
    return kinds[type(section)](**vars(section), **option)


@pytest.mark.parametrize("name", ["ctranslate2", "huggingface", "m2m100", "bert"])
def test_an_option_of_the_model(name, random_params, tmp_path):
    """Stablehlo runs the model's own code, which knows them all."""
    export = EXPORTS[name]
    pytest.importorskip(export.package, reason=".[exports]")
    model = export.make(random_params, tmp_path)
    option = with_option(model.config.model, value_norm=True)
    model = dataclasses.replace(model, config=dataclasses.replace(model.config, model=option))
    with (
        pytest.raises(UserError, match=r"^model\.value_norm is True, which .* does not have; exp"),
        new_folder(tmp_path / "exported") as folder,
    ):
        export.write(model, folder)
    assert not (tmp_path / "exported").exists()


@pytest.mark.parametrize("name", ["ctranslate2", "huggingface", "m2m100", "stablehlo"])
def test_an_option_of_the_search(name, random_params, tmp_path):
    """Off, it is as in all models before it."""
    export = EXPORTS[name]
    pytest.importorskip(export.package, reason=".[exports]")
    model = export.make(random_params, tmp_path)
    translator = model.task.translator
    of_samples = r"(temperature is 1.0|seed is 7), which .* give --(temperature=0.0|seed=0) to"
    changes = {
        "typical_p is 0.2, which .*--typical_p=1.": with_option(translator.config, typical_p=0.2),
        "int8 is True, .* give --int8=False": dataclasses.replace(translator.config, int8=True),
        of_samples: dataclasses.replace(translator.config, temperature=1.0, seed=7),
    }
    for message, translator.config in changes.items():
        with (
            pytest.raises(UserError, match=rf"^decoding\.{message}"),
            new_folder(tmp_path / "exported") as folder,
        ):
            export.write(model, folder)
        assert not (tmp_path / "exported").exists()
    if name != "stablehlo":
        translator.config = with_option(DecodingConfig(4, 0.6, 50))
        with new_folder(tmp_path / "exported") as folder:
            export.write(model, folder)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("ctranslate2", {"activation": "elu"}, "'elu', and CTranslate2 has only 'relu', 'gelu' or"),
        ("ctranslate2", {"words_per_position": 3}, "model.words_per_position is 3"),
        ("ctranslate2", {"d_v": 5}, "d_v 5, and CTranslate2 has only heads of d_model / num_head"),
        ("huggingface", {"norm": "pre"}, "model.norm is 'pre', and .*Marian has only 'post'; use"),
        ("huggingface", {"normalization": "rms_norm"}, "model.normalization is 'rms_norm'"),
        ("huggingface", {"positions": "learned"}, "model.positions is 'learned'"),
        ("huggingface", {"activation": "elu"}, "model.activation is 'elu'"),
        ("huggingface", {"words_per_position": 3}, "model.words_per_position is 3"),
        ("huggingface", {"d_k": 3}, "d_k is 3 .* only heads of d_model / num_heads = 7; use --f"),
        ("m2m100", {"norm": "post"}, "model.norm is 'post', and .*M2M100 has only 'pre'; use --f"),
        ("m2m100", {"positions": "sinusoidal"}, "positions is 'sinusoidal', and .* only 'fairseq'"),
        ("m2m100", {"share_embeddings": "none"}, "model.share_embeddings is 'none'"),
        ("bert", {"norm": "pre"}, "model.norm is 'pre', and Hugging Face's BERT has only 'post'"),
        ("bert", {"d_k": 5}, "model.d_k is 5"),
        ("bert", {"attention_bias": False}, "model.attention_bias is False"),
    ],
)
def test_models_that_a_format_cannot_hold(random_params, name, changes, message):
    base = BERT.model if name == "bert" else dataclasses.replace(MODEL, attention_bias=True)
    if name == "m2m100":
        base = dataclasses.replace(base, norm="pre", positions="fairseq")
    config = dataclasses.replace(base, **changes)
    tokenizers = [trained_model(random_params).task.tokenizers] * (name == "huggingface")
    with pytest.raises(UserError, match=message):
        EXPORTS[name].module.check(config, *tokenizers)


def test_known_options_are_fields():
    sections = {"model": MODEL, "decoding": DecodingConfig(4, 0.6, 50)}
    known = *ctranslate2.KNOWN, *marian.KNOWN, *m2m100.KNOWN, *stablehlo.KNOWN
    for name in (*known, *NOT_AT_INFERENCE, *OF_THE_CALL):
        section, _, field = name.partition(".")
        assert hasattr(sections[section], field), name


def test_vocabularies_that_m2m100_cannot_have(random_params, tmp_path):
    pytest.importorskip("safetensors", reason=".[exports]")
    model = small_m2m100(random_params, tmp_path)
    other = trained_model(random_params).task.tokenizers
    few, _ = model.task.tokenizers.source.for_language("").trimmed(["en", "de"], ["one two"])
    for tokenizers, message in (
        (other, "M2M100 needs a vocabulary of M2M100 or NLLB; use --format=ctranslate2"),
        (Tokenizers(few, few), "vocabulary has been trimmed, and tokenizers of .* have all pieces"),
    ):
        model.task.tokenizers = tokenizers
        with pytest.raises(UserError, match=message):
            m2m100.write(model, tmp_path)


def test_marian_needs_sentencepiece():
    words = train_subword_nmt(["one one two two"], num_merges=2)
    config = dataclasses.replace(MODEL, activation="swish")
    with pytest.raises(UserError, match="need a SentencePiece vocabulary"):
        marian.check(config, Tokenizers(words, words))
