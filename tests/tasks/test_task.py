import jax.numpy as jnp
import pytest

from transformer.models.loss import Loss
from transformer.system.errors import UserError
from transformer.tasks.task import TASKS, Metric, examples, find_task, mean_nll


def test_mean_nll_is_per_token():
    parts = [Loss(jnp.array(0.0), jnp.array(x), jnp.array(n)) for x, n in [(6.0, 2), (3.0, 7)]]
    assert mean_nll(parts) == 1.0


def test_examples_are_spread_over_a_split():
    columns = {"source": [f"s{i}" for i in range(7)], "translation": [f"t{i}" for i in range(7)]}
    assert examples(columns, 2) == (
        "  source       s1\n  translation  t1\n\n  source       s4\n  translation  t4"
    )
    assert examples({"a": ["x"]}) == "  a  x"


def test_which_way_a_metric_is_better():
    assert Metric("lower").is_better(1.0, than=2.0)
    assert not Metric("higher").is_better(1.0, than=2.0)
    assert not Metric("higher").is_better(1.0, than=1.0)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_chooses_by_a_metric_that_it_measures(name):
    task = find_task(name)
    assert task.main_metric in task.metrics


def test_an_unknown_task():
    with pytest.raises(UserError, match=r"task\.name is 'x'; it must be one of: seq2seq"):
        find_task("x")


def test_only_translation_has_test_sets_beside_its_splits():
    """Tasks that derive from it have other data and scores."""
    assert [name for name in TASKS if find_task(name).score_test_set] == ["seq2seq"]
