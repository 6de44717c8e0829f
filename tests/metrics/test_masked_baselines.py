import numpy as np

from transformer.data.documents import Documents
from transformer.data.sequences import Masked
from transformer.metrics.masked_baselines import masked_baselines


def test_by_hand():
    """Documents 5 6 5 6 5 7 and 6 8: 5 is the most frequent; 6 follows 5, and 5 follows 6.

    7 is never followed, since a document ends there.
    """
    tokens = np.array([5, 6, 5, 6, 5, 7, 6, 8], np.int32)
    training = Documents(tokens, np.array([0, 3, 6, 8]), np.array([0, 2, 3]))
    none = np.zeros((2, 1), np.int32)
    batch = Masked(
        #         [CLS]      [MASK]
        np.array([[2, 4, 5, 4, 7, 4, 3], [2, 6, 4, 4, 99, 4, 3]]),
        none,
        none,
        masked_BP=np.array([[1, 3, 5], [2, 3, 5]]),
        labels_BP=np.array([[5, 6, 5], [5, 5, 0]]),
        firsts_BC=none,
        is_random_BC=none,
        weight_B=none,
    )
    # After [CLS], 7 and [MASK] the guess is 5; after 5 it is 6, and after 6 it is 5.
    assert masked_baselines(training, [batch]) == {"unigram": 4 / 5, "bigram": 1.0}
    other = batch._replace(labels_BP=np.array([[5, 5, 7], [8, 5, 5]]))
    assert masked_baselines(training, [other]) == {"unigram": 4 / 6, "bigram": 3 / 6}
