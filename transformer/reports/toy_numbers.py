"""The walk-through with the lecture's numbers, which one can check by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from transformer.models.attention import KeyValues, Mask, dot_product_attention
from transformer.models.layers import Normalization
from transformer.models.loss import cross_entropy
from transformer.models.numerics import standardize
from transformer.models.positions import sinusoidal_encoding
from transformer.reports.walkthrough_page import Line, Matrix, Step
from transformer.training import schedules
from transformer.training.schedules import make_schedule

TOKENS = ("the", "animal", "slept", ".")
# Small whole numbers, many of them 0, so that products can be done in the head.
QUERIES = ((1, 0, 1, 0), (0, 2, 0, 2), (1, 1, 1, 1))
KEYS = ((2, 0, 0, 0), (0, 2, 0, 2), (1, 0, 1, 0))
VALUES = ((1, 0), (0, 1), (5, 5))


@dataclasses.dataclass(frozen=True)
class _Noam:
    schedule: str = "noam"
    warmup_steps: int = 4000
    peak_learning_rate: None = None


def layer_norm(numbers: tuple[float, ...]) -> np.ndarray:
    """The model's layer normalisation, with scale 1 and bias 0."""
    return np.asarray(standardize(jnp.array([[numbers]], jnp.float32), epsilon=1e-6)[0, 0])


def causal_softmax(scores: tuple[float, ...]) -> np.ndarray:
    """The model's attention weights for queries that all have these scores."""
    T = len(scores)
    query_BHTK = jnp.ones((1, 1, T, 1), jnp.float32)
    key_BHSK = jnp.array(scores, jnp.float32)[None, None, :, None]
    ones_BT = jnp.ones((1, T), jnp.int32)
    mask = Mask(ones_BT, ones_BT, jnp.arange(T)).dense()
    memory = KeyValues(key_BHSK, key_BHSK)
    _, weights_BHTT = dot_product_attention(query_BHTK, memory, mask, return_weights=True)
    return np.asarray(weights_BHTT[0, 0])


def small_attention() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scaled scores, weights and results for QUERIES, KEYS and VALUES."""
    q, k, v = (jnp.array(x, jnp.float32)[None, None] for x in (QUERIES, KEYS, VALUES))
    mask = jnp.ones((1, len(QUERIES), len(KEYS)), bool)
    found, weights = dot_product_attention(q, KeyValues(k, v), mask, return_weights=True)
    scores = np.array(QUERIES) @ np.array(KEYS).T / len(KEYS[0]) ** 0.5
    return scores, np.asarray(weights[0, 0]), np.asarray(found[0, 0])


def smoothed_loss(logits: tuple[float, ...], token: int, smoothing: float) -> float:
    loss = cross_entropy(
        jnp.array([[logits]], jnp.float32), jnp.array([[token]]), jnp.ones((1, 1), bool), smoothing
    )
    return float(loss.loss)


def toy_steps() -> list[Step]:
    numbers = (1.0, 3.0, 5.0)
    scores, weights, results = small_attention()
    names = ["first", "second", "third"]
    logits = (2.0, 1.0, 0.0, 0.0, 0.0)
    updates = np.array([1, 1000, 4000, 16_000, 100_000])
    rates = np.asarray(make_schedule(_Noam(), 512)(jnp.asarray(updates)))
    return [
        Step(
            "Positions with d_model = 4",
            "PE(pos, 2i) = sin(pos / 10000^(2i/d)),  PE(pos, 2i+1) = cos(…)  (Section 3.5)",
            "The first two columns turn by one radian from position to position, the others by a "
            "hundredth.",
            [Line(sinusoidal_encoding, "encoding_TD =")],
            [
                Matrix(
                    "positions 0 to 3",
                    np.asarray(sinusoidal_encoding(jnp.arange(4), 4)),
                    ["0", "1", "2", "3"],
                )
            ],
        ),
        Step(
            "Attention of three queries to three keys, d_k = 4",
            "softmax(Q Kᵀ / √d_k) V  (Equation 1)",
            "The second query fits the second key alone: its weight is e⁴ / (e⁴ + 2) = 0.96. The "
            "first fits two keys equally, so that its result lies between their values.",
            [Line(dot_product_attention, "scores_BHTS = multiply")],
            [
                *(
                    Matrix(name, np.array(values), names)
                    for name, values in (("Q", QUERIES), ("K", KEYS), ("V", VALUES))
                ),
                Matrix("Q Kᵀ / 2", scores, names, names),
                Matrix("weights", weights, names, names),
                Matrix("results", results, names),
            ],
        ),
        Step(
            "A causal mask: scores 1, 2, 3, 4 in every row",
            "masked scores are −∞  (Section 3.2.3)",
            "The second position sees the scores 1 and 2: e / (e + e²) = 0.26894, and 0.73106. "
            "What is masked has the weight 0, exactly.",
            [Line(Mask.dense, "mask_BTS &= position_B1S")],
            [Matrix("weights", causal_softmax((1, 2, 3, 4)), TOKENS, TOKENS, digits=5)],
        ),
        Step(
            "Layer normalisation of 1, 3, 5",
            "(x − mean) / √(variance + ε)",
            "The mean is 3 and the variance 8/3, so 2 / √(8/3) = 1.2247: "
            + ", ".join(f"{x:.4f}" for x in layer_norm(numbers)).replace("-", "−")
            + ". The variance is the biased one, divided by 3 and not by 2.",
            [
                Line(Normalization.__call__, "standardize(x_BTD"),
                Line(standardize, "return _standardize_forward"),
            ],
            [Matrix("normalised", layer_norm(numbers)[None], ["x"], digits=4)],
        ),
        Step(
            "Label smoothing with five tokens",
            "(1 − ε) · one-hot + ε / V  (Section 5.4)",
            "With ε = 0.1 the right token is to get 0.92 and each other one 0.02. Of the logits "
            f"2, 1, 0, 0, 0 and the first token the loss is {smoothed_loss(logits, 0, 0.1):.4f}; "
            f"without smoothing it is {smoothed_loss(logits, 0, 0.0):.4f}.",
            [Line(cross_entropy, "loss_BT = (1 - label_smoothing)")],
            [Matrix("to reach", np.array([[0.92, *[0.02] * 4]]), ["p"])],
        ),
        Step(
            "The learning rate of the base model",
            "d_model^−0.5 · min(step^−0.5, step · warmup^−1.5)  (Equation 3)",
            "It rises in a straight line for 4,000 updates, then falls with the root of the "
            "update. In thousandths:",
            [Line(schedules._inverse_sqrt, "return scale * jnp.minimum")],
            [Matrix("rate", 1000 * rates[None], ["1e-3"], [f"{n:,}" for n in updates], digits=4)],
        ),
    ]
