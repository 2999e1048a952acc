"""FolderLock: lets only one agent at a time read a node's `cdc_raw`, wherever its working directory is.

The lock is on the folder itself (flock), so it adds no file that Cassandra would count, and read permission for the
folder is enough. The kernel releases it when the process ends, also after kill -9.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

__all__ = ["FolderLock"]


class FolderLock:
    """Held from a `take` that returned True until `release`."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take the lock. False if another process has it. Raises OSError on a file system without such locks (NFS)."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock, so that another agent can take it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
