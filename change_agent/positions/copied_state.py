"""CopiedState: what the copy of a node's positions has: the positions, the tables' stops, the published clearings.

    Copy => the form of `positions-a.json` (OffsetStore), with three more fields:
      "maker": text         names the working directory whose agent has stored the copy (`maker_of`)
      "stops": {...}        the stops, in the form of `stops.json` (Stops)
      "clearings": {...}    the form of `clearings.json` (Clearings); null without this file

Copies of earlier versions have none of these fields. Earlier versions ignore them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from change_agent.positions.offsets import StoredPositions, format_positions, load_positions, positions_of
from change_agent.positions.stops import EVERY_TABLE, Stop, parse_stops, stops_as_json
from change_agent.private_files import replace_private, sync_directory

__all__ = ["CopiedState", "format_copy", "maker_of", "parse_copy", "unreadable_copy"]

_NAME: Final = "copy-maker.txt"
# A broker accepts messages of 5 MiB. The positions may take up to about 1 MiB.
_MOST_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedState:
    """A copy. In copies of earlier versions, `maker` is empty and `clearings` is None."""

    positions: StoredPositions = field(default_factory=StoredPositions)
    stops: Mapping[str, Stop] = field(default_factory=dict)
    clearings: Any = None
    maker: str = ""


def format_copy(copied: CopiedState) -> bytes:
    """The copy as it is stored. If the gaps of the stops take too much room, only an operator ends these stops.

    Clearings that take too much room are left out.
    """
    stops = stops_as_json(copied.stops)
    if len(json.dumps(stops)) > _MOST_BYTES:
        stops = stops_as_json({table: _without_gaps(each) for table, each in copied.stops.items()})
    clearings = copied.clearings if len(json.dumps(copied.clearings)) <= _MOST_BYTES else None
    return format_positions(0, copied.positions, {"maker": copied.maker, "stops": stops, "clearings": clearings})


def _without_gaps(stop: Stop) -> Stop:
    if not stop.gaps:
        return stop
    how = "are too many for the copy of positions: when they are closed, run cdc agent resume-progress"
    return Stop(reason=f"{stop.reason}; its {len(stop.gaps)} gaps {how}")


def parse_copy(content: bytes, where: str) -> CopiedState | None:
    """Return the copy; None when it is damaged. Raises StateFormatError, with `where`."""
    stored = load_positions(content, where)
    if stored is None:
        return None
    return CopiedState(
        positions=positions_of(stored),
        stops=parse_stops(stored.get("stops", {}), where),
        clearings=stored.get("clearings"),
        maker=stored.get("maker", ""),
    )


def unreadable_copy(why: str) -> CopiedState:
    """Return what counts instead of a copy that cannot be read: no positions, and a stop of every table.

    Another working directory may have made the copy, and nobody knows its stops.
    """
    reason = (
        f"the copy of this node's positions {why}, and may have had stops of another machine: repair the tables with"
        " cdc spark verify --repair, then run cdc agent resume-progress"
    )
    return CopiedState(stops={EVERY_TABLE: Stop(reason=reason)}, maker="unknown")


def maker_of(directory: Path) -> str:
    """The name of a working directory in the copies that its agents store. The first call makes it. Raises OSError."""
    path = directory / _NAME
    known = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if known:
        return known
    made = str(uuid4())
    replace_private(path, made.encode(), is_durable=True)
    sync_directory(directory)
    return made
