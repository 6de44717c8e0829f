"""A small folder of M2M100 or NLLB-200 as the hub has it, with random weights; its model in NumPy.

The model is written from Hugging Face's modeling_m2m_100.py, one sentence at a time in float64.
"""

import dataclasses
import json

import numpy as np
import sentencepiece
from small_configs import PAPER

from transformer.runs.init_from import of_hub
from transformer.runs.run_config import with_fields

# The config of a run that begins with such a folder.
M2M100 = dataclasses.replace(
    PAPER,
    data=dataclasses.replace(PAPER.data, source_language="en", target_language="de"),
    decoding=dataclasses.replace(PAPER.decoding, beam_size=1, max_extra_length=9),
    tokenizer=dataclasses.replace(PAPER.tokenizer, model_type="word"),  # which may have few pieces
)

TEXT = ["one two three", "eins zwei drei", "two one", "zwei eins drei"]
FIRST = ["<s>", "<pad>", "</s>", "<unk>"]
LANGUAGES = {  # in the form of each kind, in the order of their ids
    "nllb": ["deu_Latn", "eng_Latn", "zho_Hans"],
    "wmt21": [f"__{x}__" for x in ("en", "ha", "is", "ja", "cs", "ru", "zh", "de")],
}
SIZES = {
    "d_model": 15, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 11,
    "decoder_ffn_dim": 11, "encoder_attention_heads": 3, "decoder_attention_heads": 3,
}  # fmt: skip
CONFIG = {
    "model_type": "m2m_100", "activation_function": "relu", "scale_embedding": True,
    "decoder_start_token_id": 2, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    "max_position_embeddings": 1024, "num_hidden_layers": 2,
    "is_encoder_decoder": True, "tie_word_embeddings": True,
}  # fmt: skip


def write_vocabulary(folder, kind="nllb", more=0) -> int:
    """Writes the tokenizer's files; returns how many rows the table of embeddings has.

    more: pieces that no text has; not with nllb.
    """
    with (folder / "sentencepiece.bpe.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT), model_writer=file, vocab_size=40, model_type="bpe",
            minloglevel=3, hard_vocab_limit=False,
        )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(folder / "sentencepiece.bpe.model")
    )
    own = [processor.id_to_piece(i) for i in range(3, processor.vocab_size())]
    own += [f"▁unused{i}" for i in range(more)]
    content = {"additional_special_tokens": LANGUAGES[kind]}
    size = len(FIRST) + len(own) + len(LANGUAGES[kind])
    if kind == "nllb":
        content |= {"tokenizer_class": "NllbTokenizer", "mask_token": "<mask>"}
        content["added_tokens_decoder"] = {
            str(i): {"content": x, "special": True}
            for i, x in enumerate([*LANGUAGES[kind], "<mask>"], len(FIRST) + len(own))
        }
        size += 1
    else:
        content |= {"tokenizer_class": "M2M100Tokenizer", "language_codes": kind}
        ids = {piece: i for i, piece in enumerate(FIRST + own)}
        (folder / "vocab.json").write_text(json.dumps(ids))
        size += 3  # rows of no token
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return size


def shapes(config) -> dict[str, tuple[int, ...]]:
    D, found = config["d_model"], {"model.shared.weight": (config["vocab_size"], config["d_model"])}
    for side in ("encoder", "decoder"):
        F = config[f"{side}_ffn_dim"]
        for layer in range(config[f"{side}_layers"]):
            at = f"model.{side}.layers.{layer}"
            for attention in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
                for part in "qkv":
                    found |= _linear(f"{at}.{attention}.{part}_proj", D, D)
                found |= _linear(f"{at}.{attention}.out_proj", D, D)
                found |= _linear(f"{at}.{attention}_layer_norm", D)
            found |= _linear(f"{at}.fc1", F, D) | _linear(f"{at}.fc2", D, F)
            found |= _linear(f"{at}.final_layer_norm", D)
        found |= _linear(f"model.{side}.layer_norm", D)
    return found


def _linear(name, *shape):
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def write_folder(folder, kind="nllb", more=0, **changes) -> tuple[dict, dict[str, np.ndarray]]:
    """Writes a folder of the hub; returns its config and its weights."""
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    config = CONFIG | SIZES | {"vocab_size": write_vocabulary(folder, kind, more)} | changes
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal("norm.weight" in name, 0.3, shape).astype(np.float32)
        for name, shape in shapes(config).items()
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return config, weights


class Reference:
    """Logits of a target, from ids as they are there."""

    def __init__(self, config, weights):
        self.config = config
        self.weights = {name: x.astype(np.float64) for name, x in weights.items()}

    def logits(self, source, target_in):
        """For each token of `target_in`, the logits of the next."""
        memory = self.stack("encoder", self.embed(source), None)
        return self.stack("decoder", self.embed(target_in), memory) @ self.table.T

    def greedy(self, source, language, longest, never=(0, 1)):
        """Up to </s>, which is 2."""
        tokens = [2, language]
        while tokens[-1] != 2 and len(tokens) <= longest:
            row = self.logits(source, tokens)[-1]
            row[list(never)] = -np.inf
            tokens.append(int(row.argmax()))
        return tokens[1:]

    @property
    def table(self):
        return self.weights["model.shared.weight"]

    def embed(self, tokens):
        D, half = self.config["d_model"], self.config["d_model"] // 2
        rows = []
        for position, token in enumerate(tokens, start=2):
            angles = position * np.exp(-np.log(10000) / (half - 1) * np.arange(half))
            encoding = np.concatenate([np.sin(angles), np.cos(angles), np.zeros(D % 2)])
            rows.append(self.table[token] * D**0.5 + encoding)
        return np.array(rows)

    def stack(self, side, x, memory):
        for layer in range(self.config[f"{side}_layers"]):
            at = f"model.{side}.layers.{layer}"
            y = self.norm(x, f"{at}.self_attn_layer_norm")
            x = x + self.attention(y, y, f"{at}.self_attn", memory is not None)
            if memory is not None:
                y = self.norm(x, f"{at}.encoder_attn_layer_norm")
                x = x + self.attention(y, memory, f"{at}.encoder_attn", False)
            y = self.linear(self.norm(x, f"{at}.final_layer_norm"), f"{at}.fc1")
            x = x + self.linear(np.maximum(y, 0), f"{at}.fc2")
        return self.norm(x, f"model.{side}.layer_norm")

    def attention(self, x, memory, name, is_causal):
        query, key, value = (
            self.heads(self.linear(y, f"{name}.{part}_proj"))
            for y, part in ((x, "q"), (memory, "k"), (memory, "v"))
        )
        scores = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])
        if is_causal:
            scores[:, ~np.tri(*scores.shape[1:], dtype=bool)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self.linear(np.concatenate([*(weights @ value)], axis=1), f"{name}.out_proj")

    def heads(self, x):
        heads = self.config["encoder_attention_heads"]
        return x.reshape(len(x), heads, -1).swapaxes(0, 1)

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x, name):
        normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return normal * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def many_languages(folder):
    """The model of a new folder of NLLB; it translates from English to German, unless asked."""
    write_folder(folder)
    search = {"beam_size": 2, "max_extra_length": 5, "length_penalty": 0.0}
    fields = {f"decoding.{name}": value for name, value in search.items()}
    return of_hub(folder, with_fields(M2M100, fields))
