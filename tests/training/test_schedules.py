import dataclasses

import jax
import jax.numpy as jnp
import pytest

from configs import base
from transformer.system.errors import UserError
from transformer.training.optimizers import OptimizerConfig
from transformer.training.schedules import make_schedule


def schedule(name, peak=None, warmup=4000, decay=None, width=None, cooldown=None):
    config = dataclasses.replace(
        OptimizerConfig(**base.get_config().optimizer),
        schedule=name,
        peak_learning_rate=peak,
        warmup_steps=warmup,
        decay_steps=decay,
        cooldown_steps=cooldown,
    )
    return make_schedule(config, width)


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
    assert float(schedule("noam", width=512)(step)) == pytest.approx(expected, rel=1e-6)


def test_equation_3_of_the_big_model():
    rate = schedule("noam", width=1024)
    assert float(rate(4000)) == pytest.approx(4.941059e-4, rel=1e-6)
    for step in (3999, 4001):
        assert rate(step) < rate(4000)


def test_the_width_is_for_noam_alone():
    with pytest.raises(UserError, match=r"noam, whose peak follows from model\.d_model"):
        schedule("noam")
    assert schedule("constant", 0.5, width=512)(4000) == schedule("constant", 0.5)(4000) == 0.5


@pytest.mark.parametrize(
    ("name", "decay", "expected"),
    [  # the rates at steps 1, 4, 9, 16, 36 of a peak of 0.6 after 4 steps
        ("inverse_sqrt", None, (0.15, 0.6, 0.4, 0.3, 0.2)),
        ("linear", 28, (0.15, 0.6, 0.475, 0.3, 0.0)),
        # 0.3 + 0.3 cos(pi / 3), cos(4 pi / 5)
        ("cosine", 19, (0.15, 0.6, 0.45, 0.3 - 0.3 * 0.809016994, 0.0)),
        ("constant", None, (0.15, 0.6, 0.6, 0.6, 0.6)),
    ],
)
def test_a_peak_after_a_warm_up(name, decay, expected):
    rate = schedule(name, 0.6, 4, decay)
    assert [float(rate(step)) for step in (1, 4, 9, 16, 36)] == pytest.approx(expected, abs=1e-7)


def test_the_peak_stays_until_the_cooldown():
    for name, half in (("wsd", 0.3), ("wsd_sqrt", 0.6 - 0.6 * 0.5**0.5)):
        rate = schedule(name, 0.6, 4, 40, cooldown=8)
        found = [float(rate(step)) for step in (1, 4, 20, 32, 36, 40, 50)]
        assert found == pytest.approx([0.15, 0.6, 0.6, 0.6, half, 0.0, 0.0], abs=1e-7)
    whole = schedule("wsd", 0.6, 4, 28, cooldown=24)  # linear
    assert [float(whole(step)) for step in (9, 16)] == pytest.approx([0.475, 0.3], abs=1e-7)


@pytest.mark.parametrize(
    ("name", "decay", "expected"),
    [  # the rates at steps 1, 2, 3, 4
        ("linear", 4, (0.6, 0.4, 0.2, 0.0)),
        ("cosine", 3, (0.6, 0.2, 0.0, 0.0)),
        ("constant", None, (0.8, 0.8, 0.8, 0.8)),
    ],
)
def test_no_warm_up(name, decay, expected):
    rate = schedule(name, 0.8, 0, decay)
    assert [float(rate(step)) for step in (1, 2, 3, 4)] == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("name", ["inverse_sqrt", "linear", "cosine", "constant"])
def test_rates_are_float32_and_exact_from_the_first_step(name):
    """A straight line taken down from its peak would lose four digits of the first rates."""
    decay = 100_000 if name in ("linear", "cosine") else None
    rate = jax.jit(schedule(name, 1.0, 40_000, decay))(jnp.int32(1))
    assert (rate.shape, rate.dtype) == ((), jnp.float32)
    assert float(rate) == pytest.approx(2.5e-5, rel=1e-6)
