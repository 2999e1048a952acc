"""Finds changes of one key that have the same write time: it proves none of them. No I/O.

Clients choose write times (`USING TIMESTAMP`), often in whole milliseconds. If two values have the same write time,
Cassandra keeps the larger one. A replica that lacks that write shows the other value with the same write time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schemas.mutation_event import MutationEvent
from source_connector.events.events_message import PendingEvent

__all__ = ["WriteTimes"]

_MOST_YOUNG: Final = 10_000
_SEVERAL: Final = b""
# How many writes of one key are kept. Most keys have one, because a later write of the same columns replaces it.
_MOST_WRITES: Final = 4

# A write time, the digest of the change (`_SEVERAL` for several changes), and the columns.
_Write = tuple[int, bytes, tuple[str, ...]]


class WriteTimes:
    """Remembers the latest write times of the keys that were settled last, of at least `most_young` keys.

    They are in memory only. After a start or takeover, a change is compared only with changes that were settled since.
    """

    def __init__(self, most_young: int = _MOST_YOUNG) -> None:
        self._most_young = most_young
        # Two generations: a key that is not settled again during a generation is forgotten at its end.
        self._young: dict[bytes, tuple[_Write, ...]] = {}
        self._old: dict[bytes, tuple[_Write, ...]] = {}

    def remember(self, key: bytes, event: MutationEvent) -> None:
        """Note that this event of the key is settled."""
        live, columns = event.live_cell_writetime_us, event.columns
        if live is None:
            return
        write = live, event.digest, columns
        known = self._known(key)
        self._young[key] = (write,) if known is None else _with_write(known, write)
        if len(self._young) > self._most_young:
            self._young, self._old = {}, self._young

    def tied(self, events: Sequence[PendingEvent]) -> Sequence[PendingEvent]:
        """Return those of one key's events that share their write time with another change of one of their columns."""
        known = self._known(events[0].cache_key)
        if known is None and len(events) == 1:  # the usual case
            return ()
        writes: dict[tuple[int, bytes], tuple[str, ...]] = {}
        for pending in events:
            event = pending.event
            if event.live_cell_writetime_us is not None:
                writes[event.live_cell_writetime_us, event.digest] = event.columns
        for live, digest, columns in known or ():
            writes.setdefault((live, digest), columns)
        if len({live for live, _ in writes}) == len(writes):
            return ()
        shared = _shared_places(writes)
        return [
            pending
            for pending in events
            if any((pending.event.live_cell_writetime_us, name) in shared for name in pending.event.columns)
        ]

    def _known(self, key: bytes) -> tuple[_Write, ...] | None:
        return self._young.get(key) or self._old.get(key)


def _with_write(known: tuple[_Write, ...], write: _Write) -> tuple[_Write, ...]:
    """The key's last few writes with this one. Writes that a later one replaces in all columns are left out."""
    kept: list[_Write] = []
    for each in known:
        if each[0] == write[0]:
            if each[1] != write[1]:
                write = write[0], _SEVERAL, tuple(dict.fromkeys((*each[2], *write[2])))
        elif _replaces(each, write):
            return known
        elif not _replaces(write, each):
            kept.append(each)
    kept.append(write)
    return tuple(kept[-_MOST_WRITES:])


def _replaces(later: _Write, earlier: _Write) -> bool:
    return later[0] > earlier[0] and (later[2] == earlier[2] or set(later[2]).issuperset(earlier[2]))


def _shared_places(writes: dict[tuple[int, bytes], tuple[str, ...]]) -> set[tuple[int | None, str]]:
    """Pairs of a write time and a column that more than one of the changes has."""
    seen = set[tuple[int | None, str]]()
    shared = set[tuple[int | None, str]]()
    for (live, _), columns in writes.items():
        places = {(live, name) for name in columns}
        shared |= places & seen
        seen |= places
    return shared
