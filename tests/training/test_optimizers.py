import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer.system.errors import UserError
from transformer.training.optimizers import OptimizerConfig, learning_rate, optimizer

PAPER = dict(
    beta1=0.9,
    beta2=0.98,
    epsilon=1e-9,
    learning_rate_scale=1.0,
    warmup_steps=4000,
    max_grad_norm=0.0,
)


def config(**changes):
    return OptimizerConfig(**{**PAPER, **changes})


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1, 1.746928e-7),
        (100, 1.746928e-5),
        (1000, 1.746928e-4),
        (4000, 6.987712e-4),
        (10_000, 4.419417e-4),
        (100_000, 1.397542e-4),
    ],
)
def test_equation_3_of_the_base_model(step, expected):
    assert float(learning_rate(step, 512, config())) == pytest.approx(expected, rel=1e-6)


def test_equation_3_of_the_big_model():
    assert float(learning_rate(4000, 1024, config())) == pytest.approx(4.941059e-4, rel=1e-6)
    for step in (3999, 4001):
        assert learning_rate(step, 1024, config()) < learning_rate(4000, 1024, config())


def test_scale_and_warmup_of_the_learning_rate():
    changed = config(learning_rate_scale=2.0, warmup_steps=9)
    # 2 * 25^-0.5 * min(step^-0.5, step / 27)
    for step, expected in ((1, 0.4 / 27), (9, 0.4 / 3), (16, 0.4 / 4), (10_000, 0.4 / 100)):
        assert float(learning_rate(step, 25, changed)) == pytest.approx(expected, rel=1e-6)


def update(transformation, gradients):
    """The updates that each of the gradients leads to."""
    params = jax.tree.map(jnp.zeros_like, gradients[0])
    state, updates = transformation.init(params), []
    for gradient in gradients:
        step, state = transformation.update(gradient, state, params)
        updates.append(step)
    return updates


def test_adam_in_numpy():
    gradients = [np.float32(g) for g in ([0.5, -2, 1e-9], [-0.25, -1, 0], [3, 0, 1e-9])]
    found = update(optimizer(17, config(warmup_steps=2)), gradients)
    m, v = np.zeros(3), np.zeros(3)
    for t, (g, step) in enumerate(zip(gradients, found), start=1):
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * np.float64(g) ** 2
        rate = 17**-0.5 * min(t**-0.5, t * 2**-1.5)
        expected = -rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.98**t)) + 1e-9)
        np.testing.assert_allclose(step, expected, rtol=2e-5)


def test_the_first_update_has_step_1():
    # Adam's first update is the learning rate against the gradient's sign.
    found = update(optimizer(512, config()), [jnp.array([3.0, -0.7])])
    np.testing.assert_allclose(found[0], [-1.746928e-7, 1.746928e-7], rtol=1e-5)
    # epsilon, where a gradient is as small.
    found = update(optimizer(512, config(epsilon=1e-3)), [jnp.array([1e-3])])
    np.testing.assert_allclose(found[0], [-1.746928e-7 / 2], rtol=1e-5)


def test_gradients_are_clipped_by_their_global_norm():
    # Norms 5 and 0.5: the first is scaled by 1/5, the second stays.
    gradients = [
        {"a": jnp.array([3.0]), "b": jnp.array([[4.0]])},
        {"a": jnp.array([0.3]), "b": jnp.array([[-0.4]])},
    ]
    scaled = [jax.tree.map(lambda x: x / 5, gradients[0]), gradients[1]]
    clipped = update(optimizer(17, config(max_grad_norm=1.0)), gradients)
    by_hand = update(optimizer(17, config()), scaled)
    free = update(optimizer(17, config()), gradients)
    for name in ("a", "b"):
        np.testing.assert_allclose(clipped[1][name], by_hand[1][name], rtol=1e-5)
        assert not np.allclose(clipped[1][name], free[1][name], rtol=1e-2)


def test_only_the_gradient_moves_a_parameter():
    """No weight decay; the state is two moments of each parameter, and a count."""
    params = {"w": jnp.ones((3, 5))}
    adam = optimizer(17, config())
    state = adam.init(params)
    assert sorted(leaf.size for leaf in jax.tree.leaves(state))[-3:] == [1, 15, 15]
    step, _ = adam.update({"w": jnp.zeros((3, 5))}, state, params)
    np.testing.assert_array_equal(step["w"], np.zeros((3, 5)))


@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_it_is_adam_of_optax(max_grad_norm):
    paper = config(warmup_steps=2, max_grad_norm=max_grad_norm)
    clip = optax.clip_by_global_norm(max_grad_norm or np.inf)
    theirs = optax.chain(
        clip, optax.adam(lambda n: learning_rate(n + 1, 17, paper), b1=0.9, b2=0.98, eps=1e-9)
    )
    rng = np.random.default_rng(0)
    gradients = [{"a": rng.normal(size=(3, 5)), "b": rng.normal(size=7)} for _ in range(5)]
    gradients = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), gradients)
    for found, expected in zip(*(update(x, gradients) for x in (optimizer(17, paper), theirs))):
        for name in found:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)


@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_an_update_that_is_not_to_be_applied_changes_nothing(max_grad_norm):
    adam = optimizer(17, config(warmup_steps=2, max_grad_norm=max_grad_norm))
    good, bad = {"a": jnp.array([0.5, -2.0])}, {"a": jnp.array([jnp.nan, jnp.inf])}
    _, state = adam.update(good, adam.init(good), apply=jnp.array(True))
    step, after = adam.update(bad, state, apply=jnp.array(False))
    np.testing.assert_array_equal(step["a"], [0, 0])
    jax.tree.map(np.testing.assert_array_equal, after, state)
    # The next one is as if it had never been.
    expected = update(adam, [good, good])[1]
    step, _ = adam.update(good, after, apply=jnp.array(True))
    np.testing.assert_array_equal(step["a"], expected["a"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("beta1", -0.1),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("beta2", 1.0),
        ("beta2", float("nan")),
        ("epsilon", -1e-9),
        ("epsilon", 1.0),
        ("learning_rate_scale", -1.0),
        ("learning_rate_scale", float("inf")),
        ("warmup_steps", 0),
        ("max_grad_norm", -1.0),
    ],
)
def test_wrong_values(field, value):
    with pytest.raises(UserError) as error:
        config(**{field: value})
    message = str(error.value)
    assert "\n" not in message
    assert f"optimizer.{field} is {value}; it must be " in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("beta1", 0.0),
        ("beta2", 0.999),
        ("epsilon", 0.0),
        ("learning_rate_scale", 0.0),
        ("warmup_steps", 1),
        ("max_grad_norm", 0.1),
    ],
)
def test_values_at_the_edge(field, value):
    assert getattr(config(**{field: value}), field) == value
