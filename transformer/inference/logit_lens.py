"""The logit lens: what each layer of a model would predict if it were the last.

After nostalgebraist (2020), "interpreting GPT: the logit lens".
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from transformer.data.vocabulary import BOS, EOS
from transformer.inference.attention_maps import both_sides, check_one_text, padded, token_text
from transformer.inference.masked_words import check_masked_lm, masked_ids
from transformer.models.functional import FunctionalModel
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError

# The attribute with the layers that write, by family.
STACKS = {"transformer": "decoder_layers", "decoder_only": "layers", "bert": "encoder_layers"}
MOST_TOKENS = 64  # more would not be readable


class Lens(NamedTuple):
    """The likeliest token at each position after each layer; layer 0 is the embedding."""

    inputs: list[str]  # the token that is read at each position
    targets: list[str]  # the token to predict there
    tokens_LT: np.ndarray  # ids
    texts: list[list[str]]  # of these
    probabilities_LT: np.ndarray


def logit_lens(model: TrainedModel, source: str, target: str | None = None) -> Lens:
    """What the layers of a decoder, or of BERT, predict for a pair of sentences.

    target: default: the model's own translation. The decoder reads it token by token, as in
    training. A language model and BERT have only a source; BERT's may contain [MASK].
    Raises UserError for a model without such layers, and for a text that is too long.
    """
    check_one_text(model, source)
    if (family := model.config.model.family) not in STACKS:
        raise UserError(
            f"{model.workdir} has a model of the family {family}; give one of {', '.join(STACKS)}"
        )
    if family == "bert":
        check_masked_lm(model)
        if target is not None:
            raise UserError("BERT has no target here; give a source alone")
        tokenizer = model.task.tokenizer
        inputs = [tokenizer.cls, *masked_ids(tokenizer, source), tokenizer.sep]
        targets, sides, name = inputs, (inputs,), tokenizer.pieces.__getitem__
    else:
        pair = both_sides(model, source, target)
        read, written = (x.encode(y) for x, y in zip(model.task.tokenizers, pair, strict=True))
        inputs, targets = [BOS, *written], [*written, EOS]
        sides, special = ([*read, EOS], inputs), {BOS: "BOS", EOS: "EOS"}

        def name(token: int) -> str:
            return special.get(token) or token_text(model.task.tokenizers.target, token)

    limit = min(MOST_TOKENS, model.config.model.max_positions) if family == "bert" else MOST_TOKENS
    if max(map(len, sides)) > limit:
        raise UserError(f"a text has more than {limit} tokens; shorten it")
    run = _program(model.task.model, family)
    found = run(model.params, model.extra, *(padded([side]) for side in sides))
    tokens_LT, probabilities_LT = (np.asarray(x)[:, : len(inputs)] for x in found)
    texts = [list(map(name, row)) for row in tokens_LT.tolist()]
    names = [list(map(name, side)) for side in (inputs, targets)]
    return Lens(*names, tokens_LT, texts, probabilities_LT)


@functools.lru_cache(maxsize=4)
def _program(model: FunctionalModel, family: str) -> Any:
    """The compiled best tokens and their probabilities, both [L + 1, T].

    A model without its upper layers predicts with its own last normalisation and output layer.
    """

    @jax.jit
    def run(params, extra, *sides):
        found = []
        count = len(getattr(model.bind(params, extra), STACKS[family]))
        for depth in range(count + 1):
            bound = model.bind(params, extra)
            layers = list(getattr(bound, STACKS[family]))[:depth]
            setattr(bound, STACKS[family], nnx.List(layers))
            if family == "bert":
                x_BSD, _ = bound.encode(*sides, jnp.zeros_like(*sides))
                logits_BTV = bound.masked_lm_logits(x_BSD)
            else:
                logits_BTV = bound(*sides)
            probabilities_TV = jax.nn.softmax(logits_BTV[0].astype(jnp.float32))
            found.append((jnp.argmax(probabilities_TV, axis=-1), jnp.max(probabilities_TV, -1)))
        return [jnp.stack(x) for x in zip(*found, strict=True)]

    return run
