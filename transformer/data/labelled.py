"""Sequences of texts with labels, packed into rows."""

from collections.abc import Sequence

import numpy as np

from transformer.data.sequences import Labelled, PackedSequences
from transformer.data.wordpiece import WordPiece

# A row holds at most one sequence per this many tokens, which bounds the results of a batch.
_TOKENS_EACH = 4


class LabelledRows(PackedSequences):
    """Texts, or pairs of texts, in rows of `width` tokens.

    texts: pairs of a text and a second text or None. A pair that is too long loses tokens at the
      end of its longer text, one by one, as in the original code.
    """

    def __init__(
        self,
        texts: Sequence[tuple[str, str | None]],
        labels: Sequence[float],
        tokenizer: WordPiece,
        width: int,
        *,
        seed: int,
        packing: bool,
    ):
        firsts = tokenizer.encode_batch([text for text, _ in texts])
        seconds = tokenizer.encode_batch([second or "" for _, second in texts])
        cls, sep = [tokenizer.cls], [tokenizer.sep]
        self.num_cut = 0
        self._tokens: list[np.ndarray] = []
        self._num_a: list[int] = []
        for (_, second), a, b in zip(texts, firsts, seconds, strict=True):
            ends = 2 if second is None else 3
            num_a, num_b = truncated(len(a), len(b), width - ends)
            self.num_cut += num_a + num_b < len(a) + len(b)
            parts = [cls, a[:num_a], sep, *([] if second is None else [b[:num_b], sep])]
            self._tokens.append(np.array([x for part in parts for x in part], np.int32))
            self._num_a.append(num_a + 2)
        lengths = np.array([len(tokens) for tokens in self._tokens])
        most = max(1, width // _TOKENS_EACH) if packing else 1
        super().__init__(lengths, np.ones_like(lengths), (width, most), seed, packing)
        self.most_in_row = most
        self.labels = np.asarray(labels, np.float32)

    def tokens_of(self, number: int) -> tuple[np.ndarray, int]:
        return self._tokens[number], self._num_a[number]

    def batch(self, rows: np.ndarray) -> Labelled:
        laid = self.lay_out(rows.ravel())
        is_real_BC = laid.numbers_BC >= 0
        labels_BC = np.where(is_real_BC, self.labels[laid.numbers_BC], 0).astype(np.float32)
        batch = Labelled(
            laid.tokens_BS,
            laid.types_BS,
            laid.segments_BS,
            laid.firsts_BC,
            labels_BC,
            is_real_BC.astype(np.int32),
        )
        return Labelled(*(x.reshape(*rows.shape, *x.shape[1:]) for x in batch))


def truncated(num_a: int, num_b: int, room: int) -> tuple[int, int]:
    """The lengths of two texts after the longer one has lost tokens until both fit."""
    excess = max(0, num_a + num_b - room)
    from_longer = min(excess, abs(num_a - num_b))
    if num_a > num_b:
        num_a -= from_longer
    else:
        num_b -= from_longer
    # Now they are equal, or short enough. If equal, the second text loses a token first.
    rest = excess - from_longer
    return num_a - rest // 2, num_b - (rest + 1) // 2
