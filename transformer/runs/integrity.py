"""Hashes of files and arrays, to check that neither has changed."""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.system.reading import (
    MISSING,
    MOST_JSON,
    checked,
    parse_json,
    read_plain,
)
from transformer.training.step import TrainState

INVENTORY = "files.json"


class Inventory(TypedDict):
    """files: the hashes that each may have, by name. absent: files that did not exist."""

    files: dict[str, list[Any]]
    absent: NotRequired[list[str]]


def digest(tree: Any) -> str:
    """A hash of the bits of every array, independent of sharding; computed on the devices."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    # One at a time: concurrent sums over virtual CPU devices can wait for each other.
    sums = [np.asarray(_sums(leaf)) for _, leaf in leaves]
    return _sha256(
        [(jax.tree_util.keystr(path), *map(int, s)) for (path, _), s in zip(leaves, sums)]
    )


def compile_digest(state: TrainState) -> None:
    """Compiles the digest programs for a state's parts, so that saving compiles nothing."""
    for part in (state.params, state.opt_state, state.extra, state.ema):
        digest(part)


@jax.jit  # a small program for each shape, shared by parameters and their moments
def _sums(x: jax.Array) -> jax.Array:
    """Two sums of an array's bits, uint32 [2], with a different odd factor for each element.

    Integers add up to the same in any order, so the result does not depend on the sharding. Since
    an odd factor has an inverse, no single altered element goes unnoticed.
    """
    words = jax.lax.bitcast_convert_type(x, f"uint{8 * min(x.dtype.itemsize, 4)}")
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(words.shape):
        place = place * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    mixed = (place ^ (place >> 15)) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE35)
    words = words.astype(jnp.uint32)
    factors = mixed | 1, (mixed ^ (mixed >> 16)) * np.uint32(0x9E3779B1) | 1
    return jnp.stack([jnp.sum(words * f, dtype=jnp.uint32) for f in factors])


def seal(workdir: Path, names: Collection[str]) -> None:
    """Records the hashes of files that belong to all checkpoints, and which of them are absent."""
    found = [name for name in names if (workdir / name).exists()]
    hashes = {name: [_hash_of(workdir, name)] for name in found}
    absent = [name for name in names if name not in found]
    _write_signed(workdir / INVENTORY, {"files": hashes, "absent": absent})


def allow(workdir: Path, name: str, content: str) -> None:
    """Records in a sealed directory the content that a file is about to get.

    A process that is killed while it writes the file leaves either the old or the new content.
    """
    if sealed := read_signed(workdir / INVENTORY, workdir, Inventory):
        found = sealed["files"].setdefault(name, [])
        found.append(hashlib.sha256(content.encode()).hexdigest())
        _write_signed(workdir / INVENTORY, sealed)


def check_seal(workdir: Path) -> None:
    """Raises UserError if a file has changed since `seal`; older directories have no seal."""
    path = workdir / INVENTORY
    if not path.exists():
        return
    sealed = read_signed(path, workdir, Inventory)
    if sealed is None:
        raise UserError(
            f"{path} is damaged; it has the hashes of the config and the tokenizers. If you trust "
            "these, remove it"
        )
    for name, expected in sealed["files"].items():
        try:
            is_as_it_was = _hash_of(workdir, name) in expected
        except MISSING as error:
            raise UserError(f"{workdir / name} is missing; restore it") from error
        if not is_as_it_was:
            raise UserError(
                f"{workdir / name} has changed since training wrote it; restore it, or, if you "
                f"changed it on purpose, remove {path}"
            )
    for name in sealed.get("absent", ()):
        if os.path.lexists(workdir / name):
            raise UserError(
                f"{workdir / name} was not there when training wrote the files beside it; remove "
                f"it, or, if you put it there on purpose, remove {path}"
            )


def _hash_of(workdir: Path, name: str) -> str:
    return hashlib.sha256(read_plain(workdir / name, workdir)).hexdigest()


def signed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object with a hash of itself: against accidents, not attacks."""
    return {**value, "sha256": _sha256(dict(value))}


def read_signed(path: Path, inside: Path, kind: Any = dict[str, Any]) -> Any:
    """The JSON object in a file written by `signed`; None if it is missing or altered.

    kind: its type; see `parse_json`. Raises OSError for a file that cannot be read, and UserError
    for one that is not inside the folder `inside`.
    """
    try:
        value = parse_json(read_plain(path, inside, MOST_JSON), dict[str, Any])
        return checked(value, kind) if value.pop("sha256", None) == _sha256(value) else None
    except (*MISSING, IsADirectoryError, ValueError):
        return None


def _write_signed(path: Path, value: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(signed(value), indent=0))


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
