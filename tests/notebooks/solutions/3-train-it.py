import jax


# exercise-1
def learning_rate(step, d_model, warmup_steps):
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


# exercise-2
def gradient(logits_V, label, epsilon):
    q_V = (1 - epsilon) * jax.nn.one_hot(label, len(logits_V)) + epsilon / len(logits_V)
    return jax.nn.softmax(logits_V) - q_V


# exercise-3
def beam_search(next_log_probs, beam_size):
    live, finished = [((), 0.0)], []
    while live:
        longer = [
            ((*beginning, token), log_prob + more)
            for beginning, log_prob in live
            for token, more in next_log_probs(beginning).items()
        ]
        best = sorted(longer, key=lambda pair: -pair[1])[:beam_size]
        finished += [pair for pair in best if pair[0][-1] == "."]
        live = [pair for pair in best if pair[0][-1] != "."]
    return max(finished, key=lambda pair: pair[1])
