"""A loss of power: of a folder, what is left is what was synced."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

__all__ = ["PowerLoss"]


class PowerLoss:
    """Follows the syncs of this process below an existing folder. What the folder has at the start is on the disk."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        # By inode: the bytes of a file, or the names in a folder, as they were synced last.
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        for each in (folder, *folder.rglob("*")):
            self._note(each)
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            sync(descriptor)
            self._note(Path(f"/proc/self/fd/{descriptor}").resolve())

        monkeypatch.setattr(os, "fsync", fsync)

    def _note(self, path: Path) -> None:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = {each.name: each.lstat().st_ino for each in path.iterdir()}
        else:
            self._bytes[found.st_ino] = path.read_bytes()

    def left_in(self, target: Path) -> Path:
        """Write what a loss of power leaves of the folder now into a new folder, and return that."""
        self._leave(self._folder.stat().st_ino, target)
        return target

    def _leave(self, inode: int, target: Path) -> None:
        if inode in self._names:
            target.mkdir()
            for name, each in self._names[inode].items():
                self._leave(each, target / name)
        else:
            target.write_bytes(self._bytes.get(inode, b""))
