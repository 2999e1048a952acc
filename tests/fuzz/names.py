"""Names that a process must know before it imports the code under test."""

from __future__ import annotations

from typing import Final

__all__ = ["CORE_VARIABLE", "NAMES"]

NAMES: Final = [
    "mutation",
    "native",
    "segment",
    "framing",
    "index",
    "frames",
    "key",
    "rows",
    "events",
    "datastax",
    "held",
    "agent-options",
    "source-options",
]

CORE_VARIABLE: Final = "CDC_FUZZ_CORE"
"""Environment variable: the library of the native core with counters, for the target `native`."""
