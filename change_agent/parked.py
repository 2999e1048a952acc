"""ParkedMutations: mutations that could not be understood, kept with all that is needed to try again.

parked-mutations.jsonl => one JSON object a line:
  {"segment": name, "position": n, "version": n, "reason": text, "payload": base64 of the serialized mutation}
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Final

__all__ = ["ParkedMutations"]


class ParkedMutations:
    """Appends to the file of a working directory; one writer."""

    def __init__(self, directory: Path) -> None:
        self.path: Final = directory / "parked-mutations.jsonl"

    def park(self, *, segment: str, position: int, version: int, reason: str, payload: bytes) -> None:
        """Durable when this returns. After a crash the same mutation may be parked twice: its place tells."""
        line = json.dumps(
            {
                "segment": segment,
                "position": position,
                "version": version,
                "reason": reason,
                "payload": base64.b64encode(payload).decode(),
            }
        )
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
