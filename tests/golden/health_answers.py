"""What servers and agents answered, as it was recorded in tests/golden/health."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

__all__ = ["HEALTH", "recorded"]

HEALTH: Final = Path(__file__).parent / "health"


def recorded(name: str) -> Any:
    """The answer in the JSON file of this name."""
    return json.loads((HEALTH / f"{name}.json").read_text())
