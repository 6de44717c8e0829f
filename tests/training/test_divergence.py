import dataclasses

import pytest
from small_configs import PAPER

from transformer.training.divergence import Monitor
from transformer.training.step import StepMetrics


def metrics_of(nll: float, source: float) -> StepMetrics:
    """Of an update on 100 tokens; both losses are per token."""
    smoothed = 0.9 * nll + 0.1 * 9
    terms = {"nll": 100 * nll, "source": 100 * source}
    return StepMetrics(100 * (smoothed + source), 100 * smoothed, 100, terms, 1.0, False)


@pytest.fixture
def monitor():
    return Monitor(dataclasses.replace(PAPER.training, max_loss_rise=2.0, rollback_after=3))


def test_a_loss_that_rises_is_bad(monitor):
    for step in range(20):
        assert monitor.add(step, metrics_of(5, 1)) is None
    assert monitor.average == pytest.approx(5.4)
    assert monitor.add(20, metrics_of(8, 1)).loss == pytest.approx(8.1)
    monitor.add(21, metrics_of(9, 1))
    assert not monitor.has_diverged
    monitor.add(22, metrics_of(9, 1))
    assert monitor.has_diverged
    monitor.config = dataclasses.replace(monitor.config, max_loss_rise=0.0)
    assert monitor.add(23, metrics_of(9, 1)) is None


def test_a_network_that_is_stuck_is_bad(monitor):
    """Its loss may stay where it is."""
    metrics = metrics_of(5, 1)
    for step in range(6):
        bad = monitor.add(step, metrics._replace(stuck=step != 2))
        assert (bad is None) == (step == 2)
    assert "norm of the gradient 1: a network gets no gradient" in str(bad)
    assert monitor.has_diverged
    assert monitor.average == pytest.approx(5.4)


def test_named_parts_may_be_of_more_tokens(monitor):
    for step in range(20):
        assert monitor.add(step, metrics_of(5, 1 + 9 * (step % 2))) is None


def test_notes_of_an_earlier_commit_tell_no_average(monitor):
    monitor.add(0, metrics_of(5, 1))
    assert Monitor(monitor.config, monitor.notes()).average == monitor.average
    notes = {"average": 0.4, "skipped": 1, "offset": 2, "rollbacks": 0}
    again = Monitor(monitor.config, notes)
    assert (again.average, again.skipped, again.offset) == (None, 1, 2)
