"""RNN encoder-decoders, in NumPy and float64, step by step from their papers' equations.

Each paper is a function of parameters, config, source and target words. It returns the logits
after each target word and the attention's weights alpha (None without attention). A matrix that a
paper writes over several inputs is put together again here: W [y; c] is one product.
"""

import numpy as np

from transformer.models.rnn.rnn_config import RNNConfig

# --- Cells: (parameters, input, state) -> state. A state is a tuple; what others see is first. ---


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def of_gates(p, count):
    """W, b and the second bias of each gate."""
    absent = np.zeros(p["input_IG"].shape[1])
    biases = p.get("bias_G", absent), p.get("state_bias_G", absent)
    return [np.split(x, count, axis=-1) for x in (p["input_IG"], *biases)]


def gated_unit(p, x, state):
    """Bahdanau et al. 2015, A.1.1."""
    (s,) = state
    W, b, b2 = of_gates(p, 3)
    U_z, U_r = np.split(p["gates_HX"], 2, axis=1)
    z = sigmoid(x @ W[0] + s @ U_z + b[0] + b2[0])
    r = sigmoid(x @ W[1] + s @ U_r + b[1] + b2[1])
    proposal = np.tanh(x @ W[2] + (r * s) @ p["candidate_HH"] + b[2] + b2[2])
    return ((1 - z) * s + z * proposal,)


def gru(p, x, state):
    """The documentation of torch.nn.GRU."""
    (h,) = state
    W, b_i, b_h = of_gates(p, 3)
    U = np.split(p["state_HG"], 3, axis=1)
    z = sigmoid(x @ W[0] + b_i[0] + h @ U[0] + b_h[0])
    r = sigmoid(x @ W[1] + b_i[1] + h @ U[1] + b_h[1])
    n = np.tanh(x @ W[2] + b_i[2] + r * (h @ U[2] + b_h[2]))
    return ((1 - z) * n + z * h,)


def lstm(p, x, state):
    """Zaremba et al. 2014, Section 3.1; the documentation of torch.nn.LSTM."""
    h, c = state
    W, b_i, b_h = of_gates(p, 4)
    U = np.split(p["state_HG"], 4, axis=1)
    i, f, o, g = (x @ W[k] + b_i[k] + h @ U[k] + b_h[k] for k in range(4))
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


CELLS = {"gated_unit": gated_unit, "gru": gru, "lstm": lstm}


def with_input(p, more):
    """A cell's parameters for the input [x; more], whose matrix lies elsewhere."""
    return p | {"input_IG": np.vstack([p["input_IG"], more])}


def zeros(config: RNNConfig):
    return (np.zeros(config.hidden_size),) * (2 if config.cell == "lstm" else 1)


def deep(cell, layers, x, states):
    """One step of all layers, each on the h of the layer below."""
    new = []
    for layer, state in zip(layers, states, strict=True):
        new.append(cell(layer, x, state))
        x = new[-1][0]
    return new


def by_layer(p):
    return [p[i] for i in range(len(p))]


# --- Parts that several papers share ----------------------------------------------------------


def both_ways(p, config, source):
    """h_j = [forward; backward] of one layer, A.2.1 of Bahdanau et al.; both last states."""
    cell, n = CELLS[config.cell], len(source)
    words = [p["source_embedding_VE"][word] for word in source]
    forward, backward = [zeros(config)] * (n + 1), [zeros(config)] * (n + 1)
    for j in range(n):
        forward[j + 1] = cell(p["encoder_forward"][0], words[j], forward[j])
    for j in reversed(range(n)):
        backward[j] = cell(p["encoder_backward"][0], words[j], backward[j + 1])
    h = np.array([np.concatenate([forward[j + 1][0], backward[j][0]]) for j in range(n)])
    return h, forward[n][0], backward[0][0]


def align(p, config, s, h):
    """alpha over the annotations h, for the state s that asks."""
    a = p["decoder"].get("alignment")  # "dot" has no parameters
    scores = []
    for h_j in h:
        if config.attention == "dot":
            scores.append(s @ h_j)
        elif config.attention == "general":
            scores.append(h_j @ a["key_UH"] @ s)
        else:  # W [s; h_j], and a bias where there is one
            hidden = np.concatenate([s, h_j]) @ np.vstack([a["query_HK"], a["key_UK"]])
            scores.append(np.tanh(hidden + a.get("key_bias_K", 0)) @ a["energy_K"])
    if not config.attention_window:
        return softmax(np.array(scores))
    # Luong et al. 2015, Equations 9 and 10.
    D, S = config.attention_window, len(h)
    place = S * sigmoid(np.tanh(s @ a["position_HP"]) @ a["position_P"])
    inside = [j for j in range(S) if place - D <= j <= place + D]
    alpha, sigma = np.zeros(S), D / 2
    alpha[inside] = softmax(np.array(scores)[inside])
    return alpha * np.exp(-((np.arange(S) - place) ** 2) / (2 * sigma**2))


# --- The papers -------------------------------------------------------------------------------


def sutskever(p, config, source, target):
    """Sutskever et al. 2014: the states of a deep LSTM that read the source from its end."""
    states, logits = [zeros(config)] * config.num_layers, []
    for word in reversed(source):
        x = p["source_embedding_VE"][word]
        states = deep(lstm, by_layer(p["encoder_backward"]), x, states)
    for word in target:
        x = p["target_embedding_VE"][word]
        states = deep(lstm, by_layer(p["decoder"]["cells"]), x, states)
        logits.append(p["output_VR"] @ states[-1][0])
    return np.array(logits), None


def scores(p, config, previous, state, y, c):
    """Of all words: by Bahdanau's maxout layer, A.2.2, or by one layer on all there is."""
    if config.readout == "concat":
        return p["output_VR"] @ np.concatenate([state, c, y]) + p["output_bias_V"]
    U_o, V_o, C_o = (p["decoder"]["readout"][part] for part in ("previous", "word", "context"))
    t = previous @ U_o + y @ V_o + c @ C_o + p["decoder"]["readout_bias_O"]
    half = len(t) // 2
    return p["output_VR"] @ [max(t[k], t[k + half]) for k in range(half)]


def cho(p, config, source, target):
    """Cho et al. 2014: the source's last state is an input of each step, and of its readout.

    First states and cell are those of the second notebook of bentrevett/pytorch-seq2seq.
    """
    cell, states, logits = CELLS[config.cell], [zeros(config)] * config.num_layers, []
    for word in source:
        x = p["source_embedding_VE"][word]
        states = deep(cell, by_layer(p["encoder_forward"]), x, states)
    c = states[-1][0]
    layers = by_layer(p["decoder"]["cells"])
    layers[0] = with_input(layers[0], p["decoder"]["context_UG"])
    for word in target:
        y, previous = p["target_embedding_VE"][word], states[-1][0]
        states = deep(cell, layers, np.concatenate([y, c]), states)
        logits.append(scores(p, config, previous, states[-1][0], y, c))
    return np.array(logits), None


def bahdanau(p, config, source, target):
    """Bahdanau et al. 2015, A.2; or the third notebook of bentrevett: other s_0, cell, readout."""
    d, cell = p["decoder"], CELLS[config.cell]
    h, forward, backward = both_ways(p, config, source)
    last = backward if config.initial_state == "backward" else np.concatenate([forward, backward])
    state = (np.tanh(last @ d["initial_XI"] + d["initial_bias_I"]),)
    with_context = with_input(d["cells"][0], d["context_UG"])
    logits, alphas = [], []
    for word in target:
        y, previous = p["target_embedding_VE"][word], state[0]
        alpha = align(p, config, previous, h)
        c = sum(a * h_j for a, h_j in zip(alpha, h, strict=True))
        state = cell(with_context, np.concatenate([y, c]), state)
        logits.append(scores(p, config, previous, state[0], y, c))
        alphas.append(alpha)
    return np.array(logits), np.array(alphas)


def luong(p, config, source, target):
    """Luong et al. 2015, Section 3: from h_t, alpha; from both, h~_t; from that, the word."""
    d, states = p["decoder"], [zeros(config)] * config.num_layers
    h = np.zeros((len(source), config.hidden_size))
    for j in reversed(range(len(source))):
        x = p["source_embedding_VE"][source[j]]
        states = deep(lstm, by_layer(p["encoder_backward"]), x, states)
        h[j] = states[-1][0]
    layers = by_layer(d["cells"])
    if config.input_feeding:
        layers[0] = with_input(layers[0], d["feed_RG"])
    W_c = np.vstack([d["readout"]["context"], d["readout"]["state"]])
    attentional, logits, alphas = np.zeros(config.readout_size), [], []
    for word in target:
        x = p["target_embedding_VE"][word]
        if config.input_feeding:
            x = np.concatenate([x, attentional])
        states = deep(lstm, layers, x, states)
        top = states[-1][0]
        alphas.append(align(p, config, top, h))
        seen = np.concatenate([alphas[-1] @ h, top])
        attentional = np.tanh(seen @ W_c + d.get("readout_bias_O", 0))
        logits.append(p["output_VR"] @ attentional)
    return np.array(logits), np.array(alphas)


def conditional(p, config, source, target):
    """The conditional GRU of dl4mt: GRU, attention, GRU; readout of nmtpytorch, or "deep"."""
    d, E = p["decoder"], p["target_embedding_VE"]
    h, _, _ = both_ways(p, config, source)
    s = np.tanh(h.mean(axis=0) @ d["initial_XI"] + d["initial_bias_I"])
    logits, alphas = [], []
    for word in target:
        (between,) = gru(d["cells"][0], E[word], (s,))
        alphas.append(align(p, config, between, h))
        (s,) = gru(d["cells"][1], alphas[-1] @ h, (between,))
        parts = {"state": s, "context": alphas[-1] @ h, "word": E[word]}
        t = sum(parts[part] @ table for part, table in d["readout"].items())
        t = np.tanh(t + d["readout_bias_O"])
        logits.append(p.get("output_VR", E) @ t + p["output_bias_V"])
    return np.array(logits), np.array(alphas)
