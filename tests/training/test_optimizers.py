import dataclasses

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from configs import base
from transformer.system.errors import UserError
from transformer.system.sharding import state_sharding
from transformer.training.optimizers import OPTIMIZERS, OptimizerConfig, is_weight, make_optimizer
from transformer.training.schedules import make_schedule

PAPER = OptimizerConfig(**base.get_config().optimizer)
# What each optimizer cannot do without.
CONFIGS = {
    "adam": {"warmup_steps": 2},
    "adamw": {"warmup_steps": 2, "weight_decay": 0.3},
    "bert_adam": {"warmup_steps": 2, "weight_decay": 0.3},
    "lamb": {"warmup_steps": 2, "weight_decay": 0.3},
    "adafactor": {"warmup_steps": 2, "weight_decay": 0.3},
    "sgd": {"warmup_steps": 2},
}
CONSTANT = {"schedule": "constant", "peak_learning_rate": 0.5, "warmup_steps": 0}


def config(**changes) -> OptimizerConfig:
    return dataclasses.replace(PAPER, **changes)


def optimizer(width=17, **changes):
    changed = config(**changes)
    return make_optimizer(changed, make_schedule(changed, width))


def update(transformation, gradients, params=None):
    """The updates that each of the gradients leads to, at parameters that stay as they are."""
    params = jax.tree.map(np.zeros_like, gradients[0]) if params is None else params

    @jax.jit
    def run(gradients, params):
        state, updates = transformation.init(params), []
        for gradient in gradients:
            step, state = transformation.update(gradient, state, params)
            updates.append(step)
        return updates

    return jax.tree.map(np.asarray, run(gradients, params))


def random_trees(count):
    rng = np.random.default_rng(0)
    trees = [{"a": rng.normal(size=(3, 5)), "b": rng.normal(size=7)} for _ in range(count)]
    return jax.tree.map(np.float32, trees)


def assert_same(found, expected, rtol=0.0):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol), found, expected)


# Adam, the paper's


def test_adam_in_numpy():
    gradients = [np.float32(g) for g in ([0.5, -2, 1e-9], [-0.25, -1, 0], [3, 0, 1e-9])]
    found = update(optimizer(warmup_steps=2), gradients)
    m, v = np.zeros(3), np.zeros(3)
    for t, (g, step) in enumerate(zip(gradients, found), start=1):
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * np.float64(g) ** 2
        rate = 17**-0.5 * min(t**-0.5, t * 2**-1.5)
        expected = -rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.98**t)) + 1e-9)
        np.testing.assert_allclose(step, expected, rtol=2e-5)


# The others


def test_adamw_decays_matrices():
    params = {"kernel": np.float32([[2.0, -4.0]]), "bias": np.float32([2.0, -4.0])}
    gradients = {"kernel": np.float32([[3.0, 0.0]]), "bias": np.float32([3.0, 0.0])}
    adamw = optimizer(name="adamw", weight_decay=0.1, **CONSTANT)
    found = update(adamw, [gradients], params)[0]
    # Adam's first update, -rate * sign(gradient), and -rate * 0.1 * parameter
    np.testing.assert_allclose(found["kernel"], [[-0.5 - 0.1, 0.2]], rtol=1e-5)
    np.testing.assert_allclose(found["bias"], [-0.5, 0.0], rtol=1e-5)


BERT = {"beta2": 0.999, "epsilon": 1e-6, **CONSTANT}


def test_bert_adam_by_hand():
    """Three updates; embeddings decay, biases and scales do not."""
    params = {"table_VD": np.float32([[2.0, -4.0]]), "bias": np.float32([2.0, -4.0])}
    gradients = [np.float32(g) for g in ([0.5, -2], [-0.25, -1], [3, 0])]
    trees = [{"table_VD": g[None], "bias": g} for g in gradients]
    found = update(optimizer(name="bert_adam", weight_decay=0.01, **BERT), trees, params)
    m, v = np.zeros(2), np.zeros(2)
    for g, step in zip(gradients, found, strict=True):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * np.float64(g) ** 2
        expected = -0.5 * m / (np.sqrt(v) + 1e-6)
        np.testing.assert_allclose(step["bias"], expected, rtol=1e-5)
        decayed = expected - 0.5 * 0.01 * np.array([2.0, -4.0])
        np.testing.assert_allclose(step["table_VD"][0], decayed, rtol=1e-5)


def test_lamb_by_hand():
    """The first update is rate * |w| / |r| * r, where r = sign(g) + decay * w."""
    params = {"kernel": np.float32([[3.0, -4.0]]), "new": np.zeros((1, 2)), "bias": np.ones(2)}
    gradients = {"kernel": np.float32([[2.0, 7.0]]), "new": np.float32([[2.0, -7.0]])}
    lamb = optimizer(name="lamb", weight_decay=0.1, **BERT)
    (found,) = update(lamb, [gradients | {"bias": np.float32([-2.0, 7.0])}], params)
    direction = np.array([1 + 0.3, 1 - 0.4])
    ratio = 5 / np.linalg.norm(direction)
    np.testing.assert_allclose(found["kernel"][0], -0.5 * ratio * direction, rtol=1e-5)
    # No ratio where a norm is 0, nor for a bias, which does not decay.
    np.testing.assert_allclose(found["new"][0], [-0.5, 0.5], rtol=1e-5)
    np.testing.assert_allclose(found["bias"], [0.5, -0.5], rtol=1e-5)


def test_lamb_sees_each_expert():
    """Of two experts: one that tokens have chosen, with the norm 5, and one without a gradient."""
    params = {"hidden_EDF": np.float32([[[3.0, -4.0]], [[6.0, -8.0]]])}
    gradients = {"hidden_EDF": np.float32([[[2.0, 7.0]], [[0.0, 0.0]]])}
    (found,) = update(optimizer(name="lamb", **BERT), [gradients], params)
    step = -0.5 * 5 / 2**0.5
    np.testing.assert_allclose(found["hidden_EDF"], [[[step, step]], [[0, 0]]], rtol=1e-5)


def test_what_decays():
    """Names of all families' parameters that do not, and of some that do."""
    kept = {
        *("bias", "bias_G", "bias_O", "bias_V", "initial_bias_I", "key_bias_K", "readout_bias_O"),
        *("state_bias_G", "output_bias_V", "halting_bias", "hidden_bias_EF", "output_bias_ED"),
        *("scale", "scale_NC", "shift_NC", "length_O", "gamma"),
    }
    decayed = {
        *("kernel", "table_VD", "positions", "token_types", "word_masks_WD", "signal_ND"),
        *("hidden_EDF", "output_EFD", "direction_XO", "energy_K", "halting_D1", "hidden_taps_WD"),
        *("gates_HX", "feed_RG", "embedding_VE", "candidate_HH", "output_VR"),
    }
    params = {"layer": {0: {name: np.ones((2, 3)) for name in kept | decayed}}}
    found = is_weight(params)["layer"][0]
    assert {name for name, decays in found.items() if decays} == decayed


@pytest.mark.parametrize("name", ["adamw", "bert_adam", "lamb", "adafactor"])
def test_no_bias_of_an_expert_decays(name):
    """Without a gradient, decay is all that happens."""
    shapes = {"hidden_EDF": (2, 1, 3), "hidden_bias_EF": (2, 3), "scale_NC": (2, 3)}
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    nothing = jax.tree.map(np.zeros_like, params)
    (found,) = update(optimizer(name=name, weight_decay=0.1, **CONSTANT), [nothing], params)
    assert np.all(found["hidden_EDF"] < 0)
    np.testing.assert_array_equal(found["hidden_bias_EF"], 0)
    np.testing.assert_array_equal(found["scale_NC"], 0)


def test_sgd_by_hand():
    gradients = [np.float32([2.0, -4.0]), np.float32([6.0, 0.0])]
    # -0.5 * (6 + 0.9 * 2), -0.5 * (0 + 0.9 * -4)
    found = update(optimizer(name="sgd", **CONSTANT), gradients)
    np.testing.assert_allclose(found, [[-1.0, 2.0], [-3.9, 1.8]], rtol=1e-6)
    without = optimizer(name="sgd", beta1=0.0, **CONSTANT)
    np.testing.assert_allclose(update(without, gradients), [[-1.0, 2.0], [-3.0, 0.0]])
    assert [leaf.shape for leaf in jax.tree.leaves(without.init(gradients[0]))] == [()]  # a count


def test_adafactor_is_that_of_optax():
    ours = config(name="adafactor", warmup_steps=2)
    rate = make_schedule(ours, 17)
    gradients, params = random_trees(3), random_trees(1)[0]
    found = update(make_optimizer(ours, rate), gradients, params)
    assert_same(found, update(optax.adafactor(lambda n: rate(n + 1)), gradients, params))


def test_adafactor_decays_matrices_at_its_rate():
    params = {"kernel": np.float32([[2.0, -4.0]]), "bias": np.float32([2.0, -4.0])}
    zero = jax.tree.map(np.zeros_like, params)
    adafactor = optimizer(name="adafactor", weight_decay=0.1, **CONSTANT)
    found = update(adafactor, [zero, zero], params)
    for step in found:
        np.testing.assert_allclose(step["kernel"], [[-0.1, 0.2]], rtol=1e-6)
        np.testing.assert_array_equal(step["bias"], [0, 0])


# All


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_are_clipped_by_their_global_norm(name):
    # Norms 5 and 0.5: the first is scaled by 1/5, the second stays.
    gradients = [
        {"a": np.float32([3.0]), "b": np.float32([[4.0]])},
        {"a": np.float32([0.3]), "b": np.float32([[-0.4]])},
    ]
    scaled = [jax.tree.map(lambda x: x / 5, gradients[0]), gradients[1]]
    clipped = update(optimizer(name=name, max_grad_norm=1.0, **CONFIGS[name]), gradients)
    by_hand = update(optimizer(name=name, **CONFIGS[name]), scaled)
    free = update(optimizer(name=name, **CONFIGS[name]), gradients)
    assert_same(clipped, by_hand, rtol=1e-5)
    for leaf in ("a", "b"):
        assert not np.allclose(clipped[1][leaf], free[1][leaf], rtol=1e-2)


@pytest.mark.parametrize(
    ("name", "max_grad_norm"), [*((name, 0.0) for name in OPTIMIZERS), ("adamw", 1.0)]
)
def test_an_update_that_is_not_to_be_applied_changes_nothing(name, max_grad_norm):
    chosen = optimizer(name=name, max_grad_norm=max_grad_norm, **CONFIGS[name])
    params, good = {"a": np.float32([[1.0, 3.0]])}, {"a": np.float32([[0.5, -2.0]])}
    bad = {"a": np.float32([[np.nan, np.inf]])}

    @jax.jit
    def run(params, good, bad):
        _, state = chosen.update(good, chosen.init(params), params, apply=True)
        skipped, after = chosen.update(bad, state, params, apply=False)
        return state, skipped, after, chosen.update(good, after, params, apply=True)[0]

    state, skipped, after, step = run(params, good, bad)
    np.testing.assert_array_equal(skipped["a"], [[0, 0]])
    assert_same(after, state)
    # The next one is as if it had never been.
    np.testing.assert_array_equal(step["a"], update(chosen, [good, good], params)[1]["a"])
    assert np.all(step["a"] != 0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_sharded_like_parameters(name):
    """Adafactor keeps means of rows and columns, of other shapes than their parameter."""
    rules = ((r"layer/kernel", P("fsdp", "tensor")), (r"layer/heads", P("tensor", None, "fsdp")))
    mesh = AbstractMesh((1, 2, 2), ("data", "fsdp", "tensor"))
    params = {"layer": {"kernel": np.ones((134, 142)), "heads": np.ones((146, 2, 158))}}
    state = jax.eval_shape(optimizer(name=name, **CONFIGS[name]).init, params)
    leaves = zip(*map(jax.tree.leaves, (state, state_sharding(mesh, state, rules))))
    shapes = [sharding.shard_shape(leaf.shape) for leaf, sharding in leaves]
    if name == "adafactor":
        assert {(134,), (142,), (146, 2), (2, 158)} <= set(shapes)  # copied
    else:
        moments = 1 if name == "sgd" else 2
        assert shapes.count((67, 71)) == shapes.count((73, 2, 79)) == moments


# The config


def test_fields_that_are_not_used_keep_the_values_of_the_base_config():
    for unused in OPTIMIZERS.values():
        assert unused == {field: getattr(PAPER, field) for field in unused}


WRONG = {
    "beta1": [-0.1, 1.0],
    "beta2": [-0.1, 1.0, float("nan")],
    "epsilon": [-1e-9, 1.0],
    "weight_decay": [-0.1],
    "max_grad_norm": [-1.0],
    "warmup_steps": [0],
    "name": ["adamax"],
    "schedule": ["rsqrt"],
}


@pytest.mark.parametrize(("field", "value"), [(x, value) for x in WRONG for value in WRONG[x]])
def test_wrong_values(field, value):
    with pytest.raises(UserError) as error:
        config(**{field: value})
    message = str(error.value)
    assert "\n" not in message
    assert f"optimizer.{field} is {value!r}; it must be " in message


def test_values_at_the_edge():
    edges = {"beta1": 0.0, "beta2": 0.999, "epsilon": 0.0, "warmup_steps": 1, "max_grad_norm": 0.1}
    for field, value in edges.items():
        assert getattr(config(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("name=adam weight_decay=0.1", "weight_decay is 0.1, but adam does not use it; leave it"),
        ("name=sgd weight_decay=0.1", "set optimizer.name to adamw or adafactor"),
        ("name=sgd beta2=0.9", "beta2 is 0.9, but sgd does not use it; leave it at 0.98, or set"),
        ("name=sgd epsilon=0.0", "epsilon is 0.0, but sgd does not use it; leave it at 1e-09"),
        ("name=adafactor beta1=0.0", "set optimizer.name to adam or adamw or sgd"),
        ("name=adamw", "weight_decay is 0, and adamw without it is adam; give"),
        ("peak_learning_rate=0.1", "but the schedule noam does not use it; leave it out, or set"),
        ("schedule=constant", "constant, which needs optimizer.peak_learning_rate; give"),
        ("schedule=cosine peak_learning_rate=0.1", "which needs optimizer.decay_steps"),
        ("schedule=linear peak_learning_rate=-0.1 decay_steps=5000", "is -0.1; it must be"),
        ("schedule=linear peak_learning_rate=0.1 decay_steps=4000", "4000, the update at which"),
        ("decay_steps=5000", "does not use it; leave it out, or set optimizer.schedule to linear"),
        ("schedule=inverse_sqrt peak_learning_rate=0.1 warmup_steps=0", "it must be at least 1"),
        (
            "cooldown_steps=9",
            "cooldown_steps is 9, but the schedule noam does not use it; leave it",
        ),
        (
            "schedule=wsd peak_learning_rate=0.1 decay_steps=5000 cooldown_steps=0",
            "optimizer.cooldown_steps is 0; it must be at least 1",
        ),
        (
            "schedule=wsd peak_learning_rate=0.1 decay_steps=5000",
            "optimizer.schedule is wsd, which needs optimizer.cooldown_steps; give",
        ),
        (
            "schedule=wsd peak_learning_rate=0.1 decay_steps=5000 cooldown_steps=1001",
            "cooldown_steps is 1001, more than the 1000 updates from optimizer.warmup_steps",
        ),
    ],
)
def test_values_that_do_not_fit_each_other(changes, message):
    kinds = {"name": str, "schedule": str}
    kinds |= dict.fromkeys(("warmup_steps", "decay_steps", "cooldown_steps"), int)
    pairs = [change.split("=") for change in changes.split()]
    values = {field: kinds[field](x) if field in kinds else float(x) for field, x in pairs}
    with pytest.raises(UserError) as error:
        config(**values)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
