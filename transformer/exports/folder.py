"""Shared by the exports to other systems: all-or-nothing folders, and names of pieces."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from transformer.data.vocabulary import Tokenizer
from transformer.system.errors import UserError
from transformer.system.files import folder_allows, leftovers_of, remove_leftovers, temporary_beside


def check_is_new(folder: Path, flag: str = "output") -> None:
    """Raises UserError unless `folder`, that of a flag, is new and its parent can be written to."""
    if os.path.lexists(folder):
        raise UserError(f"--{flag}={folder} is there already; name a new folder")
    if not folder_allows(folder):
        raise UserError(f"--{flag}={folder} cannot be made; name a folder in another place")


@contextlib.contextmanager
def new_folder(folder: Path, flag: str = "output") -> Iterator[Path]:
    """Yields a temporary folder, renamed to `folder` when the body ends without error.

    Raises UserError if `folder` exists or cannot be written.
    """
    check_is_new(folder, flag)
    temporary = temporary_beside(folder.with_name(f".{folder.name}"), "export")
    remove_leftovers(leftovers_of(folder.with_name(f".{folder.name}")))
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(folder)
    except OSError as error:
        raise UserError(
            f"cannot write {folder}: {error.strerror}; make room for it, or name another place"
        ) from error
    except UserError as error:  # it names the temporary folder, which the user does not know
        raise UserError(str(error).replace(str(temporary), str(folder))) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def unique_pieces(tokenizer: Tokenizer) -> list[str]:
    """The pieces of a vocabulary, which other systems look up by name.

    Raises UserError if two pieces share a name.
    """
    seen = set()
    for piece in tokenizer.pieces:
        if piece in seen:
            raise UserError(
                f"the vocabulary holds {piece!r} twice, as text and as a special token; an export "
                "could not tell them apart"
            )
        seen.add(piece)
    return tokenizer.pieces
