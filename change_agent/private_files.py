"""Folders and files with row data in them: 0700 and 0600 from their first moment, whatever the umask is.

Everything that the agent or one of its commands writes is created here. An existing file or folder keeps its mode,
because an operator may have opened it to others.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Final, Literal

__all__ = [
    "PRIVATE_FILE", "give_to_owner_of", "make_private_folder", "narrow", "open_private", "replace_private", "sync_directory",
    "write_private_text",
]  # fmt: skip

PRIVATE_FILE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700
_FLAGS: Final = {
    "wb": os.O_CREAT | os.O_TRUNC,
    "xb": os.O_CREAT | os.O_EXCL,
    "ab": os.O_CREAT | os.O_APPEND,
}


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing. Raises OSError."""
    for each in reversed(folder.parents):
        if not each.exists():
            each.mkdir(_PRIVATE_FOLDER, exist_ok=True)
    folder.mkdir(_PRIVATE_FOLDER, exist_ok=True)


def open_private(path: Path, mode: Literal["wb", "xb", "ab"]) -> BinaryIO:
    """Open a file to write to it, as :func:`open` does. Raises OSError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CLOEXEC | _FLAGS[mode], PRIVATE_FILE), mode)


def write_private_text(path: Path, text: str) -> None:
    """Replace what the file holds, in place. Raises OSError."""
    with open_private(path, "wb") as file:
        file.write(text.encode())


def replace_private(path: Path, content: bytes, *, is_durable: bool = False) -> None:
    """Replace a file that others read, whole at any moment. Raises OSError.

    What is durable survives a power loss once `sync_directory` has made its new name durable, too.
    """
    temporary = path.with_suffix(".tmp")
    with open_private(temporary, "wb") as file:
        file.write(content)
        if is_durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)


def sync_directory(directory: Path) -> None:
    """Make renames and new names in a directory durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_to_owner_of(folder: Path, path: Path) -> None:
    """Let `path`, which root made, belong to the user whose folder this is: an agent that is not root has to read it."""
    owner = folder.stat()
    if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (0, 0):
        os.chown(path, owner.st_uid, owner.st_gid)


def narrow(path: Path) -> None:
    """Take from others what they may do with a file that was moved here, when it is this user's and has no other name.

    A segment that Cassandra has in its own commit log too keeps the mode that Cassandra gave it.
    """
    found = path.stat()
    if found.st_nlink == 1 and found.st_uid == os.geteuid():
        path.chmod(PRIVATE_FILE)
