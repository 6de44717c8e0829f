import jax
import jax.numpy as jnp
import numpy as np


# exercise-1
def bahdanau(s_H, h_SU, W_HK, U_UK, b_K, v_K):
    weights_S = jax.nn.softmax(jnp.tanh((s_H @ W_HK)[None] + h_SU @ U_UK + b_K[None]) @ v_K)
    return weights_S, weights_S @ h_SU


# exercise-2
def masked_weights(scores_BTS, real_BS):
    return jax.nn.softmax(jnp.where(real_BS[:, None], scores_BTS, -jnp.inf), axis=-1)


# exercise-3
def crossings(weights_TS):
    a_T = np.argmax(weights_TS, axis=1)
    return sum(int(np.sum(later < a)) for t, a in enumerate(a_T) for later in [a_T[t + 1 :]])
