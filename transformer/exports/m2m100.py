"""A trained Transformer as an M2M100 model of Hugging Face's Transformers library, as NLLB-200 is.

Ids there begin with <s>, <pad>, </s>, ours with <pad>, <s>, </s>.
"""

from pathlib import Path

import numpy as np

from transformer.data.m2m_vocabulary import SENTENCEPIECE, M2MTokenizer
from transformer.data.vocabulary import BOS, EOS, PAD
from transformer.exports.marian import MAX_POSITIONS, fields_of, search_of
from transformer.exports.options import NOT_AT_INFERENCE, OF_THE_CALL, check_known, expect
from transformer.models.marian_weights import ACTIVATIONS, to_theirs
from transformer.models.transformer import TransformerConfig
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError
from transformer.system.files import write_json
from transformer.system.packages import optional_module

SYSTEM = "Hugging Face's M2M100"
KNOWN = (
    *("model.feed_forward_bias", "model.positions", "model.starts_with_eos"),
    "decoding.no_repeat_ngram",
)
INSTEAD = "; use --format=ctranslate2 or stablehlo"
# M2M100Tokenizer has one of two lists of languages, whose tokens follow those of vocab.json.
LANGUAGES = 100  # of M2M100
OF_WMT21 = ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"]


def check(config: TransformerConfig) -> None:
    """Raises UserError for a model that Hugging Face's M2M100 cannot represent."""
    expected = {
        "family": ("transformer",),
        "norm": ("pre",),
        "normalization": ("layer_norm",),
        "positions": ("fairseq",),
        "activation": tuple(ACTIVATIONS),
        "share_embeddings": ("all",),
        "words_per_position": (1,),
    }
    expect(config, SYSTEM, expected, INSTEAD)


def write(model: TrainedModel, folder: Path) -> None:
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files.

    Raises UserError for a model that M2M100 cannot represent, and without safetensors.
    """
    safetensors = optional_module("safetensors.numpy", "exports")
    config, (source, target) = model.config.model, model.task.tokenizers
    check(config)
    check_known(model, SYSTEM, KNOWN, NOT_AT_INFERENCE, OF_THE_CALL)
    if not isinstance(source, M2MTokenizer):
        raise UserError(f"{SYSTEM} needs a vocabulary of M2M100 or NLLB{INSTEAD}")
    ours_V = np.arange(target.vocab_size)  # our id for each of theirs
    ours_V[[BOS, PAD]] = PAD, BOS
    pieces = [target.pieces[i] for i in ours_V]
    _write_tokenizer(source, pieces, target.language, folder)
    weights = to_theirs(model.params, config, ours_V)
    safetensors.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    ids = {
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": EOS,
        "decoder_start_token_id": EOS if config.starts_with_eos else 0,
    }
    own = {
        "model_type": "m2m_100",
        "architectures": ["M2M100ForConditionalGeneration"],
        "vocab_size": target.vocab_size,
        "tie_word_embeddings": True,
    }
    write_json(folder / "config.json", own | ids | fields_of(config))
    search = {"forced_eos_token_id": EOS, "bad_words_ids": [[0], [1]]}
    if target.language:
        search["forced_bos_token_id"] = target.languages[target.language]
    write_json(folder / "generation_config.json", ids | search | search_of(model))


def _write_tokenizer(tokenizer: M2MTokenizer, pieces: list[str], target: str, folder: Path) -> None:
    """pieces: in the order of their ids. target: the language."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    by_id = {ids[piece]: piece for piece in tokenizer.special}
    languages = sorted(tokenizer.languages.values())
    content = {
        "tokenizer_class": "NllbTokenizer",
        "src_lang": tokenizer.language or None,
        "tgt_lang": target or None,
        "model_max_length": MAX_POSITIONS,
        "additional_special_tokens": [by_id[i] for i in languages],
        "added_tokens_decoder": {
            str(i): {"content": by_id[i], "special": True, "lstrip": by_id[i] == "<mask>"}
            | dict.fromkeys(("normalized", "rstrip", "single_word"), False)
            for i in sorted(by_id)
        },
    }
    if by_id[languages[0]].startswith("_"):  # not of NLLB
        codes = [by_id[i].strip("_") for i in languages]
        content["tokenizer_class"] = "M2M100Tokenizer"
        content["language_codes"] = "m2m100" if len(codes) == LANGUAGES else "wmt21"
        is_known = len(codes) == LANGUAGES or codes == OF_WMT21
        is_known &= languages == [*range(languages[0], languages[0] + len(codes))]
        write_json(folder / "vocab.json", {x: i for i, x in enumerate(pieces[: languages[0]])})
    else:
        own = tokenizer.sentencepiece_pieces[3:]
        is_known = pieces[4 : len(own) + 4] == own
    if not is_known:
        raise UserError(
            f"the vocabulary has been trimmed, and tokenizers of {SYSTEM} have all pieces and "
            f"languages{INSTEAD}"
        )
    (folder / SENTENCEPIECE).write_bytes(tokenizer.sentencepiece_model)
    write_json(folder / "tokenizer_config.json", content)
