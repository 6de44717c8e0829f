"""The text of --help: how to use a command, and each of its flags, the most common first."""

import inspect
import re
import sys
import textwrap
from collections.abc import Iterable

from absl import flags

from transformer.runs import model_flags
from transformer.system.commands import NAME, called_as_installed

WIDTH = 96
COLUMN = 26  # where explanations begin


# Flags of several commands, which come last, below headings.
LATER = {
    "Instead of what the run's config says": (
        *("data_dir", "raw_dir", "test_file", "bleu_tokenizer"),
        *model_flags.DECODING_FLAGS,
    ),
    "A job of several processes (docs/jobs.md)": ("coordinator", "num_processes", "process_id"),
}


def text(module: str) -> str:
    """The docstring of a command's module, then its flags.

    Flags that choose a model come first, then the command's own in the order of its file, then the
    others.
    """
    by_module = flags.FLAGS.flags_by_module_dict()
    name = sys.argv[0] if module == "__main__" else module
    own = by_module.get(name, [])
    shared = by_module.get(model_flags.__name__, [])  # if the command has defined them
    adopted = flags.FLAGS.key_flags_by_module_dict().get(name, [])
    members = {flag.name: flag for flag in [*shared, *adopted, *own]}
    later = {name for names in LATER.values() for name in names}
    groups = {"Flags": [flag for name, flag in members.items() if name not in later]}
    for title, names in LATER.items():
        groups[title] = [members[name] for name in names if name in members]
    tables = [f"{title}:\n\n{_table(group)}" for title, group in groups.items() if group]
    about = "\n\n".join([inspect.cleandoc(sys.modules[module].__doc__ or ""), *tables])
    if called_as_installed():
        about = re.sub(rf"\bpython (-m {NAME} )?(?=\w)", f"{NAME} ", about)
        about = re.sub(r"\b(train|evaluate|translate|sweep)\.py\b", r"\1", about)
    return about


def _table(members: Iterable[flags.Flag]) -> str:
    lines = []
    for flag in members:
        indent = " " * COLUMN
        words = textwrap.wrap(
            _explained(flag), WIDTH, initial_indent=indent, subsequent_indent=indent
        )
        name = f"  {_name(flag)}"
        if len(name) < COLUMN - 1:
            words[0] = name.ljust(COLUMN) + words[0].lstrip()
        else:
            words.insert(0, name)
        lines += words
    return "\n".join(lines)


def _name(flag: flags.Flag) -> str:
    if flag.boolean:
        return f"--{flag.name}"
    kind = flag.parser
    if isinstance(kind, flags.EnumParser):
        return f"--{flag.name}={'|'.join(kind.enum_values)}"
    if isinstance(kind, flags.IntegerParser | flags.FloatParser):
        return f"--{flag.name}=N"
    return f"--{flag.name}={'A,B' if isinstance(kind, flags.ListParser) else '...'}"


def _explained(flag: flags.Flag) -> str:
    words, default = re.sub("^<.*?>: ", "", flag.help), flag.default
    if default in (None, False, "", []) or "efault" in words:
        return words
    shown = ",".join(default) if isinstance(default, list) else default
    return f"{words.removesuffix('.')} (default: {shown})."
