"""Choice of the tokens that BERT's pre-training masks, and batches of masked sequences."""

import dataclasses

import numpy as np

from transformer.data.documents import Sequences
from transformer.data.sequences import Masked, PackedSequences
from transformer.data.splits import TextSection
from transformer.data.wordpiece import WordPiece
from transformer.system.decimals import written
from transformer.system.errors import check_choice, check_range


@dataclasses.dataclass(frozen=True)
class MaskedLMData(TextSection):
    """The data section; see configs/bert_base.py."""

    max_length: int
    short_rate: float
    duplicates: int
    mask_rate: float
    max_predictions: int
    masking: str
    whole_words: bool
    packing: bool

    def __post_init__(self):
        super().__post_init__()
        check_range(self, "data", "max_length", 5)  # [CLS], two [SEP], two sentences of a token
        check_range(self, "data", "duplicates", 1, 1001)
        check_range(self, "data", "max_predictions", 1)
        check_range(self, "data", "short_rate mask_rate", 0, 1)
        check_choice(self, "data", "masking", ("static", "dynamic"))


def num_predictions(lengths: np.ndarray, rate: float, most: int) -> np.ndarray:
    """The number of tokens to predict: max(1, round(rate * length)), at most `most`.

    Lengths count special tokens, and a half is rounded to the even number, as in the original code.
    """
    count_S = [round(written(rate) * length) for length in range(lengths.max(initial=0) + 1)]
    return np.clip(np.array(count_S)[lengths], 1, most)


def mask(
    tokens_S: np.ndarray,
    count: int,
    tokenizer: WordPiece,
    rng: np.random.Generator,
    whole_words: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses `count` tokens of a sequence, [CLS] and [SEP] excluded, and hides them.

    80 % become [MASK], 10 % stay, 10 % become any token of the vocabulary, special ones included.
    whole_words: chooses all pieces of a word or none. Words that do not fit are passed over, so
    fewer than `count` tokens may be chosen.

    Returns the positions in order, and the tokens with these changes.
    """
    is_word = (tokens_S != tokenizer.cls) & (tokens_S != tokenizer.sep)
    candidates = np.flatnonzero(is_word)
    if whole_words:
        # A word begins at a piece that does not continue one, or after a special token.
        begins = ~tokenizer.is_continuation_V[tokens_S[candidates]]
        begins[0] = True
        begins[1:] |= np.diff(candidates) > 1
        words = np.split(candidates, np.flatnonzero(begins)[1:])
        picked: list[int] = []
        for i in rng.permutation(len(words)):
            if len(picked) + len(words[i]) <= count:
                picked += words[i].tolist()
        chosen = np.sort(np.array(picked, np.int64))
    else:
        chosen = np.sort(rng.permutation(candidates)[:count])
    fate = rng.random(len(chosen))
    others = rng.integers(0, tokenizer.vocab_size, len(chosen))
    hidden_S = tokens_S.copy()
    hidden_S[chosen] = np.where(
        fate < 0.8, tokenizer.mask, np.where(fate < 0.9, tokens_S[chosen], others)
    )
    return chosen, hidden_S


class MaskedRows(PackedSequences):
    """Sequences of documents in rows of data.max_length tokens, and data.max_predictions of them.

    seed: of the masks, and of the rows.
    """

    def __init__(self, sequences: Sequences, tokenizer: WordPiece, data: MaskedLMData, seed: int):
        widths = data.max_length, min(data.max_predictions, data.max_length)
        self.predictions = num_predictions(sequences.lengths, data.mask_rate, widths[1])
        super().__init__(sequences.lengths, self.predictions, widths, seed, data.packing)
        self.sequences = sequences
        self.tokenizer = tokenizer
        self.whole_words = data.whole_words
        self.seed = seed

    def tokens_of(self, number: int) -> tuple[np.ndarray, int]:
        """The tokens of a sequence, and how many of them belong to sentence A."""
        a, a_end, b, b_end = self.sequences.spans[number]
        tokens = self.sequences.documents.tokens
        cls, sep = [self.tokenizer.cls], [self.tokenizer.sep]
        parts = [cls, tokens[a:a_end], sep]
        if self.sequences.is_random[number] >= 0:
            parts += [tokens[b:b_end], sep]
        return np.concatenate(parts).astype(np.int32), a_end - a + 2

    def weight(self, rows: np.ndarray) -> float:
        """Masked tokens per sequence in these rows: see `Masked`.

        With whole words slightly fewer tokens may be masked.
        """
        numbers = self.pairs_of(rows.ravel())
        return float(self.predictions[numbers].mean())

    def batch(self, rows: np.ndarray) -> Masked:
        return self.masked(rows, 1.0)

    def masked(self, rows: np.ndarray, weight: float) -> Masked:
        """The batch of these rows with a weight.

        A row's number plus a multiple of the number of rows is the same row with other masks.
        """
        shape = rows.shape
        visits, rows = np.divmod(rows.ravel(), len(self))
        rows = np.where(visits < 0, -1, rows)
        laid = self.lay_out(rows)
        masked_BP = np.zeros((len(rows), self.target_width), np.int32)
        labels_BP = np.zeros_like(masked_BP)
        is_random_BC = np.where(
            laid.numbers_BC < 0, -1, self.sequences.is_random[laid.numbers_BC]
        ).astype(np.int32)
        filled = np.zeros(len(rows), np.int64)
        for row, column in zip(*np.nonzero(laid.numbers_BC >= 0)):
            number, first = laid.numbers_BC[row, column], laid.firsts_BC[row, column]
            rng = np.random.default_rng((self.seed, 2, int(number), int(visits[row])))
            part = slice(first, first + self.lengths[number])
            tokens_S = laid.tokens_BS[row, part].copy()
            count = self.predictions[number]
            places, laid.tokens_BS[row, part] = mask(
                tokens_S, count, self.tokenizer, rng, self.whole_words
            )
            at = slice(filled[row], filled[row] + len(places))
            masked_BP[row, at], labels_BP[row, at] = first + places, tokens_S[places]
            filled[row] += len(places)
        batch = Masked(
            laid.tokens_BS,
            laid.types_BS,
            laid.segments_BS,
            masked_BP,
            labels_BP,
            laid.firsts_BC,
            is_random_BC,
            np.full(len(rows), weight, np.float32),
        )
        return Masked(*(x.reshape(*shape, *x.shape[1:]) for x in batch))
