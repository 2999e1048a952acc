"""Locks between the commands of one sandbox."""

from __future__ import annotations

import fcntl
from typing import IO

from cdc.sandbox.errors import SandboxError

__all__ = ["lock_now"]


def lock_now(file: IO[bytes], otherwise: str) -> None:
    """Lock an open file until it is closed. Raises SandboxError with the text `otherwise` if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SandboxError(otherwise) from None
