"""Shared by the commands: flags, one-line errors, exit codes.

Exit codes: 0 done; 1 evaluate --verify found that scores disagree; 2 the user's input is wrong;
75 told to stop, and saved: the same command continues from there (train). Any other code is a
bug of ours. JAX is imported only after --help is answered.
"""

import ast
import contextlib
import errno
import logging as python_logging
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from transformer import configs
from transformer.runs import help
from transformer.system import buckets
from transformer.system.commands import asks_for_help, command
from transformer.system.errors import UserError, code_of_the_user
from transformer.system.paths import checked, local, looked_up
from transformer.system.startup import fill_closed_streams, listen_to_interrupts
from transformer.system.terminal import escape_standard_output, printable, say

OWN_CONFIG = Path(__file__).with_name("resume_config.py")
# Flags that choose the config, which is read while the others are parsed.
CHOOSING = r"--?(workdir|config|config\.(task\.name|model\.family|training\.init_from))"


def run(
    main: Callable[[], None], default_config: Path | str | None = None, argv: Sequence[str] = ()
) -> None:
    """Parses the flags and runs `main`; a user's mistake ends it with a one-line error.

    argv: the process's name and its flags; by default those of the process. A command that
      defines --config without a default gives the default here: `config_flags` would read the file
      while defining the flag, where we cannot catch errors. A --workdir that holds a run brings its
      own config; otherwise the run of training.init_from does.
    """
    argv = _joined(argv or sys.argv)
    fill_closed_streams()
    logging.set_verbosity(logging.WARNING)
    logging.get_absl_handler().setFormatter(_Formatter("warning: %(message)s"))
    escape_standard_output()
    # Libraries warn of things our users cannot change: Pillow of metadata, NumPy of old files.
    # Python's -W or PYTHONWARNINGS shows these warnings.
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    # Errors in Orbax's threads are logged with tracebacks and raised again where we save; its
    # warnings are about how we use it.
    logging.get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
    # Orbax's threads leave these behind when a save has failed.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    python_logging.getLogger("asyncio").setLevel(python_logging.CRITICAL)
    show = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: (
        None if "Event loop is closed" in str(unraisable.exc_value) else show(unraisable)
    )
    threading.excepthook = _say_that_a_thread_failed
    register_parsers()
    choice = [arg for arg in argv[1:] if re.match(f"{CHOOSING}=", arg)]

    def parse(argv: Sequence[str]) -> Sequence[str]:
        with one_line_errors():
            if asks_for_help(argv):
                print(help.text(main.__module__))
                sys.stdout.flush()  # a closed reader shows here
                sys.exit(0)
            from transformer.runs.run_config import type_of_field

            if default_config and not _values(argv, "config"):
                run_with_it = _run_whose_config_counts(argv)
                config = f"{OWN_CONFIG}:{run_with_it}" if run_with_it else default_config
                argv = [argv[0], f"--config={config}", *argv[1:]]
            given = [re.match(r"--?(?:no)?config\.([^=]*)", arg) for arg in argv[1:]]
            overrides = [override[1] for override in given if override]
            for value in _values(argv, "config"):  # it is read while the flags are parsed
                named = checked(value, "--config", in_buckets=False)
                path = Path(configs.find(named).partition(":")[0])
                if not path.is_file():
                    raise UserError(
                        f"there is no config file {path if value else repr(value)}"
                        f"{looked_up(path)}; name one, or a preset such as base"
                    )
            types = {override: type_of_field(override, choice) for override in overrides}
            with code_of_the_user("the config file"):
                try:
                    rest = flags.FLAGS([_found(_whole(arg, types)) for arg in argv])
                except flags.Error as error:
                    if "Error whilst parsing config file" in str(error):
                        raise
                    raise UserError(f"{error}; see --help and configs/base.py") from error
                except (KeyError, AttributeError) as error:
                    field = str(error).strip("'\"")
                    asked = [x for x in overrides if field in x.split(".")[1:]]
                    if not asked:
                        raise
                    if asked[0].startswith("data.corpora."):
                        raise UserError(
                            f"the config file does not set {asked[0]}; set it there, or give all "
                            "of --config.data.corpora=\"{'x': {'file': 'x.tsv', 'weight': 2}}\""
                        ) from error
                    listing = command("train", *choice, "--help-config")
                    raise UserError(
                        f"the config file has no field {field}, which another model.family or "
                        "task.name has; leave it out, or give another --config: "
                        f"{listing} lists the fields"
                    ) from error
            if len(rest) > 1:
                raise UserError(f"unexpected argument {rest[1]!r}; options begin with --")
            return rest

    def guarded(argv: Sequence[str]) -> None:
        del argv
        from transformer.system import distributed
        from transformer.system.compilation import CompilationWarning, use_cache

        warnings.simplefilter("always", CompilationWarning)
        try:
            with one_line_errors():
                listen_to_interrupts()
                use_cache()
                main()
                if not distributed.has_joined() or distributed.is_first():
                    buckets.push()
                distributed.leave()
        except Exception:
            if not distributed.has_joined():
                raise
            distributed.end(1, traceback.format_exc())

    app.run(guarded, argv, flags_parser=parse)


def register_parsers() -> None:
    """Makes config_flags parse the flags of fields that may be None."""
    for kind, parser in {
        str: flags.ArgumentParser(),
        int: flags.IntegerParser(),
        float: flags.FloatParser(),
        dict: _Dict(),
    }.items():
        config_flags.register_flag_parser_for_type(kind, _OrNone(parser))


def config_of(flag: flags.FlagHolder) -> dict[str, Any]:
    """The sections of the file that --config names; raises UserError if there are none."""
    path = Path(config_flags.get_config_filename(flags.FLAGS[flag.name]).partition(":")[0])
    with code_of_the_user("the config file"):
        if (kept := getattr(flag.value, "_error", None)) is not None:  # an OSError, kept there
            raise kept
        if not isinstance(flag.value, ConfigDict):
            raise UserError(f"get_config of {path} returns no ConfigDict; see configs/base.py")
        return flag.value.to_dict()


class _OrNone(flags.ArgumentParser):
    """Parses a field's flag; None unsets the field."""

    def __init__(self, parser: flags.ArgumentParser):
        self._parser = parser
        self.syntactic_help = parser.syntactic_help

    def parse(self, argument: Any) -> Any:
        return None if argument == "None" else self._parser.parse(argument)

    def flag_type(self) -> str:
        return self._parser.flag_type()


class _Dict(flags.ArgumentParser):
    """Parses a field's dict, as Python writes it."""

    def parse(self, argument: Any) -> dict[str, Any]:
        with contextlib.suppress(SyntaxError, ValueError):
            argument = ast.literal_eval(argument)
        if not isinstance(argument, dict):
            raise ValueError("it must be a dict, such as {'b1': 0.95, 'weight_decay': 0.1}")
        return argument


def _say_that_a_thread_failed(failed: threading.ExceptHookArgs) -> None:
    """Reports the error of a helper thread in one line; Python would print a traceback."""
    if not isinstance(failed.exc_value, SystemExit):
        error = " ".join(f"{failed.exc_type.__name__}: {failed.exc_value}".split())
        say(f"warning: a helper thread has ended ({error}); the work goes on"[:400])


class _Formatter(python_logging.Formatter):
    """Formats a record as one line, even if texts and file names in it have line breaks."""

    def format(self, record: python_logging.LogRecord) -> str:
        return printable(super().format(record))


def _whole(arg: str, types: Mapping[str, Any]) -> str:
    """Turns 1e5 into 100000 where a field is a whole number."""
    match = re.fullmatch(r"(--?config\.([^=]*)=)(\d+(?:\.\d+)?e\+?\d+)", arg, re.I)
    if not match or types[match[2]] not in (int, int | None) or float(match[3]) % 1:
        return arg
    return f"{match[1]}{float(match[3]):.0f}"


def _joined(argv: Sequence[str]) -> list[str]:
    """The arguments, with --config=NAME for --config NAME, and so with all CHOOSING flags."""
    joined, rest = [], list(argv)
    while rest:
        arg = rest.pop(0)
        joined.append(f"{arg}={rest.pop(0)}" if rest and re.fullmatch(CHOOSING, arg) else arg)
    return joined


def _found(arg: str) -> str:
    """The argument, with the path of the config file for a preset's name."""
    flag, _, name = arg.partition("=")
    return f"{flag}={configs.find(name)}" if flag.lstrip("-") == "config" and name else arg


def _run_whose_config_counts(argv: Sequence[str]) -> str | None:
    from transformer.runs.run_config import is_run

    for flag, what in (("workdir", "--workdir"), ("config.training.init_from",) * 2):
        found = _values(argv, flag)
        if found and is_run(folder := Path(local(found[-1], what))):
            return str(folder)
    return None


def _values(argv: Sequence[str], flag: str) -> list[str]:
    """The values that a command gives for a flag, before parsing."""
    named = re.compile(rf"--?{re.escape(flag)}=")
    return [arg.partition("=")[2] for arg in argv if named.match(arg)]


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns errors that a user can fix into one line and exit code 2, in all processes."""
    try:
        yield
    except UserError as error:
        message = str(error)
    except BrokenPipeError:  # the reader of our output has closed it
        if sys.stdout is not None:  # so that Python's last flush succeeds
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _end(0)
    except KeyboardInterrupt:
        _end(130)
    except OSError as error:  # the disk is full, a folder is a file, permission is denied, ...
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        place = error.filename or "a file"
        if isinstance(error, FileNotFoundError) and isinstance(place, str):
            place += looked_up(place)
        message = f"cannot use {place}: {error.strerror}; mend that, or name another place"
    except MemoryError as error:
        message = (
            "out of memory; lower training.tokens_per_update, data.max_source_length or "
            f"data.max_target_length ({error})"
        )[:400]
    except RuntimeError as error:  # JAX's
        if not re.search("RESOURCE_EXHAUSTED|Out of memory", str(error)):
            raise
        message = (
            "out of memory on the device; lower training.max_tokens_per_device, or for "
            f"translation the beam size or the length of the longest sentence ({error})"
        )[:400]
    else:
        return
    _end(2, f"error: {' '.join(message.split())}")


def _end(code: int, message: str = "") -> None:
    from transformer.system import distributed

    distributed.end(code, message)
