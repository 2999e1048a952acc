"""Finds changes of one key that have the same write time, which therefore proves none of them. No I/O.

Clients choose write times (`USING TIMESTAMP`), often in whole milliseconds. Of two values with one write time Cassandra
keeps the larger one, and a replica that lacks that write shows the other value with the very same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schemas.mutation_event import MutationEvent
from source_connector.events.events_message import PendingEvent

__all__ = ["WriteTimes"]

_MOST_YOUNG: Final = 10_000
_SEVERAL: Final = b""

# A write time, the change's digest or `_SEVERAL`, and the columns.
_Write = tuple[int, bytes, tuple[str, ...]]


class WriteTimes:
    """Remembers the latest write time of the keys that were settled last, of at least `most_young` keys.

    It is in memory only. After a start or a takeover a change is compared with those that came since.
    """

    def __init__(self, most_young: int = _MOST_YOUNG) -> None:
        self._most_young = most_young
        # In two generations: what was not settled during one is forgotten.
        self._young: dict[bytes, _Write] = {}
        self._old: dict[bytes, _Write] = {}

    def remember(self, key: bytes, event: MutationEvent) -> None:
        """The event of this key is settled."""
        live, columns = event.live_cell_writetime_us, event.columns
        if live is None:
            return
        digest = event.digest
        known = self._known(key)
        if known is not None:
            if known[0] > live:
                return
            if known[0] == live and known[1] != digest:
                digest, columns = _SEVERAL, tuple(dict.fromkeys((*known[2], *columns)))
        self._young[key] = live, digest, columns
        if len(self._young) > self._most_young:
            self._young, self._old = {}, self._young

    def tied(self, events: Sequence[PendingEvent]) -> Sequence[PendingEvent]:
        """Those of one key's events whose write time another change of one of their columns has, too."""
        known = self._known(events[0].cache_key)
        if known is None and len(events) == 1:  # the usual case
            return ()
        writes: dict[tuple[int, bytes], tuple[str, ...]] = {}
        for pending in events:
            event = pending.event
            if event.live_cell_writetime_us is not None:
                writes[event.live_cell_writetime_us, event.digest] = event.columns
        if known is not None:
            writes.setdefault(known[:2], known[2])
        if len({live for live, _ in writes}) == len(writes):
            return ()
        shared = _shared_places(writes)
        return [
            pending
            for pending in events
            if any((pending.event.live_cell_writetime_us, name) in shared for name in pending.event.columns)
        ]

    def _known(self, key: bytes) -> _Write | None:
        return self._young.get(key) or self._old.get(key)


def _shared_places(writes: dict[tuple[int, bytes], tuple[str, ...]]) -> set[tuple[int | None, str]]:
    """Write times and columns that more than one of the changes has."""
    seen = set[tuple[int | None, str]]()
    shared = set[tuple[int | None, str]]()
    for (live, _), columns in writes.items():
        places = {(live, name) for name in columns}
        shared |= places & seen
        seen |= places
    return shared
