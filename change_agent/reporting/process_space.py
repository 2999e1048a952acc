"""The system within which a process id is unique: one boot of a machine, and one container on it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["process_space"]

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/pid")


def process_space() -> str | None:
    """A text that is the same for all processes that see each other's ids; None if the system has none (not Linux).

    A host name would not do: containers and copies of machines may have the same one.
    """
    try:
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()} {_NAMESPACE.readlink()}"
    except OSError:
        return None
