"""The comments of the config files on each field: `train --help-config`.

Each comment stands once, in the file that the docstring of the section's class names:
configs/base.py for most. It is the field's help here and the help of the flags of its name.
"""

import dataclasses
import re
import runpy
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer import configs

BASE = "configs/base.py"
WIDTH = 96


class Field(NamedTuple):
    name: str  # e.g. model.d_model
    value: Any
    default: Any  # the value in `file`
    file: str  # the config file that explains the field
    comment: str


def sections_of(given: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a config file, as Config has them.

    If overrides choose another task or family than the file's, sections that do not fit take the
    values of the file that explains them.
    """
    from transformer.runs.run_config import Config, checked_section, section_types

    if not overrides.keys() & {"task.name", "model.family"}:
        return Config.from_dict(given).sections
    found = {}
    for name, section in section_types(given["task"]["name"], given["model"]["family"]).items():
        known, values = {field.name for field in dataclasses.fields(section)}, None
        if name in given and given[name].keys() == known:
            values = given[name]
        else:
            own = {
                field: overrides[f"{name}.{field}"]
                for field in known
                if f"{name}.{field}" in overrides
            }
            values = _defaults(explained_in(section))[name] | own
        found[name] = checked_section(name, section, values)
    return found


def fields(sections: Mapping[str, Any]) -> list[Field]:
    """Every field of a config's sections, in the order of the files that explain them."""
    found = []
    for section, values in sections.items():
        file = explained_in(type(values))
        said, defaults = comments(file), _defaults(file)[section]
        for field, default in defaults.items():
            name = f"{section}.{field}"
            found.append(Field(name, getattr(values, field), default, file, said.get(name, "")))
    return found


def explained_in(section: type) -> str:
    """The config file with all fields of a section's class, as named by the class docstring."""
    return re.search(r"configs/\w+\.py", section.__doc__)[0]


def comments(file: str) -> dict[str, str]:
    """The comments above and beside each field in a config file, e.g. of decoding.beam_size.

    They begin with a capital, unless with a value. Lines without a comment share the one above the
    first of them. Fields that a file does not explain are explained in configs/base.py.
    """
    found = {} if file == BASE else comments(BASE)
    above, is_used = [], False
    content = (configs.FOLDER.parent / file).read_text(encoding="utf-8")
    values = set(re.findall(r' = "([\w-]+)"', content))
    for line in content.splitlines():
        # matches config.model.dropout = 0.1, and model.dropout = 0.1 in a function for the section
        if match := re.fullmatch(
            r" *(?!config\.\w+ )(?:config\.)?(\w+\.\w+) = [^#]*(?:# (.*))?", line
        ):
            beside = [match[2]] if match[2] else []
            if words := " ".join(beside if is_used and beside else [*above, *beside]):
                begin = re.match(r"([\w-]*)(:?)", words)
                if not begin[2] and begin[1] not in values:  # a value is typed as it stands
                    words = words[:1].upper() + words[1:]
                found[match[1]] = re.sub(r"(?<!\.)\.$", "", words)
            is_used = True
        elif comment := re.fullmatch(r" *# (.*)", line):
            above = [comment[1]] if is_used else [*above, comment[1]]
            is_used = False
        else:
            above = []
    return found


def listing(sections: Mapping[str, Any]) -> str:
    """Every field for people to read: value, default if it differs, and comment."""
    lines, section = [], ""
    for field in fields(sections):
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
    return runpy.run_path(str(configs.FOLDER.parent / file))["get_config"]().to_dict()


def _shown(value: Any) -> str:
    if isinstance(value, dict):  # of data.corpora, whose parts have fields, or of plain values
        value = {
            name: {k: v for k, v in vars(part).items() if v is not None}
            if dataclasses.is_dataclass(part)
            else part
            for name, part in value.items()
        }
    return "" if value in (None, {}) else str(value)
