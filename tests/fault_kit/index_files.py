"""Makes a `_cdc.idx` torn, empty or smaller for a moment, as a reader may find it while Cassandra writes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.fault_kit.errors import FaultRunError
from tests.fault_kit.kinds import FaultKind

__all__ = ["disturb_index"]

_SETTLED_S: Final = 1.0
_WAIT_S: Final = 240.0


def disturb_index(cdc_raw: Path, kind: FaultKind, length_s: float, on_strike: Callable[[str], None]) -> None:
    """Write wrong content to the newest index file. Restore it after `length_s`, unless Cassandra has written it again.

    Raises FaultRunError when there is no index file with content.
    """
    index, right = _newest(cdc_raw)
    try:
        wrong = _wrong(right, kind)
        on_strike(f"{index.name}: {right!r} becomes {wrong!r}")
        index.write_text(wrong)
        time.sleep(length_s)
        if index.read_text() == wrong:
            index.write_text(right)
        _complete(cdc_raw, index, wrong, right)
    except FileNotFoundError:
        return  # the agent has finished it


def _newest(cdc_raw: Path) -> tuple[Path, str]:
    """Return the newest index file and its content. Wait while it is empty: Cassandra is just writing it."""
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            for index in sorted(cdc_raw.glob("*_cdc.idx"), key=_segment_id)[-1:]:
                if right := index.read_text():
                    return index, right
        time.sleep(0.05)
    raise FaultRunError(f"{cdc_raw} had no index that says anything for {_WAIT_S:g} s; is a table with CDC written to?")


def _segment_id(index: Path) -> int:
    return int(index.name.removesuffix("_cdc.idx").rpartition("-")[2])


def _wrong(right: str, kind: FaultKind) -> str:
    digits = right.split("\n", maxsplit=1)[0]
    match kind:
        case FaultKind.IDX_EMPTY:
            return ""
        case FaultKind.IDX_TORN:
            return digits[: max(1, len(digits) // 2)]
        case _:
            return str(int(digits or "0") // 2)


def _complete(cdc_raw: Path, index: Path, wrong: str, right: str) -> None:
    """Write COMPLETED if our content replaced Cassandra's. Cassandra does not write the index of a completed segment
    again."""
    time.sleep(_SETTLED_S)
    text = index.read_text()
    newest = max(map(_segment_id, cdc_raw.glob("*_cdc.idx")), default=0)
    if newest > _segment_id(index) and "COMPLETED" not in text and text in {wrong, right}:
        index.write_text(f"{right.split(maxsplit=1)[0] if right.split() else '0'}\nCOMPLETED")
