"""The exception that a user's mistake raises, and checks of config fields that raise it."""

import math
from collections.abc import Collection
from typing import Any


class UserError(Exception):
    """The user's input is wrong.

    The message is one line that says what is wrong, where, and what to do. The entry scripts
    print it to standard error and exit with code 2.
    """


def check_range(config: Any, section: str, fields: str, low: float, below: float = math.inf):
    """Raises UserError unless low <= config.field < below for each of the named fields."""
    for field in fields.split():
        value = getattr(config, field)
        if not low <= value < below:
            allowed = f"in [{low}, {below})"
            if below == math.inf:
                allowed = f"at least {low}" if math.isfinite(value) else "a finite number"
            raise UserError(f"{section}.{field} is {value}; it must be {allowed}")


def check_choice(config: Any, section: str, field: str, choices: Collection[str]) -> None:
    """Raises UserError unless config.field is one of the choices."""
    value = getattr(config, field)
    if value not in choices:
        allowed = ", ".join(choices)
        raise UserError(f"{section}.{field} is {value!r}; it must be one of: {allowed}")
