"""Which tokens a trained model looks at: the attention weights of a sentence pair, as arrays."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.vocabulary import BOS, EOS, Tokenizer
from transformer.decoding.word_alignment import words_of_tokens
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError

# A map's queries and keys, as fields of `Attention`.
SIDES = {
    "encoder": ("source", "source"),
    "decoder": ("inputs", "inputs"),
    "cross": ("target", "source"),
}

BLANK = "·"  # a token that is no text by itself


class Token(NamedTuple):
    text: str
    word: int  # its number in the sentence, as spaces part words; -1 for BOS and EOS
    word_text: str  # the whole of it


class Attention(NamedTuple):
    """Weights [layers, heads, queries, keys] by the name of the attention; see SIDES.

    A decoder's query is at the token that it has just read, and writes the next one. So its
    self-attention is between `inputs`, and its attention to the source is that of `target`.
    """

    source: list[Token]
    target: list[Token]  # the last is EOS
    inputs: list[Token]  # BOS, then the target without EOS
    maps: dict[str, np.ndarray]

    def tokens(self, name: str) -> tuple[list[Token], list[Token]]:
        """The queries and the keys of a map."""
        return tuple(getattr(self, side) for side in SIDES[name])


def attention_of(model: TrainedModel, source: str, target: str | None = None) -> Attention:
    """The weights of all layers and heads, for a target or for the model's own translation.

    Raises UserError for a model without attention, for an ensemble, and for a blank source.
    """
    if model.others:
        raise UserError("an ensemble has the attention of each model; give one work directory")
    if not hasattr(model.task, "search"):
        raise UserError(
            f"{model.workdir} is a run of the task {model.config.task.name}, which has no source "
            "and target; give the work directory of a translation model"
        )
    if not source.strip():
        raise UserError("the source sentence is empty; give one of at least one word")
    if target is None:
        (target,) = model.task.translate(model.params, model.extra, [source])
    tokenizers = model.task.tokenizers
    ids = [
        tokenizer.encode_batch([text], num_threads=1)[0]
        for tokenizer, text in zip(tokenizers, (source, target), strict=True)
    ]
    src_BS, tgt_in_BT = jnp.array([[*ids[0], EOS]]), jnp.array([[BOS, *ids[1]]])

    @jax.jit
    def forward(params, extra):
        bound = model.task.model.bind(params, extra)
        return bound(src_BS, tgt_in_BT, return_weights=True)[1]

    maps = _by_name(forward(model.params, model.extra))
    if not maps:
        raise UserError(
            f"{model.workdir} has a model without attention (model.attention=none); give another"
        )
    source_tokens, target_tokens = map(_tokens, tokenizers, ids)
    inputs = [Token("BOS", -1, "BOS"), *target_tokens[:-1]]
    return Attention(source_tokens, target_tokens, inputs, maps)


def by_words(tokens: Sequence[Token]) -> tuple[list[str], np.ndarray]:
    """The words of tokens, and which tokens [words, tokens] each consists of, as 0 and 1."""
    groups: list[list[int]] = []
    for i, token in enumerate(tokens):
        if i and token.word >= 0 and token.word == tokens[i - 1].word:
            groups[-1].append(i)
        else:
            groups.append([i])
    members = np.zeros((len(groups), len(tokens)))
    for number, group in enumerate(groups):
        members[number, group] = 1
    return [tokens[group[0]].word_text for group in groups], members


def merge_words(weights: np.ndarray, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Weights [..., queries, keys] between words: sums over keys, means over queries.

    queries, keys: the members of words, as `by_words` gives them.
    """
    return (queries / queries.sum(axis=1, keepdims=True)) @ weights @ keys.T


def rollout(weights_LHQQ: np.ndarray) -> np.ndarray:
    """How much each token's vector after each layer is made of each first one, [L, Q, Q].

    Attention rollout of Abnar & Zuidema 2020: the mean of the heads, half and half with the
    residual connection, multiplied from layer to layer.
    """
    Q = weights_LHQQ.shape[-1]
    flow_QQ, flows = np.eye(Q), []
    for weights_HQQ in weights_LHQQ:
        flow_QQ = (0.5 * weights_HQQ.mean(axis=0) + 0.5 * np.eye(Q)) @ flow_QQ
        flows.append(flow_QQ)
    return np.stack(flows)


def _by_name(weights) -> dict[str, np.ndarray]:
    """What a family returns as its weights, without the batch; only what there is."""
    if hasattr(weights, "cross"):
        layers = {name: getattr(weights, name) for name in SIDES}
    else:  # of the decoder alone, without heads: of one layer or of several
        several = weights if isinstance(weights, list) else [weights]
        layers = {"cross": [x[:, None] for x in several if x is not None]}
    return {
        name: np.stack([np.asarray(x[0], np.float32) for x in found])
        for name, found in layers.items()
        if len(found)
    }


def _tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Token]:
    words = words_of_tokens(tokenizer, ids)
    whole = tokenizer.decode(ids).split()
    texts = [tokenizer.decode([i]) or BLANK for i in ids]
    # A byte is a part of a letter: its name, such as <0xE6>, says more.
    texts = [tokenizer.pieces[i] if "\ufffd" in text else text for i, text in zip(ids, texts)]
    tokens = [Token(text, word, whole[word]) for text, word in zip(texts, words, strict=True)]
    return [*tokens, Token("EOS", -1, "EOS")]
