"""Output for people while a program runs: messages on standard error, text in a terminal."""

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from absl import logging
from tqdm import tqdm

_OF_KNOWN = "{n_fmt}B of {total_fmt}B downloaded, {rate_fmt}, {remaining} left"
_OF_UNKNOWN = "{n_fmt}B downloaded, {rate_fmt}"
# Control characters; line and paragraph separators; marks that turn the direction of writing, which
# can make a terminal show something other than the text. Joiners stay, as many scripts need them.
_HARMFUL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


_shown_as: dict[str, str] = {}


def show_as(path: str, name: str) -> None:
    """From now on text for people has `name` for a path: that of a local copy."""
    _shown_as[path] = name


def named(text: str) -> str:
    """The text as people are to see it: see `show_as`."""
    for path, name in _shown_as.items():
        text = text.replace(path, name)
    return text


def printable(text: str) -> str:
    """A stranger's text, safe to show in a terminal: control characters are written as \\x1b."""
    text = named(text)
    return _HARMFUL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def say(message: str) -> None:
    """Prints lines on standard error; nothing if that is closed, full or has no reader."""
    if sys.stderr is not None:  # None: closed; print would use standard output instead
        with contextlib.suppress(OSError):
            lines = map(printable, message.split("\n"))
            print(*lines, sep="\n", file=sys.stderr, flush=True)


@contextlib.contextmanager
def verbosity(level: int) -> Iterator[None]:
    """Logs only lines from this level (of absl) on, while the `with` block lasts."""
    before = logging.get_verbosity()
    logging.set_verbosity(level)
    try:
        yield
    finally:
        logging.set_verbosity(before)


class _Wrapped:
    """An open text file; subclasses change a method."""

    def __init__(self, file: TextIO):
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Shown(_Wrapped):
    """A file for people to read: see `named`; in a terminal text is escaped, except line feeds."""

    def write(self, text: str) -> int:
        show = printable if is_terminal(self._file.fileno) else named
        return self._file.write("\n".join(map(show, text.split("\n"))))


class _Dispensable(_Wrapped):
    """A file that may be full or without a reader; then nothing is written."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError:  # buffered text would be tried again, and at the end of the process
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())


def go_on_without_readers() -> None:
    """From now on work continues when nobody reads standard output, or its disk is full."""
    if sys.stdout is not None:
        sys.stdout = _Dispensable(sys.stdout)


def escape_standard_output() -> None:
    """From now on `print` is harmless in a terminal: files and models may be a stranger's.

    It also does not fail for a name that cannot be encoded, such as that of a file.
    """
    with contextlib.suppress(AttributeError):  # closed, or not a file
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stdout is not None:
        sys.stdout = _Shown(sys.stdout)


@contextlib.contextmanager
def signs_of_life(
    work: str, how_far: Callable[[], str] = lambda: "", *, seconds: float = 30.0
) -> Iterator[None]:
    """Says every half minute that work without output continues.

    how_far: describes the progress; called in another thread.
    """
    start, ended = time.monotonic(), threading.Event()

    def speak() -> None:
        while not ended.wait(seconds):
            so_far = [f"{time.monotonic() - start:.0f} s"]
            with contextlib.suppress(Exception):  # the work continues, even if `how_far` fails
                so_far += filter(None, [how_far()])
            say(f"{work}: {', '.join(so_far)}")

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        ended.set()
        speaker.join()


def transfer_in_words(done: int, total: int, start: float) -> str:
    """Text such as "12.0MB of 346MB downloaded, 1.2MB/s, 04:38 left"; "" at first."""
    if not done:
        return ""
    shape = _OF_KNOWN if done <= total else _OF_UNKNOWN
    elapsed = time.monotonic() - start
    return tqdm.format_meter(done, total, elapsed, unit="B", unit_scale=True, bar_format=shape)


def columns(stream: TextIO | None) -> int:
    """The width of a terminal; 0 for other streams.

    Job systems and containers hand out terminals of size 0, in which nothing can be drawn.
    """
    try:
        size = os.get_terminal_size(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return 0
    return size.columns if size.lines else 0


def is_terminal(descriptor: Callable[[], int]) -> bool:
    """True if a file, given as its `fileno`, is a terminal."""
    try:
        return os.isatty(descriptor())
    except (OSError, ValueError):
        return False
