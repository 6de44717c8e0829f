"""Config fields that have another name than in earlier commits."""

from collections.abc import Mapping
from typing import Any

FIELDS = {
    **{f"data.{split}_text": f"data.{split}_file" for split in ("train", "validation", "test")},
    **{f"data.extra_{side}": f"data.corpora.extra.{side}" for side in ("source", "target")},
    **{f"data.{side}_column": f"data.{side}_field" for side in ("text", "second", "label")},
}


def with_new_names(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded values by names such as data.train_file; all others stay as they are."""
    found = {}
    for name, value in recorded.items():
        if name.endswith("_column") and not recorded.get("data.has_header"):
            # Columns without names were numbered from 0 on.
            value = str(int(value) + 1) if str(value).isdecimal() else value
        found[FIELDS.get(name, name)] = value
    return found


def data_section(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The data section of a work directory's config, with new names."""
    found: dict[str, Any] = {}
    for name, value in with_new_names({f"data.{x}": y for x, y in recorded.items()}).items():
        _, *parts, field = name.split(".")
        if value is not None or not parts:  # a corpus without files is none
            part = found
            for inner in parts:
                part = part.setdefault(inner, {})
            part[field] = value
    return found


def renew(run: dict[str, Any], *parts: str) -> None:
    """Gives new names to the recorded fields of a run, and of those that it began with.

    parts: which records. The commands of a result, made of its overrides, are for its own commit.
    """
    for part in parts:
        if part in run:
            run[part] = with_new_names(run[part])
    if origin := run.get("init_from"):
        renew(origin, *parts)
