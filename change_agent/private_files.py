"""Folders and files that may contain row data, created with the modes 0700 and 0600: no umask opens them to others.

The agent and its commands create all their files here. An existing file or folder keeps its mode, because an operator
may have given others access to it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal

__all__ = [
    "PRIVATE_FILE",
    "give_to_owner_of",
    "make_private_folder",
    "narrow",
    "open_private",
    "replace_private",
    "sync_directory",
    "write_private_text",
]

PRIVATE_FILE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700
_FLAGS: Final = {
    "wb": os.O_CREAT | os.O_TRUNC,
    "xb": os.O_CREAT | os.O_EXCL,
    "ab": os.O_CREAT | os.O_APPEND,
}


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents. Their names survive a power loss when this returns. Raises OSError."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(made):
        each.mkdir(_PRIVATE_FOLDER, exist_ok=True)
        with suppress(PermissionError):  # a folder in which this user may create names, but not read them
            sync_directory(each.parent)
    folder.mkdir(_PRIVATE_FOLDER, exist_ok=True)


def open_private(path: Path, mode: Literal["wb", "xb", "ab"]) -> BinaryIO:
    """Open a file for writing, as :func:`open` does. Raises OSError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CLOEXEC | _FLAGS[mode], PRIVATE_FILE), mode)


def write_private_text(path: Path, text: str, *, is_durable: bool = False) -> None:
    """Overwrite the content of a file, in place. `is_durable`: see `replace_private`. Raises OSError."""
    _write(path, text.encode(), is_durable=is_durable)


def replace_private(path: Path, content: bytes, *, is_durable: bool = False) -> None:
    """Replace a file atomically: another process reads the whole old content or the whole new one. Raises OSError.

    `is_durable`: the content is on the disk when this returns. It survives a power loss once `sync_directory` has made
    the new name durable, too.
    """
    temporary = path.with_suffix(".tmp")
    _write(temporary, content, is_durable=is_durable)
    temporary.replace(path)


def _write(path: Path, content: bytes, *, is_durable: bool) -> None:
    with open_private(path, "wb") as file:
        file.write(content)
        if is_durable:
            file.flush()
            os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Make renames and new names in a directory durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_to_owner_of(folder: Path, path: Path) -> None:
    """If this process is root, give `path` to the owner of `folder`: an agent that is not root has to read it."""
    owner = folder.stat()
    if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (0, 0):
        os.chown(path, owner.st_uid, owner.st_gid)


def narrow(path: Path) -> None:
    """Set a moved file to mode 0600 if this user owns it and it has no other name.

    A segment that is also in Cassandra's own commit log has a second name. It keeps the mode that Cassandra gave it.
    """
    found = path.stat()
    if found.st_nlink == 1 and found.st_uid == os.geteuid():
        path.chmod(PRIVATE_FILE)
