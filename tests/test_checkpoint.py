import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer.checkpoint import Checkpoints
from transformer.errors import UserError
from transformer.sharding import data_mesh, replicated
from transformer.training import TrainState

ADAM = optax.adam(0.1)


def state(step: int, value: float = 0.0) -> TrainState:
    """A small state in which no two arrays are equal."""
    params = {"layers": {0: {"kernel": jnp.full((2, 3), value)}}, "bias": jnp.arange(5.0) / 7}
    opt_state = ADAM.init(params)
    gradient = jax.tree.map(lambda x: x + value + 1 / 3, params)
    _, opt_state = ADAM.update(gradient, opt_state, params)
    whole = TrainState(jnp.int32(step), params, opt_state)
    return jax.device_put(whole, replicated(data_mesh(jax.devices()[:1])))


def checkpoints(workdir, keep_last=2, best_metric="bleu") -> Checkpoints:
    return Checkpoints(workdir, keep_last=keep_last, best_metric=best_metric)


def saved(workdir, scores: dict[int, dict[str, float]], **options) -> Checkpoints:
    """Checkpoints with these scores; the parameters of step k are k."""
    manager = checkpoints(workdir, **options)
    for step, values in scores.items():
        manager.save(state(step, float(step)), values, {"best": None})
    manager.wait()
    return manager


def kept(workdir) -> list[int]:
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())


def test_restored_is_equal_to_the_bit(tmp_path):
    original = state(7, 0.1)
    notes = {"best": 27.25, "without_better": 3}
    manager = checkpoints(tmp_path)
    manager.save(original, {"nll": 1.5, "bleu": 27.25}, notes)
    manager.close()

    restored = checkpoints(tmp_path).restore_last(state(0))
    assert jax.tree.structure(restored.state) == jax.tree.structure(original)
    for x, y in zip(jax.tree.leaves(restored.state), jax.tree.leaves(original)):
        assert (x.dtype, x.sharding) == (y.dtype, y.sharding)
        np.testing.assert_array_equal(x, y)
    assert restored.notes == notes


def test_nothing_to_restore(tmp_path):
    assert checkpoints(tmp_path).restore_last(state(0)) is None
    assert checkpoints(tmp_path).steps() == []


def test_the_last_few_and_the_best_by_bleu_are_kept(tmp_path):
    scores = {10: 3.0, 20: 9.0, 30: 5.0, 40: 7.0, 50: 6.0}
    scores = {step: {"bleu": bleu, "nll": 1.0} for step, bleu in scores.items()}
    manager = saved(tmp_path, scores)
    assert kept(tmp_path) == manager.steps() == [20, 40, 50]
    assert manager.best_step() == 20
    manager.close()
    assert checkpoints(tmp_path).best_step() == 20  # also in a new process


def test_the_best_by_nll_is_the_lowest(tmp_path):
    scores = {10: 3.0, 20: 1.0, 30: 2.0, 40: 2.5, 50: 4.0}
    scores = {step: {"nll": nll, "bleu": nll} for step, nll in scores.items()}
    manager = saved(tmp_path, scores, best_metric="nll")
    assert kept(tmp_path) == [20, 40, 50]
    assert manager.best_step() == 20


def test_a_new_best_takes_the_place_of_the_old(tmp_path):
    manager = saved(tmp_path, {10: {"bleu": 3.0}, 20: {"bleu": 2.0}}, keep_last=1)
    assert kept(tmp_path) == [10, 20]
    manager.save(state(30), {"bleu": 4.0}, {})
    manager.wait()
    assert kept(tmp_path) == [30]


def test_checkpoints_without_bleu_are_never_the_best(tmp_path):
    none = {"nll": 0.5}
    scores = {10: none, 20: {"bleu": 0.0, "nll": 1.0}, 30: none, 40: none, 50: none}
    manager = saved(tmp_path, scores)
    assert kept(tmp_path) == [20, 40, 50]
    assert manager.best_step() == 20


def test_keeping_more_than_there_are(tmp_path):
    saved(tmp_path, {10: {"bleu": 1.0}, 20: {"nll": 1.0}}, keep_last=7)
    assert kept(tmp_path) == [10, 20]


def test_no_best_without_a_score(tmp_path):
    manager = saved(tmp_path, {10: {"nll": 1.0}, 20: {"nll": 2.0}, 30: {"nll": 3.0}})
    assert kept(tmp_path)[-2:] == [20, 30]
    with pytest.raises(UserError, match=r"no checkpoint in .* has a validation bleu; use .*last"):
        manager.best_step()


def test_resuming_goes_on_with_what_is_kept(tmp_path):
    saved(tmp_path, {10: {"bleu": 9.0}, 20: {"bleu": 1.0}}).close()
    manager = saved(tmp_path, {30: {"bleu": 2.0}, 40: {"bleu": 3.0}})
    assert kept(tmp_path) == [10, 30, 40]
    assert int(manager.restore_last(state(0)).state.step) == 40


def test_parameters_of_one_and_the_mean_of_several(tmp_path):
    scores = {step: {"bleu": float(step)} for step in (10, 20, 60)}
    manager = saved(tmp_path, scores, keep_last=3)
    like = state(0).params
    one = manager.restore_params(20, like)
    np.testing.assert_array_equal(one["layers"][0]["kernel"], np.full((2, 3), 20.0))
    mean = manager.average_params([10, 20, 60], like)
    np.testing.assert_array_equal(mean["layers"][0]["kernel"], np.full((2, 3), 30.0))
    np.testing.assert_allclose(mean["bias"], np.arange(5) / 7, rtol=1e-6)
    assert jax.tree.structure(mean) == jax.tree.structure(like)
    alone = manager.average_params([60], like)
    np.testing.assert_array_equal(alone["layers"][0]["kernel"], np.full((2, 3), 60.0))
