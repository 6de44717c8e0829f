"""What the config files say of each field: python train.py --config=configs/demo.py --fields.

A comment stands once, in the file that the docstring of the section's class names: configs/base.py
for most. It is the field's help here and the help of the flags of its name.
"""

import re
import runpy
import textwrap
from typing import Any, NamedTuple

from transformer.runs.provenance import ROOT
from transformer.runs.run_config import Config

BASE = "configs/base.py"
WIDTH = 96


class Field(NamedTuple):
    name: str  # such as model.d_model
    value: Any
    default: Any  # the value in `file`
    file: str  # which explains the field
    comment: str


def fields(config: Config) -> list[Field]:
    """Every field of a config, in the order of the files that explain them."""
    found = []
    for section, values in config.sections.items():
        file = explained_in(type(values))
        said, defaults = comments(file), _defaults(file)[section]
        for field, default in defaults.items():
            name = f"{section}.{field}"
            found.append(Field(name, getattr(values, field), default, file, said.get(name, "")))
    return found


def explained_in(section: type) -> str:
    """The config file that has all fields of a section's class, as its docstring says."""
    return re.search(r"configs/\w+\.py", section.__doc__)[0]


def comments(file: str) -> dict[str, str]:
    """What a config file says of each field, as decoding.beam_size, above it and beside it.

    Lines without a comment share the one above the first of them. What a file does not say, it
    leaves to configs/base.py.
    """
    found = {} if file == BASE else comments(BASE)
    above, is_used = [], False
    for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
        # config.model.dropout = 0.1, and model.dropout = 0.1 in a function for the section
        if match := re.fullmatch(
            r" *(?!config\.\w+ )(?:config\.)?(\w+\.\w+) = [^#]*(?:# (.*))?", line
        ):
            beside = [match[2]] if match[2] else []
            if words := " ".join(beside if is_used and beside else [*above, *beside]):
                found[match[1]] = words[:1].upper() + re.sub(r"(?<!\.)\.$", "", words[1:])
            is_used = True
        elif comment := re.fullmatch(r" *# (.*)", line):
            above = [comment[1]] if is_used else [*above, comment[1]]
            is_used = False
        else:
            above = []
    return found


def listing(config: Config) -> str:
    """For people: every field with its value, its default if that is another, and its comment."""
    lines, section = [], ""
    for field in fields(config):
        if field.name.partition(".")[0] != section:
            section = field.name.partition(".")[0]
            lines += ["", section]
        line = f"  --config.{field.name}={_shown(field.value)}"
        if field.value != field.default:
            line += f"   ({field.file}: {_shown(field.default)})"
        lines.append(line)
        indent = 6 * " "
        lines += textwrap.wrap(
            field.comment, WIDTH, initial_indent=indent, subsequent_indent=indent
        )
    return "\n".join(lines[1:])


def _defaults(file: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / file))["get_config"]().to_dict()


def _shown(value: Any) -> str:
    return "" if value is None else str(value)
