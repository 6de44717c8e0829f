"""The commands of this project.

    python -m transformer COMMAND --flag=value ...

Each has a --help of its own; --version prints the version:

"""

import ast
import importlib
import sys
from pathlib import Path

if not __package__:  # run as a folder: python path/to/transformer COMMAND
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from transformer.system.commands import HELP, asks_for_help, called_as_installed, command, version
from transformer.system.errors import UserError
from transformer.system.startup import be_quiet_when_interrupted, stop_when_told, use_huge_pages

FIRST = ("train", "evaluate", "translate", "sweep")
FILES = sorted((Path(__file__).parent / "commands").glob("[!_]*.py"))
COMMANDS = {file.stem.replace("_", "-"): file for file in FILES}


def overview() -> str:
    """The first line of each command's docstring, by its name."""
    lines = [__doc__.replace("python -m ", "") if called_as_installed() else __doc__]
    for name in dict.fromkeys([*FIRST, *COMMANDS]):
        about = ast.get_docstring(ast.parse(COMMANDS[name].read_bytes()))
        lines.append(f"  {name:20}{about.partition(chr(10))[0]}\n")
    return "".join(lines)


def main(name: str | None = None) -> None:
    """Runs a command with the flags of this process; by default its first argument names it."""
    rest = sys.argv[1:]
    if name is None:
        name, *rest = rest or ["--help"]
    (stop_when_told if name in ("train", "sweep") else be_quiet_when_interrupted)()
    if not asks_for_help([name, *rest]):
        use_huge_pages()  # before JAX is imported
    from transformer.runs import cli

    with cli.one_line_errors():
        if name.lstrip("-") in HELP:
            print(overview(), end="", flush=True)
            return
        if name == "--version":
            print(version())
            return
        if name.replace("_", "-") not in COMMANDS:
            raise UserError(f"there is no command {name!r:.60}; see {command('--help')}")
    chosen = importlib.import_module(f"transformer.commands.{name.replace('-', '_')}")
    cli.run(chosen.main, getattr(chosen, "DEFAULT", None), [sys.argv[0], *rest])


if __name__ == "__main__":
    main()
