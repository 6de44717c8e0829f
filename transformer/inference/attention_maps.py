"""The attention weights of a trained model on a sentence pair, as arrays."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.data.vocabulary import BOS, EOS, FILLER, PAD, Tokenizer
from transformer.data.wordpiece import CONTINUES, WordPiece
from transformer.data.words import words_of
from transformer.decoding.batching import width_of
from transformer.decoding.word_alignment import words_of_tokens
from transformer.models.functional import FunctionalModel
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError

# The queries and keys of each map, as fields of `Attention`.
SIDES = {
    "encoder": ("source", "source"),
    "decoder": ("inputs", "inputs"),
    "cross": ("target", "source"),
}

# The limit for source and target: weights between more tokens would fill the memory, and JAX would
# end the process.
MOST_TOKENS = 2048
BLANK = "·"  # a token that decodes to no text by itself


class Token(NamedTuple):
    text: str
    word: int  # its number in the sentence, see data/words.py; -1 for BOS and EOS
    word_text: str  # the whole word


class Attention(NamedTuple):
    """Weights [layers, heads, queries, keys] by the name of the attention; see SIDES.

    A decoder's query is at the token that it has just read, and writes the next one. So its
    self-attention is between `inputs`, and its attention to the source is that of `target`. An
    encoder-only model has only a source: its one or two sentences. The inputs of a decoder-only
    model are one sequence: the source without EOS, BOS, the target.
    """

    source: list[Token]
    target: list[Token]  # the last is EOS
    inputs: list[Token]  # the decoder's inputs: BOS, then the target without EOS
    maps: dict[str, np.ndarray]
    layer: str  # the name of a layer: layer, step or block
    # With adaptive computation time, the steps that each token of `source` takes, and the decoder's
    # to write each token of `target`; else {}.
    steps: dict[str, np.ndarray]

    def tokens(self, name: str) -> tuple[list[Token], list[Token]]:
        """The queries and the keys of a map."""
        return tuple(getattr(self, side) for side in SIDES[name])


def has_attention(model: TrainedModel) -> bool:
    """True if a model attends from a target to a source."""
    return hasattr(model.task, "search") and bound_to(model).attends


def bound_to(model: TrainedModel) -> Any:
    """The module of a model, with its parameters."""
    return model.task.model.bind(model.params, model.extra)


def attention_of(model: TrainedModel, source: str, target: str | None = None) -> Attention:
    """The weights of all layers and heads, for a target or for the model's own translation.

    For an encoder-only model such as BERT: those of a source and, if there is a target, of the two
    as sentences A and B. A language model has one text, the source, and no target. Raises UserError
    for a model without attention, for an ensemble, and for a blank source.
    """
    check_one_text(model, source)
    if model.config.model.family == "bert":
        return _of_encoder(model, source, target)
    if hasattr(model.task, "search") and not (has_attention(model) or bound_to(model).joins_sides):
        raise UserError(
            f"{model.workdir} has a model without attention (model.attention=none); give another"
        )
    texts = zip(model.task.tokenizers, both_sides(model, source, target), strict=True)
    return attention_of_ids(model, *(tokenizer.encode(text) for tokenizer, text in texts))


def check_one_text(model: TrainedModel, source: str) -> None:
    """Raises UserError for an ensemble, and for a blank source."""
    if model.others:
        raise UserError(
            "an ensemble has the attention of each model and its layers; give one work directory"
        )
    if not source.strip():
        raise UserError("the source sentence is empty; give one of at least one word")


def both_sides(model: TrainedModel, source: str, target: str | None) -> tuple[str, str]:
    """A source and its target: the model's own translation, if None is given.

    The one text of a language model, its source, becomes the target of an empty source.
    """
    if not hasattr(model.task, "search"):
        raise UserError(
            f"{model.workdir} is a run of the task {model.config.task.name}, which has no "
            "sentences; give the work directory of a translation model or of BERT"
        )
    if model.task.reads_blank:  # a language model
        if target is not None:
            raise UserError("a language model has no target; give the whole text as the source")
        return "", source
    if target is None:
        (target,) = model.task.translate(model.params, model.extra, [source])
    return source, target


def attention_of_ids(
    model: TrainedModel, source_ids: Sequence[int], target_ids: Sequence[int]
) -> Attention:
    """`attention_of` for token ids without EOS, of a model that translates."""
    bound = bound_to(model)
    longest = max(-(-len(source_ids) // bound.words), len(target_ids))
    if longest > MOST_TOKENS:
        raise UserError(
            f"a text has {longest} tokens, and attention is shown for {MOST_TOKENS} at most; "
            "shorten it"
        )
    arrays = padded([[*source_ids, EOS]]), padded([[BOS, *target_ids]])
    forward = _pair_program(model.task.model)
    weights, steps = jax.device_get(forward(model.params, model.extra, *arrays))
    source, target = map(_tokens, model.task.tokenizers, (source_ids, target_ids))
    source = _positions(source, bound.words)
    before = source[:-1] if bound.joins_sides else []
    inputs = [*before, Token("BOS", -1, "BOS"), *target[:-1]]
    sides = {"source": source, "target": target, "inputs": inputs}
    maps = {}
    for name, layers in bound.attention_maps(weights).items():
        queries, keys = (len(sides[side]) for side in SIDES[name])
        maps[name] = _stacked(layers)[:, 0, :, :queries, :keys]
    counts = {
        side: counts[0, : len(sides[side])]
        for side, counts in zip(("source", "target"), steps, strict=False)
    }
    return Attention(**sides, maps=maps, layer=bound.layer_name, steps=counts)


@functools.lru_cache(maxsize=4)
def _pair_program(model: FunctionalModel) -> Any:
    """The compiled weights of a pair, kept for the next ones of the same widths."""

    @jax.jit
    def forward(params, extra, src_BS, tgt_in_BT):
        bound = model.bind(params, extra)
        weights = bound(src_BS, tgt_in_BT, return_weights=True)[1]
        return weights, bound.num_steps(src_BS, tgt_in_BT) if bound.halts else ()

    return forward


def _positions(tokens: list[Token], words: int) -> list[Token]:
    """The facts of a source, for an encoder with one fact at each position."""
    if words == 1:
        return tokens
    facts = [tokens[start : start + words] for start in range(0, len(tokens), words)]
    texts = [" ".join(x.text for x in fact if x.word >= 0 and x.text != FILLER) for fact in facts]
    return [Token(text, number, text) for number, text in enumerate(texts)]


def _of_encoder(model: TrainedModel, first: str, second: str | None) -> Attention:
    tokenizer = model.task.tokenizer
    texts = [first] if second is None else [first, second]
    return encoder_attention(model, tokenizer.encode_batch(texts))


def encoder_attention(model: TrainedModel, sentences: Sequence[Sequence[int]]) -> Attention:
    """The weights of an encoder-only model, for the ids of one or two sentences."""
    tokenizer = model.task.tokenizer
    ids, types, tokens = [tokenizer.cls], [0], [Token("[CLS]", -1, "[CLS]")]
    for number, sentence in enumerate(sentences):
        ids += [*sentence, tokenizer.sep]
        types += [number] * (len(sentence) + 1)
        tokens += [*_pieces(tokenizer, sentence), Token("[SEP]", -1, "[SEP]")]
    if len(ids) > (most := model.config.model.max_positions):
        raise UserError(f"the text has {len(ids)} tokens, and the model takes {most}; shorten it")
    src_BS, types_BS = padded([ids]), padded([types]) % model.config.model.num_token_types
    forward = _encoder_program(model.task.model)
    size = len(ids)
    weights_LHSS = _stacked(forward(model.params, model.extra, src_BS, types_BS))[:, 0]
    maps = {"encoder": weights_LHSS[:, :, :size, :size]}
    return Attention(tokens, [], [], maps, "layer", {})


@functools.lru_cache(maxsize=4)
def _encoder_program(model: FunctionalModel) -> Any:
    @jax.jit
    def forward(params, extra, tokens_BS, types_BS):
        return model.bind(params, extra).encode(tokens_BS, types_BS, return_weights=True)[1]

    return forward


def _pieces(tokenizer: WordPiece, ids: Sequence[int]) -> list[Token]:
    words: list[list[str]] = []
    places = []
    for i in ids:
        if tokenizer.is_continuation_V[i] and words:
            words[-1].append(tokenizer.pieces[i].removeprefix(CONTINUES))
        else:
            words.append([tokenizer.pieces[i]])
        places.append(len(words) - 1)
    whole = ["".join(word) for word in words]
    return [Token(tokenizer.pieces[i], n, whole[n]) for i, n in zip(ids, places, strict=True)]


def padded(sentences: Sequence[Sequence[int]]) -> np.ndarray:
    """The ids with padding."""
    width = width_of(max(map(len, sentences)))
    return np.array([[*sentence, *[PAD] * (width - len(sentence))] for sentence in sentences])


def by_words(tokens: Sequence[Token]) -> tuple[list[str], np.ndarray]:
    """The words of tokens, and a 0/1 matrix [words, tokens] of the tokens in each word."""
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

    queries, keys: 0/1 matrices [words, tokens] from `by_words`.
    """
    return (queries / queries.sum(axis=1, keepdims=True)) @ weights @ keys.T


def _stacked(layers: Sequence[jax.Array]) -> np.ndarray:
    """The weights of all layers, [layers, B, heads, queries, keys]."""
    return np.stack([np.asarray(x, np.float32) for x in layers])


def _tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Token]:
    language = [token_text(tokenizer, i) for i in tokenizer.beginning]
    ids = ids[len(language) :]
    words = words_of_tokens(tokenizer, ids)
    whole = words_of(tokenizer.decode(ids)) or [""]
    tokens = [
        Token(token_text(tokenizer, i), word, whole[word])
        for i, word in zip(ids, words, strict=True)
    ]
    language = [Token(piece, -1, piece) for piece in language]
    return [*language, *tokens, Token("EOS", -1, "EOS")]


def token_text(tokenizer: Tokenizer, token: int) -> str:
    text = tokenizer.decode([token]) or BLANK
    # A byte is only part of a letter, so its name, such as <0xE6>, says more; so does a language's.
    return tokenizer.pieces[token] if "\ufffd" in text or token in tokenizer.beginning else text
