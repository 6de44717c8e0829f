"""Solutions of notebooks/4-the-family.ipynb."""

import numpy as np


# exercise-1
def receptive_field(blocks, width):
    return 1 + blocks * (width - 1)


# exercise-2
def step_weights(probabilities, threshold=0.99):
    weights, total = [], 0.0
    for p in probabilities:
        if weights and total >= 1:
            weights.append(0.0)
        elif total + p > threshold:
            weights.append(1 - total)
            total = 1.0
        else:
            weights.append(p)
            total += p
    return weights


# exercise-3
def hide(tokens, chosen, fate, others, mask_id):
    hidden = tokens.copy()
    stays = np.where(fate < 0.9, tokens[chosen], others)
    hidden[chosen] = np.where(fate < 0.8, mask_id, stays)
    return hidden
