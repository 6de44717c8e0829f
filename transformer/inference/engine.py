"""Translation line by line: reads the available lines, translates and writes them in order."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax

from transformer.decoding.inputs import Request
from transformer.decoding.translation import Translation
from transformer.inference.formats import Answer, perplexity, score_line, translation_lines
from transformer.inference.output import Output
from transformer.system.errors import UserError
from transformer.system.terminal import say

# Lines are read, sorted by length and written in blocks: larger ones waste fewer positions, but a
# kill loses more. The block that a line is in changes the last digits of its score. So blocks
# depend only on the text, not on time, and are the same after a kill. A block ends at 128 lines,
# the next after 256 more, then 512 more, ...
LINES_AT_ONCE = 2000
_LINES_AT_FIRST = 128
_CHARACTERS_AT_ONCE = 1 << 18
# A CPU would take minutes for a full block, and gains little: with 512 lines, 5 % more positions
# than with 2000; a GPU would make three times the steps.
_CPU_LINES, _CPU_CHARACTERS = 512, 1 << 16


class Options(NamedTuple):
    """The options for each line; see the flags of translate.py."""

    format: str = "text"
    nbest: int = 1
    score: bool = False
    alignments: bool = False
    prefixes: bool = False
    constraints: bool = False
    long_lines: str = "split"
    skip_bad_lines: bool = False
    seed_by: str = "text"


class Item(NamedTuple):
    """A line of the input, split into its columns."""

    number: int
    source: str
    target: str | None = None
    prefix: str = ""
    constraints: tuple[str, ...] = ()


class Engine:
    """Translates or scores lines with a model (see model.py) and writes the results.

    name: the input's name in messages. progress: is called with the number of lines done.
    """

    def __init__(
        self,
        model: Any,
        options: Options,
        output: Output,
        name: str,
        progress: Callable[[int], None] = lambda done: None,
    ):
        self.model, self.options, self.output, self.name = model, options, output, name
        self.progress = progress
        self.pairs, self.tokens, self.log_prob = 0, 0, 0.0  # scored so far
        self._earlier = output.done.lines  # lines whose scores are not included
        self._most_lines, self._most_characters = LINES_AT_ONCE, _CHARACTERS_AT_ONCE
        if jax.default_backend() == "cpu":
            self._most_lines = min(LINES_AT_ONCE, _CPU_LINES)
            self._most_characters = min(_CHARACTERS_AT_ONCE, _CPU_CHARACTERS)
        self._check_options()

    def run(self, lines: Iterable[str | UserError | None]) -> None:
        """Processes all lines; None among them means that no more will come soon.

        A line that cannot be translated is passed over, or raises UserError once all before it have
        been written. Lines that the output has from an earlier start are only read.
        """
        lines = iter(lines)
        content = self._read_done(lines)
        number = self.output.done.lines
        for block in self._blocks(lines, number):
            texts, failure = [], None
            items = self._items(number, block)
            answers = iter(self._answers([item for item in items if isinstance(item, Item)]))
            for item, line in zip(items, block):
                answer = item if isinstance(item, UserError) else next(answers)
                if isinstance(answer, UserError):
                    if not self.options.skip_bad_lines:
                        failure = answer
                        break
                    say(f"warning: passed over: {answer}")
                number += 1
                texts.append(self._formatted(number, item, answer))
                _update(content, line)
            if texts:
                self.output.write("".join(texts), number, content.hexdigest())
                self.progress(number)
            if failure is not None:
                raise failure

    def warm_up(self) -> None:
        """Compiles the programs for lines of up to about 30 tokens."""
        for words in (24, 8):
            source = " ".join("abcdefghijklmnopqrstuvwx"[:words])
            self._of_model([Item(1, source, source if self.options.score else None)])

    def summary(self) -> str:
        """The total of the scores, for people to read."""
        which = f"after line {self._earlier} alone: " if self._earlier else ""
        return (
            f"{which}pairs: {self.pairs}, tokens: {self.tokens}, log-probability: "
            f"{self.log_prob:.2f}, perplexity: {perplexity(self.log_prob, self.tokens):.4g}"
        )

    def _read_done(self, lines: Iterator[str | UserError | None]) -> Any:
        """Reads the lines that are done; returns the running hash of the input."""
        content, done = hashlib.sha256(), self.output.done
        left = done.lines
        while left:
            line = next(lines, _END)
            if line is _END:
                break
            if line is not None:
                _update(content, line)
                left -= 1
        if done.lines and (left or content.hexdigest() != done.input_sha256):
            raise UserError(
                f"{self.output.name} is unfinished, and its {done.lines} lines were made from "
                f"other text than {self.name}; give the same input, or remove it to begin anew"
            )
        return content

    def _blocks(
        self, lines: Iterator[str | UserError | None], number: int
    ) -> Iterator[list[str | UserError]]:
        """The lines after line `number`, in blocks that are translated together."""
        block, characters = [], 0
        end = size = min(_LINES_AT_FIRST, self._most_lines)
        try:
            for line in lines:
                if line is not None:
                    block.append(line)
                    number += 1
                    characters += len(line) if isinstance(line, str) else 0
                while end < number:
                    size = min(2 * size, self._most_lines)
                    end += size
                is_full = number == end or characters >= self._most_characters
                if block and (line is None or is_full):
                    yield block
                    block, characters = [], 0
        except UserError:  # the rest of the file cannot be read
            if block:
                yield block
            raise
        if block:
            yield block

    def _items(self, number: int, block: list[str | UserError]) -> list[Item | UserError]:
        """Parses the lines after line `number`, up to the first that ends the work."""
        items = []
        for line in block:
            items.append(self._item(number + len(items) + 1, line))
            if isinstance(items[-1], UserError) and not self.options.skip_bad_lines:
                break
        return items

    def _item(self, number: int, line: str | UserError) -> Item | UserError:
        """A line split into its columns, or the error in it."""
        if isinstance(line, UserError):
            return line
        options, place = self.options, f"{self.name}, line {number}"
        if not line.strip():
            return Item(number, "")
        if options.score:
            if line.count("\t") != 1:
                return UserError(f"{place} is no pair; give the source, a tab and the target")
            item = Item(number, *_columns(line))
        elif options.prefixes or options.constraints:
            source, *columns = _columns(line)
            prefix = columns.pop(0) if options.prefixes and columns else ""
            if columns and not options.constraints:
                return UserError(f"{place} has more than one tab; give the source, a tab, a prefix")
            item = Item(number, source, None, prefix, tuple(filter(str.strip, columns)))
        else:
            item = Item(number, line)
        given = " ".join([item.prefix, *item.constraints, item.target or ""])
        source_limit, target_limit = self.model.limits
        if self.model.is_long(item.source):
            if options.score or options.long_lines == "refuse":
                return UserError(
                    f"{place} is longer than {source_limit} tokens; shorten it, or choose another "
                    "--long_lines or a larger --max_tokens"
                )
            what = "cut there" if options.long_lines == "cut" else "translated in pieces"
            say(f"warning: {place} is longer than {source_limit} tokens; it is {what}")
        if self.model.is_long_target(given):
            return UserError(
                f"{place} gives more than {target_limit} tokens of a translation; shorten them, or "
                "set a larger --max_tokens"
            )
        return item

    def _answers(self, items: list[Item]) -> Iterator[list[Translation] | UserError]:
        """A list of translations for each item, or its error.

        Items are translated together. If that fails, each half is tried, down to single lines.
        """
        try:
            answers = self._of_model(items) if items else []
        except UserError as error:
            if len(items) == 1:
                yield UserError(f"{self.name}, line {items[0].number}: {error}")
            else:
                middle = len(items) // 2
                yield from self._answers(items[:middle])
                yield from self._answers(items[middle:])
        else:
            yield from answers

    def _check_options(self) -> None:
        """Checks the options first, so that a general error is not blamed on the first line."""
        self._of_model([Item(0, "", constraints=("a",) if self.options.constraints else ())])

    def _of_model(self, items: list[Item]) -> list[list[Translation]]:
        options = self.options
        if options.score:
            pairs = [(item.source, item.target) for item in items if item.target is not None]
            scored = iter(self.model.score(pairs, alignments=options.alignments))
            return [[] if item.target is None else [next(scored)] for item in items]
        has_number = options.seed_by == "line"
        requests = [
            Request(x.source, x.prefix, x.constraints, x.number if has_number else None)
            for x in items
        ]
        return self.model.find(requests, nbest=options.nbest, alignments=options.alignments)

    def _formatted(self, number: int, item: Item | UserError, answer: list | UserError) -> str:
        source, options = "" if isinstance(item, UserError) else item.source, self.options
        is_passed = isinstance(answer, UserError)
        line = Answer(number, source, *([], str(answer)) if is_passed else (answer,))
        if not options.score:
            return translation_lines(line, options.format, options.nbest, options.alignments)
        for scored in line.found:
            self.pairs += 1
            self.tokens += len(scored.token_log_probs)
            self.log_prob += scored.log_prob
        return score_line(line, options.format, options.alignments)


_END = object()


def _columns(line: str) -> list[str]:
    # `paste` on files with Windows line ends leaves a carriage return before the tab.
    return [column.removesuffix("\r") for column in line.split("\t")]


def _update(content: Any, line: str | UserError) -> None:
    # A line that is not text is hashed as an invalid byte, not by its message, which names the
    # input as it was given.
    text = b"\xff" if isinstance(line, UserError) else line.encode(errors="surrogatepass")
    content.update(text + b"\n")
