"""A trained Transformer as a Marian model of Hugging Face's Transformers library."""

from pathlib import Path
from typing import Any

from transformer.data.marian_vocabulary import MarianTokenizer
from transformer.data.sentencepiece import SentencePieceTokenizer
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import BOS, EOS, PAD, UNK
from transformer.exports.folder import unique_pieces
from transformer.exports.options import NOT_AT_INFERENCE, OF_THE_CALL, check_known, expect
from transformer.models.encoder_decoder import SHARE_EMBEDDINGS
from transformer.models.marian_weights import ACTIVATIONS, to_theirs
from transformer.models.transformer import TransformerConfig
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError
from transformer.system.files import write_json
from transformer.system.packages import optional_module

MAX_POSITIONS = 1024  # of the table that they compute; longer sentences are an error there
SYSTEM = "Hugging Face's Marian"
_IDS = {
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "decoder_start_token_id": BOS,
}
KNOWN = "model.feed_forward_bias", "model.output_bias", "decoding.no_repeat_ngram"


def check(config: TransformerConfig, tokenizers: Tokenizers) -> None:
    """Raises UserError for a model that Hugging Face's Marian cannot represent."""
    expected = {
        "family": ("transformer",),
        "norm": ("post",),
        "normalization": ("layer_norm",),
        "positions": ("sinusoidal",),
        "activation": tuple(ACTIVATIONS),
        "share_embeddings": SHARE_EMBEDDINGS,
        "words_per_position": (1,),
    }
    hint = "; use --format=ctranslate2 or stablehlo"
    expect(config, SYSTEM, expected, hint)
    if not all(isinstance(x, SentencePieceTokenizer | MarianTokenizer) for x in tokenizers):
        raise UserError(
            "Marian models of Hugging Face need a SentencePiece vocabulary (tokenizer.model_type "
            "bpe or unigram); use --format=ctranslate2 or stablehlo"
        )


def write(model: TrainedModel, folder: Path) -> None:
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files.

    Raises UserError for a model that Hugging Face's Marian cannot represent, and without
    safetensors.
    """
    safetensors = optional_module("safetensors.numpy", "exports")
    config, tokenizers = model.config.model, model.task.tokenizers
    check(config, tokenizers)
    check_known(model, SYSTEM, KNOWN, NOT_AT_INFERENCE, OF_THE_CALL)
    _write_tokenizers(tokenizers, model.config.data, folder)
    safetensors.save_file(
        to_theirs(model.params, config), folder / "model.safetensors", {"format": "pt"}
    )
    write_json(folder / "config.json", config_of(config, tokenizers.vocab_sizes))
    search = {"forced_eos_token_id": EOS, "bad_words_ids": [[PAD], [BOS]]}
    write_json(folder / "generation_config.json", _IDS | search | search_of(model))


def config_of(config: TransformerConfig, vocab_sizes: tuple[int, int]) -> dict[str, Any]:
    """Their config.json; vocab_sizes are of source and target."""
    source_vocab, target_vocab = vocab_sizes
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": source_vocab,
        "decoder_vocab_size": target_vocab,
        "static_position_embeddings": True,
        "share_encoder_decoder_embeddings": config.share_embeddings == "all",
        "tie_word_embeddings": config.share_embeddings != "none",
        "forced_eos_token_id": EOS,
        **_IDS,
        **fields_of(config),
    }


def fields_of(config: TransformerConfig) -> dict[str, Any]:
    """The fields of config.json that Marian and M2M100 share."""
    return {
        "is_encoder_decoder": True,
        "dtype": "float32",
        "d_model": config.d_model,
        **{f"{side}_attention_heads": config.num_heads for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": config.d_ff for side in ("encoder", "decoder")},
        "encoder_layers": config.num_encoder_layers,
        "decoder_layers": config.num_decoder_layers,
        "activation_function": ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": config.scale_embeddings,
        "max_position_embeddings": MAX_POSITIONS,
    }


def search_of(model: TrainedModel) -> dict[str, Any]:
    """The fields of generation_config.json that Marian and M2M100 share."""
    decoding = model.task.translator.config
    return {
        "num_beams": decoding.beam_size,
        "no_repeat_ngram_size": decoding.no_repeat_ngram,
        "max_length": 512,
    }


def _write_tokenizers(tokenizers: Tokenizers, data: Any, folder: Path) -> None:
    names = "source", "target"
    for name, tokenizer in zip(names, tokenizers, strict=True):
        is_marian = isinstance(tokenizer, MarianTokenizer)
        proto = tokenizer.sentencepiece_model if is_marian else tokenizer.model_bytes
        (folder / f"{name}.spm").write_bytes(proto)
    files = ["vocab.json"] if tokenizers.joint else ["vocab.json", "target_vocab.json"]
    for file, tokenizer in zip(files, tokenizers, strict=False):
        ids = {piece: i for i, piece in enumerate(unique_pieces(tokenizer))}
        write_json(folder / file, ids)
    pad, eos, unk = (tokenizers.source.pieces[i] for i in (PAD, EOS, UNK))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": data.source_language,
            "target_lang": data.target_language,
            "separate_vocabs": not tokenizers.joint,
            "pad_token": pad,
            "eos_token": eos,
            "unk_token": unk,
            "model_max_length": MAX_POSITIONS,
        },
    )
