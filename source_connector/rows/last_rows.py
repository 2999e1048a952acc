"""The row last published for each key, so that an unchanged row need not be published again. No I/O.

Off by default (option `suppress.unchanged`). When in doubt, it forgets:

- a key while its record is in flight;
- everything when a deletion of many rows was published;
- everything when this process was suspended for so long that another instance may have published meanwhile.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Final

from cachetools import LRUCache

from schemas import record_properties as names
from source_connector.host.record import SourceRecord

__all__ = ["LastRows"]

# After a standstill of this length, another instance may have taken over.
_STANDSTILL_S: Final = 5.0
# The properties that change the meaning of a row. The others describe the event.
_PART_OF_THE_ROW: Final = (
    names.KIND,
    names.TABLE_ID,
    names.TABLE_GENERATION,
    names.EXPIRES_AT,
    names.COLUMNS_EXPIRE_AT,
    names.CELLS_EXPIRE_AT,
    names.ROW_MARKER,
    names.STATIC_COLUMNS,
)


class LastRows:
    """Remembers `max_keys` keys. `beat` is to be called at least every other second."""

    def __init__(self, max_keys: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows: LRUCache[tuple[int, bytes], bytes] = LRUCache(max_keys)
        self._clock = clock
        self._beat_at = clock()

    def beat(self) -> None:
        """Note that the process runs. If it stood still for too long, all rows are forgotten."""
        now = self._clock()
        if now - self._beat_at > _STANDSTILL_S:
            self._rows.clear()
        self._beat_at = now

    def holds(self, record: SourceRecord) -> bool:
        """True when the data topic has this row as the last one of its key. False for rows that a backfill asks for."""
        self.beat()
        return names.SNAPSHOT not in record.properties and self._rows.get(
            (record.schema_id, record.key)
        ) == _fingerprint(record)

    def is_on_its_way(self, record: SourceRecord) -> None:
        """Forget the key until its record is acknowledged."""
        self._rows.pop((record.schema_id, record.key), None)

    def is_published(self, record: SourceRecord) -> None:
        """Remember the record as the last one of its key."""
        self._rows[record.schema_id, record.key] = _fingerprint(record)

    def forget(self) -> None:
        """Forget all rows, because many may have changed."""
        self._rows.clear()


def _fingerprint(record: SourceRecord) -> bytes:
    digest = hashlib.md5(b"\1" + record.value if record.value is not None else b"\0", usedforsecurity=False)
    digest.update(_text(record.properties).encode())
    return digest.digest()


def _text(properties: Mapping[str, str]) -> str:
    return "\0".join(properties.get(name, "") for name in _PART_OF_THE_ROW)
