# ruff: noqa: F821, the notebook has the other names
# exercise-1
def shift_matrix(k, D):
    M_DD = np.zeros((D, D))
    for i in range(0, D, 2):
        angle = k / 10000 ** (i / D)
        sin, cos = np.sin(angle), np.cos(angle)
        M_DD[i : i + 2, i : i + 2] = [[cos, -sin], [sin, cos]]
    return M_DD


# exercise-2
def multi_head(x_TD, memory_SD, mask_TS, kernels, H):
    def heads(x_XD, name):
        return (x_XD @ kernels[name]).reshape(len(x_XD), H, -1)

    q_THK, k_SHK, v_SHK = heads(x_TD, "query"), heads(memory_SD, "key"), heads(memory_SD, "value")
    scores_HTS = np.einsum("THK,SHK->HTS", q_THK, k_SHK) / q_THK.shape[-1] ** 0.5
    weights_HTS = softmax(np.where(mask_TS[None], scores_HTS, -np.inf))
    y_THK = np.einsum("HTS,SHK->THK", weights_HTS, v_SHK)
    return y_THK.reshape(len(x_TD), -1) @ kernels["output"]


# exercise-3
def greedy(src_BS, max_length):
    memory_BSD = transformer.encode(src_BS)
    cache = transformer.init_cache(memory_BSD, src_BS, 1, max_length)
    tokens = [BOS]
    while tokens[-1] != EOS and len(tokens) <= max_length:
        logits_NV, cache = decode_step(jnp.array(tokens[-1:]), cache)
        tokens.append(int(logits_NV[0].argmax()))
    return tokens[1:]
