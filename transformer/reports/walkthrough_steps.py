"""The walk through a Transformer in words, equations, numbers and lines of code."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from transformer.models.attention import Mask, MultiHeadAttention, dot_product_attention
from transformer.models.blocks import DecoderLayer
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.layers import AddAndNorm, Embedding, FeedForward, Normalization
from transformer.models.loss import cross_entropy
from transformer.models.positions import sinusoidal_encoding
from transformer.models.transformer import Transformer
from transformer.reports.pages import Html, shown, table
from transformer.reports.walkthrough_numbers import Pass, Update
from transformer.reports.walkthrough_page import Line, Matrix, Step
from transformer.runs.restore import TrainedModel
from transformer.training.optimizers import make_optimizer

MOST_TOKENS = 3  # per prediction
MOST_GROUPS = 12  # of parameters shown at once


def steps(model: TrainedModel, one: Pass, layer: int, head: int) -> list[Step]:
    """The steps of the forward pass, with explanations."""
    config = model.config.model
    scale = (
        f"{config.d_model**0.5:.2f}" if config.scale_embeddings else "1 (scale_embeddings=False)"
    )
    dense, post = np.asarray(one.weights_TT), config.norm == "post"
    inputs, outputs, src = one.inputs, one.outputs, one.src
    order = "LayerNorm(x + Sublayer(x))" if post else "x + Sublayer(LayerNorm(x))"
    tokens = table(
        ["reads", "id", "is to write", "id"],
        [list(row) for row in zip(inputs, one.tgt_in, outputs, one.tgt_out, strict=True)],
    )
    numbers = [f"{n:.2f}" for n in one.nll_T]
    sized = f"d_k = {config.key_size}"
    position_code = [Line(Transformer._embed, "x_BTD += encoding_BTD")]
    if config.positions == "sinusoidal":
        position_code.insert(0, Line(sinusoidal_encoding, "encoding_TD ="))
    return [
        Step(
            "Tokens",
            "",
            "The tokenizer cuts both sentences into tokens; each has a number. The decoder reads "
            "the target shifted right by one: it begins with BOS, and at each position it is to "
            "write the next token. The source: "
            + ", ".join(f"{t} ({i})" for t, i in zip(src, one.src_ids, strict=True)),
            [Line(type(model.task.tokenizers.target).encode_batch, "def encode_batch")],
            [Html(tokens)],
        ),
        Step(
            "Embeddings times √d_model",
            "E[token] · √d_model  (Section 3.4)",
            f"Each token has a row of the matrix E. It is multiplied by {scale}, so that it is not "
            "small beside the positions that follow.",
            [Line(Embedding.embed, "return x_BTD")],
            [
                Matrix("E[token]", one.embedding_TD, inputs),
                Matrix("times the factor", one.embedded_TD, inputs),
            ],
        ),
        Step(
            "Positions",
            "PE(pos, 2i) = sin(pos / 10000^(2i/d)),  PE(pos, 2i+1) = cos(…)  (Section 3.5)"
            if config.positions == "sinusoidal"
            else "a learned vector for each position (Section 3.5)",
            "Each position has a vector, too. It is added.",
            position_code,
            [
                Matrix("positions", one.x_TD - one.embedded_TD, inputs),
                Matrix("x: the sum", one.x_TD, inputs),
            ],
        ),
        Step(
            f"Queries, keys and values of head {head} in decoder layer {layer}",
            "Q = x W^Q,  K = x W^K,  V = x W^V  (Section 3.2.2)",
            f"Three matrices make three short vectors of each position; here {sized}."
            + ("" if layer == 1 else f" x has gone through {layer - 1} layer(s) before."),
            [
                Line(MultiHeadAttention.queries, "return split_heads"),
                Line(MultiHeadAttention.of_projections, "return KeyValues"),
            ],
            [
                Matrix("x", one.layer_input_TD, inputs),
                Matrix("Q", one.query_TK, inputs),
                Matrix("K", one.key_TK, inputs),
                Matrix("V", one.value_TU, inputs),
            ],
        ),
        Step(
            "Scores",
            "Q Kᵀ / √d_k; masked scores are −∞  (Equation 1, Section 3.2.3)",
            "The product of each query with each key; a row belongs to a query. "
            f"{sized}, so the products are divided by {config.key_size**0.5:.2f} (below is why); "
            "the code divides the queries, which is the same. A position may not look at later "
            "ones: it is to predict them. The code takes the lowest number in place of −∞, which "
            "gives the same weights.",
            [
                Line(dot_product_attention, "query_BHTK = query_BHTK *"),
                Line(dot_product_attention, "scores_BHTS = multiply"),
                Line(Mask.dense, "mask_BTS &= position_B1S"),
                Line(dot_product_attention, "jnp.where(mask_BTS[:, None], scores_BHTS"),
            ],
            [
                Matrix("Q Kᵀ", one.scores_TT, inputs, inputs),
                Matrix("scaled and masked", one.masked_TT, inputs, inputs),
            ],
        ),
        Step(
            "Softmax",
            "softmax(Q Kᵀ / √d_k)",
            f"Each row becomes weights that add up to 1. The largest is {dense[1:].max():.2f} "
            "outside of the first row, which has no choice."
            if len(dense) > 1
            else "Each row becomes weights that add up to 1.",
            [Line(dot_product_attention, "jax.nn.softmax")],
            [Matrix("weights", one.weights_TT, inputs, inputs)],
        ),
        Step(
            "Weighted sum, and heads joined",
            "Concat(head_1, …, head_h) W^O, each head softmax(Q Kᵀ / √d_k) V  (Section 3.2.2)",
            "Each row of weights mixes the values. The results of all "
            f"{config.num_heads} heads stand side by side; a matrix mixes them.",
            [
                Line(dot_product_attention, "y_BHTU = multiply"),
                Line(MultiHeadAttention._attend, "return self.output"),
            ],
            [
                Matrix("of this head", one.head_TU, inputs),
                Matrix("all heads", one.joined_TX, inputs),
                Matrix("times W^O", one.attended_TD, inputs),
            ],
        ),
        Step(
            "Add & norm",
            f"{order}  (Section 3.1; Section 5.4)",
            "What came in is added"
            + (
                "; then each vector gets mean 0 and variance 1, a scale and a bias: "
                if post
                else ". This model normalises what goes into a sublayer, not what comes out: "
            )
            + f"here means are {_span(one.after_self_TD.mean(axis=1))} and standard deviations "
            f"{_span(one.after_self_TD.std(axis=1))}.",
            [
                Line(AddAndNorm.after, "x_BTD = x_BTD + dropout"),
                Line(Normalization.__call__, "standardize(x_BTD"),
            ],
            [
                Matrix("x + Sublayer(x)", one.layer_input_TD + one.attended_TD, inputs),
                Matrix("after", one.after_self_TD, inputs),
            ],
        ),
        Step(
            "Attention to the source",
            "Q from the decoder, K and V from the encoder  (Section 3.2.3)",
            "The same once more, but keys and values are made of the encoder's output. The encoder "
            "has no causal mask and is else alike. Again add & norm.",
            [Line(DecoderLayer.__call__, "y_BTD, cross_weights_BHTS")],
            [
                Matrix(f"weights of head {head}", one.cross_TS, outputs, src),
                Matrix("after add & norm", one.after_cross_TD, inputs),
            ],
        ),
        Step(
            "Feed-forward network",
            "max(0, x W_1 + b_1) W_2 + b_2  (Equation 2)"
            if config.activation == "relu"
            else f"{config.activation}(x W_1 + b_1) W_2 + b_2",
            f"Each position by itself. {100 * (one.hidden_TF == 0).mean():.0f} % of the "
            f"{config.d_ff} hidden units of all positions are 0 here. Again add & norm.",
            [Line(FeedForward.__call__, "x_BTF =")],
            [
                Matrix("hidden", one.hidden_TF, inputs),
                Matrix("out", one.transformed_TD, inputs),
                Matrix("after add & norm", one.after_feed_forward_TD, inputs),
            ],
        ),
        Step(
            "Logits",
            "y Eᵀ, then softmax  (Section 3.4)",
            "After the last layer, the product with a row for each token of the vocabulary "
            f"({one.logits_TV.shape[1]:,} of them) is its logit. The most probable tokens:",
            [Line(Embedding.logits, 'multiply("BTD,VD->BTV"')],
            [Matrix("y", one.y_TD, inputs), Html(_predictions(model, one))],
        ),
        Step(
            "Loss with label smoothing",
            f"(1 − ε) · (−log p(token)) + ε · mean over all tokens of −log p,  "
            f"ε = {model.config.training.label_smoothing:g}  (Section 5.4)",
            f"−log p of the tokens to be written: {', '.join(numbers)}. The mean with smoothing, "
            f"which training minimises, is {one.smoothed_T.mean():.3f}; without, "
            f"{one.nll_T.mean():.3f}.",
            [Line(cross_entropy, "loss_BT = (1 - label_smoothing)")],
            [
                Matrix(
                    "by token",
                    np.stack([one.nll_T, one.smoothed_T], axis=1),
                    outputs,
                    ["−log p", "with smoothing"],
                )
            ],
        ),
    ]


def update_step(found: Update) -> Step:
    """The gradient step, with explanations."""
    rows = [
        [name, " x ".join(map(str, shape)), f"{norm:.4f}", f"{100 * moves:.0f} %", f"{mean:.2e}"]
        for name, shape, norm, moves, mean in sorted(found.groups, key=lambda group: -group[2])
    ]
    head = ["parameter", "shape", "norm of the gradient", "moves", "mean change"]
    return Step(
        "One gradient step",
        "the optimizer of this run, Section 5.3",
        f"The gradient of this loss, and an update as the first one of the run was, with the "
        f"learning rate {shown(found.rate)}. The loss of the pair goes from "
        f"{found.loss_before:.6f} to {found.loss_after:.6f}. With Adam "
        "most weights move by about the same, since it divides by the size of the gradient; the "
        "norms say which ones matter. The "
        "target embedding is also the output layer, unless the config says otherwise, so that rows "
        "of tokens that are not in the pair move, too: they become less probable.",
        [
            Line(EncoderDecoder.loss, "loss = output_loss"),
            Line(make_optimizer, "chosen = _adam"),
        ],
        [
            Html(table(head, rows[:MOST_GROUPS])),
            Html(
                f"<details><summary>{len(rows[MOST_GROUPS:])} more parameters</summary>"
                f"{table(head, rows[MOST_GROUPS:])}</details>"
            ),
        ],
    )


def _span(values: np.ndarray) -> str:
    return f"{values.min():.2f} to {values.max():.2f}"


def _predictions(model: TrainedModel, one: Pass) -> str:
    log_p_TV = np.asarray(jax.nn.log_softmax(jnp.asarray(one.logits_TV)))
    pieces: Sequence[str] = model.task.tokenizers.target.pieces
    rows = []
    for read, wanted, token, log_p_V in zip(
        one.inputs, one.outputs, one.tgt_out, log_p_TV, strict=True
    ):
        best = np.argsort(-log_p_V)[:MOST_TOKENS]
        found = ", ".join(f"{pieces[i]} {100 * np.exp(log_p_V[i]):.1f} %" for i in best)
        rows.append([read, found, wanted, f"{100 * np.exp(log_p_V[token]):.1f} %"])
    return table(["after", "most probable", "is to write", "with probability"], rows)
