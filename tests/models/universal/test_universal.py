"""The Universal Transformer beside a transcription of its paper, and halting by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_batches import SENTENCES, packed
from small_configs import sizes_of
from stepwise import stepwise

from configs import universal_act_base, universal_base
from transformer.data.vocabulary import UNK
from transformer.models.family import build_model
from transformer.models.functional import num_params
from transformer.models.numerics import DropoutRngs, StepRngs
from transformer.models.universal import universal_steps
from transformer.models.universal.halting import OUTPUTS, begin, halt
from transformer.models.universal.universal import Spacing
from transformer.models.universal.universal_steps import UniversalConfig
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh, state_sharding

SOURCE, TARGET = 23, 19  # vocabularies
PAPER = UniversalConfig(**universal_base.get_model().to_dict())
CONFIG = dataclasses.replace(
    PAPER,
    d_model=14,
    d_ff=11,
    num_heads=2,
    encoder_steps=2,
    decoder_steps=3,
    share_embeddings="none",
    dropout=0.0,
    attention_dropout=0.0,
    activation_dropout=0.0,
)
# Every choice stands in one of them.
VARIANTS = {
    "fixed": {},
    "paper": {"halting": "paper", "step_signal": "learned"},
    "graves": {
        "halting": "paper",
        "halting_output": "accumulated",
        "halting_threshold": 0.7,
        "transition": "separable_convolution",
        "step_signal": "none",
        "count_from": "separator",
        "separator": 22,
    },
    "tensor2tensor": {
        "halting": "tensor2tensor",
        "transition": "separable_convolution",
        "norm": "pre",
        "first_position": 0,
        "count_from": "both_ends",
    },
}


def universal(**changes):
    return build_model(dataclasses.replace(CONFIG, **changes), sizes_of(SOURCE, TARGET))


# --- Halting by hand ----------------------------------------------------------------------


def test_halting():
    """A position for each row: its probabilities, the weights of its steps, and its remainder."""
    cases = [
        ([0.4, 0.4, 0.4], [0.4, 0.4, 0.2], 0.2),
        ([0.1, 0.3, 0.7], [0.1, 0.3, 0.6], 0.6),
        ([0.995, 0.5, 0.9], [1.0, 0, 0], 1.0),  # what comes after halting has no weight
        ([0.2, 0.3, 0.1], [0.2, 0.3, 0.1], 0.0),  # the steps end before it halts
    ]
    halting, found, step = begin((1, 4)), [], jax.jit(halt)
    for p_T in np.float32([p for p, _, _ in cases]).T:
        halting, weight_BT = step(halting, p_T[None], 0.99)
        found.append(weight_BT[0])
    np.testing.assert_allclose(np.transpose(found), [x for _, x, _ in cases], atol=1e-6)
    np.testing.assert_array_equal(halting.num_steps_BT[0], [3, 3, 1, 3])
    np.testing.assert_allclose(halting.remainder_BT[0], [x for _, _, x in cases], atol=1e-6)


@pytest.mark.parametrize(("name", "expected"), [("interpolated", 1.432), ("accumulated", 1.8)])
def test_what_becomes_of_the_states(name, expected):
    """States 1, 2, 3 with the weights 0.4, 0.4, 0.2."""
    output = np.zeros((1, 1, 1))
    for state, weight in ((1.0, 0.4), (2.0, 0.4), (3.0, 0.2)):
        output = OUTPUTS[name](output, np.full((1, 1, 1), state), np.full((1, 1), weight))
    np.testing.assert_allclose(output[0, 0, 0], expected, rtol=1e-6)


# --- The paper ----------------------------------------------------------------------------


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def layer_norm(p, x):
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)
    return (x - x.mean(axis=-1, keepdims=True)) / deviation * p["scale"] + p["bias"]


def signal(number, size):
    angle = [number / 10000 ** (channel // 2 * 2 / size) for channel in range(size)]
    return np.array([np.cos(a) if i % 2 else np.sin(a) for i, a in enumerate(angle)])


def attention(p, queries, memory, causal, heads):
    q, k, v = (
        x @ p[name]["kernel"]
        for name, x in (("query", queries), ("key", memory), ("value", memory))
    )
    size, mixed = q.shape[1] // heads, np.zeros((len(queries), v.shape[1]))
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for t in range(len(queries)):
            seen = t + 1 if causal else len(memory)
            weights = softmax(k[:seen, part] @ q[t, part] / np.sqrt(size))
            mixed[t, part] = weights @ v[:seen, part]
    return mixed @ p["output"]["kernel"]


def depthwise(taps, x, causal):
    y, before = np.zeros_like(x), len(taps) - 1 if causal else len(taps) // 2
    for t in range(len(x)):
        for tap in range(len(taps)):
            if 0 <= t + tap - before < len(x):
                y[t] += taps[tap] * x[t + tap - before]
    return y


def transition(p, config, x, causal):
    if config.transition == "feed_forward":
        hidden = np.maximum(0, x @ p["hidden"]["kernel"] + p["hidden"]["bias"])
        return hidden @ p["output"]["kernel"] + p["output"]["bias"]
    x = depthwise(p["hidden_taps_WD"], x, causal)
    hidden = np.maximum(0, x @ p["hidden"]["kernel"] + p["hidden"]["bias"])
    hidden = depthwise(p["output_taps_WF"], hidden, causal)
    return hidden @ p["output"]["kernel"] + p["output"]["bias"]


def recurrence(p, config, x, steps, memory, source=()):
    """H^t = LN(A^t + Transition(A^t)), A^t = LN((H + P) + Attention(H + P)), and halting.

    A while loop: it ends when every position has halted. Returns the output and the steps taken.
    """
    layer, causal = p["layer"], memory is not None
    pre = config.norm == "pre"

    def sublayer(name, x, of):
        norm = layer[f"{name}_norm"]["norm"]
        return x + of(layer_norm(norm, x)) if pre else layer_norm(norm, x + of(x))

    length, size = x.shape
    first = [config.first_position + i for i in range(length)]
    places = np.array([signal(number, size) for number in first])
    if config.count_from != "start":
        second = first if causal else [number - 1 for number in reversed(first)]
        if config.count_from == "separator" and not causal:
            starts = [0, *(i + 1 for i, token in enumerate(source) if token == config.separator)]
            second = [
                first[i - max(start for start in starts if start <= i)] for i in range(length)
            ]
        numbers = zip(first, second, strict=True)
        places = np.array([np.r_[signal(a, size // 2), signal(b, size // 2)] for a, b in numbers])
    output, given, taken = np.zeros_like(x), np.zeros(length), np.zeros(length)
    running, t = np.ones(length, bool), 0
    while t < steps and running.any():
        s = x + places
        if config.step_signal == "sinusoidal":
            s = s + signal(t + 1, size)
        elif config.step_signal == "learned":
            s = s + p["signal_ND"][t]
        y = sublayer(
            "self_attention",
            s,
            lambda x: attention(layer["self_attention"], x, x, causal, config.num_heads),
        )
        if causal:
            y = sublayer(
                "cross_attention",
                y,
                lambda x: attention(layer["cross_attention"], x, memory, False, config.num_heads),
            )
        y = sublayer(
            "feed_forward", y, lambda x: transition(layer["feed_forward"], config, x, causal)
        )
        t += 1
        if config.halting == "none":
            x = output = y
            taken += 1
            continue
        halting = 1 / (1 + np.exp(-(s @ p["halting_D1"][:, 0] + p["halting_bias"])))
        for i in np.flatnonzero(running):
            last = given[i] + halting[i] > config.halting_threshold
            weight = 1 - given[i] if last else halting[i]
            old = output[i] if config.halting_output == "accumulated" else output[i] * (1 - weight)
            output[i] = old + weight * y[i]
            given[i] += weight
            taken[i] += 1
        if config.halting == "paper":
            y = np.where(running[:, None], y, x)
        running = running & (given < 1 - 1e-9)
        x = y
    return (layer_norm(p["norm"], output) if pre else output), taken


def transcription(params, config, source: list[int], target_in: list[int]):
    """Logits of one sentence in float64, and the steps of its source and target."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    scale = np.sqrt(config.d_model)
    x = p["source_embedding"]["table_VD"][source] * scale
    memory, of_source = recurrence(p["encoder"], config, x, config.encoder_steps, None, source)
    y = p["target_embedding"]["table_VD"][target_in] * scale
    y, of_target = recurrence(p["decoder"], config, y, config.decoder_steps, memory)
    return y @ p["output_embedding"]["table_VD"].T, of_source, of_target


SRC, TGT = [3, 1, 22, 7, 5], [1, 4, 18, 2]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("fixed", marks=pytest.mark.slow),
        "paper",
        pytest.param("graves", marks=pytest.mark.slow),
        "tensor2tensor",
    ],
)
def variant(request, random_params):
    model = universal(**VARIANTS[request.param])
    params = random_params(model)
    state_sharding(data_mesh(jax.devices()[:1]), params, model.sharding)  # every one has a place
    if CONFIG.halting != VARIANTS[request.param].get("halting", "none"):
        for side in ("encoder", "decoder"):  # so that positions halt at different steps
            params[side]["halting_bias"] = jnp.float32(-0.4)
    return model, params, dataclasses.replace(CONFIG, **VARIANTS[request.param])


def test_parameters_do_not_depend_on_steps():
    """Sixty steps: one block, without biases in attention."""
    config = dataclasses.replace(PAPER, encoder_steps=60, decoder_steps=60)
    params = build_model(config, sizes_of(37)).abstract_params()
    assert num_params(params["encoder"]) == 12_592_128
    assert num_params(params["decoder"]) == 16_788_480
    assert num_params(params) == 37 * 1024 + 12_592_128 + 16_788_480
    act = UniversalConfig(**universal_act_base.get_config().model.to_dict())
    with_halting = build_model(act, sizes_of(37)).abstract_params()
    assert num_params(with_halting) - num_params(params) == 2 * (1024 + 1)


# --- Rows and batches ---------------------------------------------------------------------


def test_it_is_the_paper_in_packed_rows(variant):
    """The transcription's loop ends early; ours goes on, with masks."""
    model, params, config = variant
    batch = packed(SOURCE, TARGET)
    inputs = batch.src_BS, batch.tgt_in_BT, batch.src_segments_BS, batch.tgt_segments_BT
    src, tgt = np.array([[*SRC, 0, 0]]), np.array([[*TGT, 0]])

    @jax.jit
    def run(params):
        bound = model.bind(params)
        return bound(*inputs), bound.num_steps(src, tgt) if bound.halts else None

    found, steps = jax.tree.map(np.asarray, run(params))
    for row, segment in SENTENCES:
        source = batch.src_BS[row][batch.src_segments_BS[row] == segment]
        is_target = batch.tgt_segments_BT[row] == segment
        target = batch.tgt_in_BT[row][is_target]
        logits, _, _ = transcription(params, config, source.tolist(), target.tolist())
        np.testing.assert_allclose(found[row][is_target], logits, atol=2e-4)
    logits, source_steps, target_steps = transcription(params, config, SRC, TGT)
    assert np.ptp(logits) > 0.1
    if config.halting != "none":
        np.testing.assert_array_equal(steps[0][0, :5], source_steps)
        np.testing.assert_array_equal(steps[1][0, :4], target_steps)
        assert len({*source_steps, *target_steps}) > 1


@pytest.mark.slow
def test_the_ponder_cost_is_a_term_of_the_loss(random_params):
    """Steps and remainders of all real tokens, of both sides; the remainders have a gradient."""
    model = universal(halting="paper", ponder_weight=0.5)
    params, batch = random_params(model), packed(SOURCE, TARGET)
    free = universal(halting="paper", ponder_weight=0.0)

    @jax.jit
    def ponder(params, batch):
        return model.bind(params).loss(batch, None, 0.1).terms["ponder"]

    @jax.jit
    def difference(params):
        losses = [model.bind(params).loss(batch, None, 0.1) for model in (model, free)]
        return losses[0].loss - losses[1].loss

    cost = ponder(params, batch)
    np.testing.assert_allclose(difference(params), cost, rtol=1e-4)
    tokens = int((batch.src_segments_BS > 0).sum() + (batch.tgt_segments_BT > 0).sum())
    assert 0.5 * tokens < cost < 0.5 * tokens * (CONFIG.decoder_steps + 1)
    shorter = batch._replace(src_segments_BS=batch.src_segments_BS * [[1], [0], [0]])
    assert ponder(params, shorter) < cost
    gradient = jax.grad(ponder)(params, batch)
    assert abs(gradient["encoder"]["halting_bias"]) > 0
    assert abs(gradient["decoder"]["halting_bias"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["tensor2tensor"], indirect=True)
def test_the_gradient_is_that_of_finite_differences(variant):
    model, params, _ = variant
    batch = packed(SOURCE, TARGET)

    @jax.jit
    def loss(params):
        bound = model.bind(params)
        return bound.loss(batch, None, 0.1).loss, bound.num_steps(batch.src_BS, batch.tgt_in_BT)

    def moved(step):
        return loss(jax.tree.map(lambda p, d: p + step * d, params, direction))

    # The loss jumps where the number of steps changes: not in this direction, in which it falls.
    rng = np.random.default_rng(0)
    gradient = jax.grad(lambda params: loss(params)[0])(params)
    for _ in range(20):
        direction = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params)
        (before, steps_before), (after, steps_after) = moved(-3e-4), moved(3e-4)
        same = jax.tree.map(np.array_equal, steps_before, steps_after)
        slope = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradient, direction)))
        if all(same) and abs(slope) > 1:
            break
    assert all(same)
    assert abs(slope) > 1
    np.testing.assert_allclose((after - before) / 6e-4, slope, rtol=3e-2, atol=0.1)


def test_dropout_follows_rows_and_steps(random_params, monkeypatch):
    model = universal(dropout=0.4, attention_dropout=0.4, activation_dropout=0.4)
    params, src = random_params(model), packed(SOURCE, TARGET).src_BS

    def memory(params, rows):
        rngs = DropoutRngs(jax.random.key(3), rows)
        return model.bind(params).encode(src, None, rngs).sum()

    rows, run = np.arange(3), jax.jit(memory)
    found = run(params, rows)
    assert run(params, rows) == found != run(params, rows + 1)
    drawn = []

    def all_alike(keys_B, step):
        drawn.append(StepRngs(keys_B, 0 * step))
        return drawn[-1]

    monkeypatch.setattr(universal_steps, "StepRngs", all_alike)
    run = jax.jit(lambda *x: memory(*x))  # another function, or JAX would not trace it again
    assert run(params, rows) != found  # all steps would drop the same
    # Of attention weights, of hidden units, and of the results of both sublayers.
    assert {rngs._count for rngs in drawn} == {4}


def test_random_positions():
    rows, keys = np.zeros((997, 2), int), DropoutRngs(jax.random.key(1), np.arange(997))
    model = universal(random_start=50, random_stride=7)
    model = model.bind(model.abstract_params())
    assert model._spacing(rows, None) == Spacing(1, 1)  # but not outside of training
    start_B1, stride_B1 = map(np.asarray, jax.jit(lambda: model._spacing(rows, keys))())
    assert (start_B1.min(), start_B1.max()) == (1, 51)  # the first position, and 50 later
    assert (stride_B1.min(), stride_B1.max()) == (1, 7)
    for number, share in ((1, 1 / 3), (2, np.log(3 / 2) / np.log(8))):  # logarithms are uniform
        assert abs(np.mean(stride_B1 == number) - share) < 0.05
    assert abs(np.corrcoef(start_B1[:, 0], stride_B1[:, 0])[0, 1]) < 0.1  # drawn apart
    both_ends = universal(random_start=50, random_stride=7, count_from="both_ends").bind({})
    separator = universal(
        random_start=50, random_stride=7, count_from="separator", separator=5
    ).bind({})
    # Of two sentences in a row, with padding after them, and those of tests.
    segments_BT, src_BT = np.array([[1, 1, 1, 1, 2, 2, 0]]), np.array([[3, 5, 4, 2, 5, 2, 0]])
    D = model.config.d_model

    @jax.jit
    def positions(spacing):
        pairs = (model, None), (both_ends, src_BT), (separator, src_BT), (both_ends, None)
        return [x._positions(segments_BT, spacing, src)[0, :6] for x, src in pairs]

    def signals(numbers, size):
        return np.array([signal(number, size) for number in numbers])

    for start, stride in ((51, 7), (1, 1), (1, 7)):
        first, last, part = (
            start + stride * np.array(numbers)
            for numbers in ([0, 1, 2, 3, 0, 1], [2, 1, 0, -1, 0, -1], [0, 1, 0, 1, 0, 0])
        )
        one, *others = positions(Spacing(np.array([[start]]), np.array([[stride]])))
        np.testing.assert_allclose(one, signals(first, D), rtol=0, atol=1e-5)
        for found, second in zip(others, (last, part, first), strict=True):
            expected = [signals(numbers, D // 2) for numbers in (first, second)]
            np.testing.assert_allclose(found, np.hstack(expected), rtol=0, atol=1e-5)


# --- Decoding -----------------------------------------------------------------------------


def test_step_by_step_is_the_paper(variant):
    model, params, config = variant
    src = np.array([[*SRC, 0], [9, 2, 0, 0, 0, 0]])
    tokens_NT = np.random.default_rng(2).integers(1, TARGET, (4, 6))
    run = jax.jit(lambda params: stepwise(model.bind(params), src, tokens_NT)[0])
    for n, (found_TV, tokens) in enumerate(zip(np.asarray(run(params)), tokens_NT, strict=True)):
        source = [word for word in src[n // 2].tolist() if word]
        logits, _, _ = transcription(params, config, source, tokens.tolist())
        np.testing.assert_allclose(found_TV, logits, atol=2e-4)


# --- The config ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_steps": 0}, r"model\.encoder_steps is 0; it must be at least 1"),
        ({"halting": "act"}, r"model\.halting is 'act'; it must be one of: none, paper, tensor2"),
        ({"transition": "x"}, r"model\.transition is 'x'"),
        ({"halting_threshold": 1.5}, r"model\.halting_threshold is 1\.5"),
        ({"count_from": "end"}, r"'end'; it must be one of: start, both_ends, separator$"),
        ({"separator": -1}, r"model\.separator is -1, but model\.count_from is 'start'; set"),
        ({"count_from": "separator", "separator": 14, "words_per_position": 2}, r"=1; it is 2"),
        ({"count_from": "both_ends", "d_model": 15, "d_k": 4, "d_v": 4}, r"needs an even number"),
        ({"random_start": -1}, r"model\.random_start is -1"),
        ({"random_stride": 0}, r"model\.random_stride is 0; it must be at least 1"),
        ({"ponder_weight": 0.1}, r"model\.ponder_weight is 0\.1, but model\.halting is 'none' and"),
        ({"halting_output": "accumulated"}, r"model\.halting_output is 'accumulated', but model"),
        ({"halting_threshold": 0.9}, r"halting_threshold is 0\.9, but .*; leave it at 0\.99, or"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize("separator", [0, UNK, SOURCE])
def test_a_separator_is_a_word_of_the_source(separator):
    with pytest.raises(UserError, match=rf"model\.separator is {separator}; .* 4 and below 23"):
        universal(count_from="separator", separator=separator)
