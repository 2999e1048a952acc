"""The system in which a process id has its meaning: a boot of a machine, and a container of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["process_space"]

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/pid")


def process_space() -> str | None:
    """The same text for all processes that see each other's ids; None where the system has no such text (not Linux).

    Names of hosts are no such text: containers and copies of machines may share one.
    """
    try:
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()} {_NAMESPACE.readlink()}"
    except OSError:
        return None
