"""The exception that a user's mistake raises, and config fields that are checked."""

import contextlib
import dataclasses
import math
import traceback
from collections.abc import Collection, Iterator
from typing import Any

# Whole numbers are below this, unless a check says otherwise: they size arrays or loops, and a
# larger one is a slip. What is only counted or compared may be any number of 32 bits.
SIZE, COUNT = 1_000_000, 2**31


class UserError(Exception):
    """The user's input is wrong.

    The message is one line that says what is wrong, where, and what to do. The entry scripts
    print it to standard error and exit with code 2.
    """


@contextlib.contextmanager
def code_of_the_user(name: str) -> Iterator[None]:
    """Turns all that a config file may raise, and that it may end the process, into a UserError.

    name: what the error calls it.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if type(error) is KeyboardInterrupt:
            raise
        # Of a ValueError, config_flags puts a whole traceback into another one, and absl that.
        while "Error whilst parsing config file" in (reason := _in_words(error)):
            error = error.__context__
        frame = traceback.extract_tb(error.__traceback__)[-1]
        line, file = frame.lineno, frame.filename
        if isinstance(error, SyntaxError):
            line, file = error.lineno, error.filename
        raise UserError(
            f"{name} cannot be used: {reason} (line {line} of {file}); mend that"
        ) from error


def _in_words(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def setting(
    *,
    may_change: bool = False,
    recorded: bool = True,
    architecture: bool = True,
    place: bool = False,
    default: Any = dataclasses.MISSING,
) -> Any:
    """A field of a config section that is not like most.

    may_change: a run may be continued with another value.
    recorded: the ledger of results keeps the value. It leaves out where files lie and how the
      work is spread over devices.
    default: of a field that is newer than some work directories.
    architecture: of a model section: two models that differ in it cannot share parameters.
    place: it is the path of files or folders: see system/paths.py and runs/trusted_paths.py.
    """
    flags = {"may_change": may_change, "recorded": recorded}
    flags |= {"architecture": architecture, "place": place}
    kw_only = default is not dataclasses.MISSING  # so that required fields may follow
    return dataclasses.field(default=default, kw_only=kw_only, metadata=flags)


def place() -> Any:
    """A field that says where data lie. They may move: what they hold is known by its hash."""
    return setting(may_change=True, recorded=False, place=True)


def check_range(config: Any, section: str, fields: str, low: float, below: float | None = None):
    """Raises UserError unless low <= config.field < below for each of the named fields.

    below: without one, SIZE for whole numbers, and any finite number for others.
    """
    types = {field.name: field.type for field in dataclasses.fields(config)}
    for field in fields.split():
        value, most = getattr(config, field), below
        if most is None:
            most = SIZE if types[field] in (int, int | None) else math.inf
        if not low <= value < most:
            allowed = f"at least {low} and below {most}"
            if not math.isfinite(value) and most == math.inf:
                allowed = "a finite number"
            elif below is None and value < low:
                allowed = f"at least {low}"
            raise UserError(f"{section}.{field} is {value}; it must be {allowed}")


def check_choice(config: Any, section: str, field: str, choices: Collection[Any]) -> None:
    """Raises UserError unless config.field is one of the choices."""
    value = getattr(config, field)
    if value not in choices:
        allowed = ", ".join(map(str, choices))
        raise UserError(f"{section}.{field} is {value!r:.60}; it must be one of: {allowed}")
