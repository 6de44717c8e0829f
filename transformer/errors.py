"""The one exception that a user's mistake raises."""


class UserError(Exception):
    """The user's input is wrong.

    The message is one line that says what is wrong, where, and what to do. The
    entry scripts print it to standard error and exit with code 2.
    """
