"""The exception for a user's mistake, and checks of config fields."""

import contextlib
import dataclasses
import difflib
import math
import traceback
from collections.abc import Collection, Iterator
from typing import Any

# Whole numbers are below SIZE, unless a check says otherwise: they size arrays or loops, and a
# larger one is a slip. Numbers that are only counted or compared may be any int32: below COUNT.
SIZE, COUNT = 1_000_000, 2**31
MOST = 20  # names in a message


class UserError(Exception):
    """The user's input is wrong.

    The message is one line that says what is wrong, where, and what to do. The entry scripts
    print it to standard error and exit with code 2.
    """


@contextlib.contextmanager
def code_of_the_user(name: str) -> Iterator[None]:
    """Turns anything that a config file raises, SystemExit included, into a UserError.

    name: the name of the file in the error.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if type(error) is KeyboardInterrupt:
            raise
        # config_flags wraps the traceback of a ValueError in another one, and absl wraps that.
        while error.__context__ and "Error whilst parsing config file" in _in_words(error):
            error = error.__context__
        reason = _in_words(error)
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
    recorded: the ledger of results keeps the value. It leaves out the paths of files and the
      spread of the work over devices.
    default: for a field that is newer than some work directories.
    architecture: for a model section: two models that differ in it cannot share parameters.
    place: the value is a path of files or folders: see system/paths.py and runs/trusted_paths.py.
    """
    flags = {"may_change": may_change, "recorded": recorded}
    flags |= {"architecture": architecture, "place": place}
    kw_only = default is not dataclasses.MISSING  # so that required fields may follow
    return dataclasses.field(default=default, kw_only=kw_only, metadata=flags)


def place(default: Any = dataclasses.MISSING) -> Any:
    """A field with the path of data. They may move: a hash identifies their content."""
    return setting(may_change=True, recorded=False, place=True, default=default)


def check_range(config: Any, section: str, fields: str, low: float, below: float | None = None):
    """Raises UserError unless low <= config.field < below for each of the named fields.

    below: by default SIZE for whole numbers; others may then be any finite number.
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


def nearest(
    name: str, known: Collection[str], prefix: str = "", otherwise: str | None = None
) -> str:
    """The end of a message about an unknown name.

    prefix: shown before the nearest name. otherwise: said if none is near, instead of the first of
      those that there are.
    """
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {prefix + close[0]!r}?"
    if otherwise is not None:
        return otherwise
    return f"choose one of {', '.join([*known][:MOST])}{', ...' if len(known) > MOST else ''}"
