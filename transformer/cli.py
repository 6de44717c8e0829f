"""What the entry scripts share: flags, one-line errors, exit codes.

Exit codes: 0 done; 2 the user's input is wrong; any other is a defect of ours.
"""

import errno
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app, flags, logging

from transformer.errors import UserError
from transformer.experiment import check_field


def run(main: Callable[[], None], default_config: Path | None = None) -> None:
    """Parses the flags and runs `main`; a mistake of the user ends it with one line.

    A script with a --config flag, defined without a default, gives its default here:
    `config_flags` would read it while the flag is being defined, outside of our reach.
    """
    logging.set_verbosity(logging.WARNING)
    if default_config and not any(re.match("--?config(=|$)", arg) for arg in sys.argv):
        sys.argv.insert(1, f"--config={default_config}")

    def parse(argv: Sequence[str]) -> Sequence[str]:
        with _one_line_errors():
            for arg in argv[1:]:
                if override := re.match(r"--?(?:no)?config\.([^=]*)", arg):
                    check_field(override[1])
            try:
                rest = flags.FLAGS(list(argv))
            except flags.Error as error:
                raise UserError(f"{error}; see --help and configs/base.py") from error
            except Exception as error:  # the config file may raise whatever it likes
                raise UserError(
                    f"the config file cannot be used: {type(error).__name__}: {error}"
                ) from error
            if len(rest) > 1:
                raise UserError(f"unexpected argument {rest[1]!r}; options begin with --")
            return rest

    def guarded(argv: Sequence[str]) -> None:
        del argv
        with _one_line_errors():
            main()

    app.run(guarded, flags_parser=parse)


class _one_line_errors:  # noqa: N801, used as a context manager only
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, traceback) -> None:
        message = None
        if isinstance(error, UserError):
            message = str(error)
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"no space left on the device of {error.filename}; free some, then try again"
        elif isinstance(error, PermissionError):
            message = f"no permission to use {error.filename}; change it, or name another place"
        elif isinstance(error, BrokenPipeError):  # the reader of our output has gone
            sys.stderr.close()
            sys.exit(0)
        elif isinstance(error, KeyboardInterrupt):
            sys.exit(130)
        if message is not None:
            print(f"error: {' '.join(message.split())}", file=sys.stderr)
            sys.exit(2)
