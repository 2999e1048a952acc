"""Names of the targets, which atheris must know before it imports what is fuzzed."""

from __future__ import annotations

from typing import Final

__all__ = ["BLIND", "NAMES"]

NAMES: Final = [
    "mutation", "native", "segment", "framing", "index", "frames", "key", "events", "datastax", "held",
    "agent-options", "source-options",
]  # fmt: skip

BLIND: Final = ["native"]
"""Those that compare with compiled code, which no coverage can be had of."""
