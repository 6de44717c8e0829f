"""Word alignments from attention: which words translate each other."""

from collections.abc import Sequence

import numpy as np

from transformer.data.vocabulary import Tokenizer
from transformer.data.words import words_of


def word_alignment(
    attention_TS: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]
) -> list[tuple[int, int]]:
    """Pairs of source word and target word, counted from 0, one for each target word.

    attention_TS: the weights of each target token over the source tokens.
    source_words, target_words: the word number of each token (see `words_of_tokens`).
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
    """The number of the word that each token belongs to: see data/words.py.

    A token that adds nothing but a blank, as a lone `▁` before digits, begins the next word.
    """
    numbers, adds, before = [], [], []
    for end in range(1, len(tokens) + 1):
        text = words_of(tokenizer.decode(tokens[:end]))
        numbers.append(max(0, len(text) - 1))
        adds.append(text != before)
        before = text
    for i in reversed(range(len(tokens) - 1)):
        if not adds[i]:
            numbers[i] = numbers[i + 1]
    return numbers
