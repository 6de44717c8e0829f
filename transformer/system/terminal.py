"""What people read while a program runs: messages on standard error, text in a terminal."""

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator

# Controls; line and paragraph separators; marks that turn the direction of writing, which can make
# a terminal show something else than what is there. Joiners, which many scripts need, stay.
_HARMFUL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text of others, safe to show in a terminal: control characters are written as \\x1b."""
    return _HARMFUL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def say(message: str) -> None:
    """Prints lines on standard error; nothing where that is closed, full or without reader."""
    if sys.stderr is not None:  # closed; print would take standard output instead
        with contextlib.suppress(OSError):
            lines = map(printable, message.split("\n"))
            print(*lines, sep="\n", file=sys.stderr, flush=True)


@contextlib.contextmanager
def signs_of_life(
    work: str, how_far: Callable[[], str] = lambda: "", *, seconds: float = 30.0
) -> Iterator[None]:
    """Says every half minute that work which prints nothing goes on.

    how_far: called in another thread.
    """
    start, ended = time.monotonic(), threading.Event()

    def speak() -> None:
        while not ended.wait(seconds):
            so_far = [f"{time.monotonic() - start:.0f} s", *filter(None, [how_far()])]
            say(f"{work}: {', '.join(so_far)}")

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        ended.set()
        speaker.join()


def is_terminal(descriptor: Callable[[], int]) -> bool:
    """Whether a file, given as its `fileno`, is a terminal."""
    try:
        return os.isatty(descriptor())
    except (OSError, ValueError):
        return False
