import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.models import loss
from transformer.models.loss import Loss, OutputLayer, output_loss

cross_entropy = jax.jit(loss.cross_entropy, static_argnums=3)

# Three tokens of a vocabulary of three, with their nll and, by hand, the cross-entropy
# against 0.9 * one-hot + 0.1 / 3. Spread over the other two tokens, the 0.1 would give
# 0.799329, 0.629843 and 2.281122.
LOGITS = np.float32([[[-0.1, -1.2, -0.4], [1.2, 2.3, -3.4], [-2.2, 1.0, -1.2]]])
LABELS = np.array([[0, 1, 2]])
NLL = [0.729329, 0.289843, 2.341122]
SMOOTHED = [0.775996, 0.516509, 2.301122]


@pytest.mark.parametrize("token", [0, 1, 2])
def test_label_smoothing_spreads_over_the_whole_vocabulary(token):
    real = np.arange(3)[None] == token
    found = cross_entropy(LOGITS, LABELS, real, 0.1)
    assert float(found.loss) == pytest.approx(SMOOTHED[token], abs=2e-6)
    assert float(found.nll) == pytest.approx(NLL[token], abs=2e-6)
    assert found.tokens == 1


def test_sums_over_real_tokens():
    # Padding does not count, whatever its logits.
    logits = LOGITS.copy()
    logits[0, 1] = np.nan, np.inf, -np.inf
    found = cross_entropy(logits, LABELS, np.array([[True, False, True]]), 0.1)
    assert float(found.loss) == pytest.approx(SMOOTHED[0] + SMOOTHED[2], abs=3e-6)
    assert float(found.nll) == pytest.approx(NLL[0] + NLL[2], abs=3e-6)
    assert found.tokens == 2
    assert found.tokens.dtype == jnp.int32
    empty = cross_entropy(logits, LABELS, np.zeros((1, 3), bool), 0.1)
    assert [float(x) for x in empty[:3]] == [0, 0, 0]


def test_without_smoothing_the_loss_is_the_nll():
    found = cross_entropy(LOGITS, LABELS, np.ones((1, 3), bool), 0.0)
    assert float(found.loss) == pytest.approx(sum(NLL), abs=4e-6)
    assert float(found.loss) == pytest.approx(float(found.nll), rel=1e-6)


def test_losses_with_terms_add_up():
    loss = Loss(*map(jnp.asarray, (7.0, 5.0, 3)), {"ponder": jnp.asarray(2.0)})
    total = jax.tree.map(jnp.add, loss, loss)
    assert jax.tree.map(float, total) == Loss(14, 10, 6, {"ponder": 4})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_output_loss_is_the_cross_entropy_of_its_logits(dtype):
    hidden_BTD = np.float32([[[1, 2, 0], [0, 1, -1], [3, 0, 1]]])
    output_VD = np.float32([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])
    real_BT = np.array([[True, True, False]])
    layer = OutputLayer(output_VD, None, jnp.dtype(dtype))
    found = jax.jit(lambda: output_loss(jnp.asarray(hidden_BTD), layer, LABELS, real_BT, 0.1))()
    logits_BTV = np.float32([[[1, 2, 0, 3], [0, 1, -1, 0], [3, 0, 1, 4]]])
    expected = cross_entropy(logits_BTV, LABELS, real_BT, 0.1)
    np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-6)
    assert found.loss.dtype == jnp.float32


def test_gradient_is_prediction_less_target():
    def loss(logits):
        return cross_entropy(logits, LABELS, np.array([[True, True, False]]), 0.1).loss

    found = np.asarray(jax.grad(loss)(LOGITS))
    near, far = 0.1 / 3, 0.9 + 0.1 / 3
    targets = np.array([[far, near, near], [near, far, near]])
    exponentials = np.exp(LOGITS[0, :2])
    expected = exponentials / exponentials.sum(axis=1, keepdims=True) - targets
    np.testing.assert_allclose(found[0, :2], expected, atol=1e-6)
    np.testing.assert_array_equal(found[0, 2], np.zeros(3))


def test_bfloat16_logits_give_a_float32_loss():
    # 1009 equal logits; a bfloat16 sum of so many ones would stop at 256.
    logits = np.zeros((1, 1, 1009), jnp.bfloat16)
    found = cross_entropy(logits, np.array([[7]]), np.array([[True]]), 0.1)
    assert found.loss.dtype == found.nll.dtype == jnp.float32
    assert float(found.nll) == pytest.approx(np.log(1009), rel=1e-6)
    assert float(found.loss) == pytest.approx(np.log(1009), rel=1e-6)


def test_large_logits():
    logits = np.float32([[[1e4, 0.0, -1e4]]])
    found = cross_entropy(logits, np.array([[1]]), np.array([[True]]), 0.0)
    assert float(found.nll) == pytest.approx(1e4)
