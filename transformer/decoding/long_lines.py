"""Lines longer than a model's sentences: cut into pieces, whose translations are joined."""

import functools
import math
import re
from collections.abc import Callable, Sequence

from transformer.data.languages import joint
from transformer.data.vocabulary import Tokenizer
from transformer.data.words import BLANKS, NOT_BLANK, words_of
from transformer.decoding.inputs import Request
from transformer.decoding.translation import Translation
from transformer.system.errors import UserError

# Where a text may be cut, the best places first. Patterns look back a fixed number of characters,
# so that the time is proportional to the length of any text.
_TITLES = ["Mr", "Mrs", "Ms", "Dr", "Prof", "St", "[A-Z]"]
_NO_TITLE = "".join(rf"(?<!\b{word}\.)" for word in _TITLES)
_SENTENCES = re.compile(
    rf"(?<=[.!?…]){_NO_TITLE}[{BLANKS}]++(?![a-zß-ÿа-я])|(?<=[.!?…][\"'”’»)\]])[{BLANKS}]++(?![a-zß-ÿа-я])"
    r"|(?<=[。！？｡])(?![”’」』）])|(?<=[。！？｡][”’」』）])"
)
_CLAUSES = re.compile(rf"(?<=[,;:–—])[{BLANKS}]+|(?<=[，；：、])")
_WORDS = re.compile(rf"[{BLANKS}]+")
_LEVELS = (_SENTENCES, _CLAUSES, _WORDS)

_LONGEST_WORD = 1 << 20  # characters


class Cutter:
    """Cuts text into pieces of at most `limit` tokens.

    count(texts): the number of tokens of each text.
    """

    def __init__(self, count: Callable[[Sequence[str]], list[int]], limit: int):
        self._count = count
        self.limit = limit
        # Words that long rarely fit, and some tokenizers take quadratic time for a word.
        self._long_word = re.compile(rf"{NOT_BLANK}{{{min(4 * limit, _LONGEST_WORD) + 1}}}")

    @classmethod
    def of(cls, tokenizer: Tokenizer, limit: int) -> "Cutter":
        """A Cutter that counts the tokens of a tokenizer; each piece has those of its language."""
        encode = functools.partial(tokenizer.for_language("").encode_batch, num_threads=-1)
        limit = max(1, limit - len(tokenizer.beginning))
        return cls(lambda texts: [len(ids) for ids in encode(texts)], limit)

    def is_long(self, text: str) -> bool:
        if len(text) <= self.limit and len(text.encode(errors="replace")) < self.limit:
            return False  # no tokenizer makes more tokens than bytes, and one for the beginning
        return bool(self._long_word.search(text)) or self._count([text])[0] > self.limit

    def first(self, text: str) -> str:
        """As many words from the beginning as fit."""
        return self._pieces(text, len(_LEVELS) - 1)[0]

    def pieces(self, text: str) -> list[str]:
        """The whole text, cut at the ends of sentences, else of clauses, words or characters.

        A piece is one sentence, because models learn from single sentences; or as many clauses or
        words of one as fit.
        """
        return self._pieces(text, 0)

    def _pieces(self, text: str, level: int) -> list[str]:
        if not self.is_long(text):
            return [text]
        if level == len(_LEVELS):
            middle = len(text) // 2
            if not middle:
                return [text]
            halves = text[:middle], text[middle:]
            return [piece for half in halves for piece in self._pieces(half, level)]
        # 1. The parts, and the tokens of each with the space before it.
        ends = [match.span() for match in _LEVELS[level].finditer(text)]
        starts = [0, *(end for _, end in ends)]
        stops = [*(start for start, _ in ends), len(text)]
        parts = [text[i:j] for i, j in zip(starts, stops, strict=True)]
        lengths = self._lengths(parts)
        spaces = [0, *(max(0, j - i - 1) for i, j in ends)]
        # 2. As many of them together as fit, but for sentences. What does not fit is cut further.
        groups, begun, tokens = [], 0, 0.0
        for i, length in enumerate(lengths):
            is_full = level == 0 or tokens + spaces[i] + length > self.limit
            if i > begun and is_full:
                groups.append(text[starts[begun] : stops[i - 1]].strip())
                begun, tokens = i, 0.0
            tokens += spaces[i] * (i > begun) + length
        groups.append(text[starts[begun] :].strip())
        return [piece for group in groups if group for piece in self._pieces(group, level + 1)]

    def _lengths(self, parts: Sequence[str]) -> list[float]:
        is_short = [not self._long_word.search(part) for part in parts]
        counts = iter(self._count([part for part, short in zip(parts, is_short) if short]))
        return [next(counts) if short else math.inf for short in is_short]


Progress = Callable[[int], None]


class LongLines:
    """Searches for sources that may be too long: in pieces, or of their beginning only.

    policy: one of POLICIES. limit: the most tokens of a piece. times: a source of up to this many
      times the limit stays whole. language: the target's, whose sentences are joined.
    """

    def __init__(self, policy: str, tokenizer: Tokenizer, limit: int, times: int, language: str):
        self.policy, self.limit, self._language = policy, limit, language
        self._cutter, self._longest = (Cutter.of(tokenizer, n) for n in (limit, times * limit))

    def is_long(self, source: str) -> bool:
        return self.policy != "whole" and self._longest.is_long(source)

    def pieces(self, source: str) -> list[str]:
        """The parts that are searched for; raises UserError for a source that is refused."""
        if not self.is_long(source):
            return [source]
        if self.policy == "refuse":
            raise UserError(f"a sentence is longer than {self.limit} tokens; shorten it")
        return [self._cutter.first(source)] if self.policy == "cut" else self._cutter.pieces(source)

    def search(
        self,
        find: Callable[..., list[list[Translation]]],
        requests: Sequence[Request],
        progress: Progress,
    ) -> list[list[Translation]]:
        """The n-best list of each request. find(requests, progress=...): the search of pieces.

        Only the first piece has the prefix.
        """
        pieces, parts, owner = [self.pieces(request.source) for request in requests], [], []
        for number, (request, sources) in enumerate(zip(requests, pieces, strict=True)):
            if len(sources) > 1 and request.constraints:
                raise UserError(
                    f"a sentence of more than {self.limit} tokens is translated in pieces, which "
                    "cannot share constraints; shorten it, or choose another long_lines"
                )
            prefixes = [request.prefix, *[""] * len(sources)]
            parts += [request._replace(source=x, prefix=y) for x, y in zip(sources, prefixes)]
            owner += [number] * len(sources)
        found = find(parts, progress=lambda done: progress(owner[done - 1] + 1 if done else 0))
        found = iter(found)
        results = []
        for request, sources in zip(requests, pieces, strict=True):
            answers = [next(found) for _ in sources]
            if len(answers) != 1:  # of a line of only spaces there may be none
                answers = [join(answers, sources, request.source, self._language)]
            results += answers
        return results


def join(
    pieces: Sequence[Sequence[Translation]], parts: Sequence[str], source: str, language: str
) -> list[Translation]:
    """The n-best list of a line from those of its pieces: the first of each, the second, and so on.

    pieces: a list of Translations for each piece; a list shorter than others repeats its last.
    parts: the pieces of the source. language: the target language's code, which decides what joins
    sentences.
    Scores and log-probabilities are sums over the pieces.
    """
    joined = []
    for rank in range(max(map(len, pieces), default=0)):
        chosen = [piece[min(rank, len(piece) - 1)] for piece in pieces if piece]
        joined.append(
            chosen[0]._replace(
                text=joint(language).join(x.text for x in chosen),
                score=sum(x.score for x in chosen),
                log_prob=sum(x.log_prob for x in chosen),
                tokens=[token for x in chosen for token in x.tokens],
                token_log_probs=[value for x in chosen for value in x.token_log_probs],
                alignment=_joined_alignment(chosen, parts, source, joint(language)),
            )
        )
    return joined


def _joined_alignment(
    chosen: Sequence[Translation], parts: Sequence[str], source: str, between: str
) -> list | None:
    if chosen[0].alignment is None:
        return None
    joined, place, target = [], 0, ""
    for translation, part in zip(chosen, parts, strict=True):
        place = source.index(part, place)
        target += between if target else ""
        before, after = (_whole_words(text) for text in (source[:place], target))
        joined += [(i + before, j + after) for i, j in translation.alignment]
        place += len(part)
        target += translation.text
    return joined


def _whole_words(text: str) -> int:
    """The number of words that have ended; text that follows without a space joins the last one."""
    return len(words_of(text)) - bool(text and text[-1] not in BLANKS)
