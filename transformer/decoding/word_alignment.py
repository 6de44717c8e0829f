"""Which words translate each other, as attention says."""

from collections.abc import Sequence

import numpy as np

from transformer.data.vocabulary import Tokenizer


def word_alignment(
    attention_TS: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]
) -> list[tuple[int, int]]:
    """Pairs of source word and target word, counted from 0, one for each target word.

    attention_TS: the weights of each target token over the source tokens.
    source_words, target_words: of each token the number of its word (see `words_of_tokens`).
      Further tokens, such as EOS, belong to no word.

    A word's weight for another is the sum over the source word's tokens, and the mean over the
    target word's.
    """
    S, T = len(source_words), len(target_words)
    if not (S and T):
        return []
    weights_JI = np.zeros((max(target_words) + 1, max(source_words) + 1))
    np.add.at(weights_JI, np.ix_(target_words, source_words), attention_TS[:T, :S])
    best_J = weights_JI.argmax(axis=1)
    return [(int(best_J[j]), j) for j in sorted(set(target_words))]


def words_of_tokens(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """The number of the word, as spaces part them, that each token belongs to."""
    ends = [len(tokenizer.decode(tokens[: i + 1]).split()) for i in range(len(tokens))]
    return [max(0, end - 1) for end in ends]
