"""Names of the targets, which atheris must know before it imports what is fuzzed."""

from __future__ import annotations

from typing import Final

__all__ = ["NAMES"]

NAMES: Final = [
    "mutation", "segment", "framing", "index", "frames", "key", "events", "datastax", "held",
    "agent-options", "source-options",
]  # fmt: skip
