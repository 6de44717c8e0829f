"""Lines typed at a prompt."""

import contextlib
import sys
from collections.abc import Iterator

from transformer.system.errors import UserError
from transformer.system.terminal import is_terminal, say

_PROMPT = "> "


def typed_lines() -> Iterator[str | UserError | None]:
    """The lines of standard input, a terminal; None before each prompt."""
    with contextlib.suppress(ImportError):
        import readline  # makes `input` accept arrow keys and longer lines

        readline.parse_and_bind("tab: self-insert")  # tabs separate columns
    number = 0
    while True:
        yield None
        number += 1
        try:
            line = _ask()
            line.encode()  # some locales read invalid UTF-8 without an error
        except EOFError:  # Ctrl-D
            say("")
            return
        except UnicodeError:
            yield UserError(f"line {number} is not UTF-8; type it again")
        else:
            yield line


def _ask() -> str:
    if sys.stdout is not None and is_terminal(sys.stdout.fileno) and sys.stderr is not None:
        return input(_PROMPT)
    # `input` would write the prompt among the translations.
    if sys.stderr is not None:
        print(_PROMPT, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
