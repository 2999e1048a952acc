"""UnsyncedReading: how often the reader reads changes that Cassandra has written to the log and not synced yet.

Cassandra 4.0 and later fill a plain segment through a shared memory map, and its name in `cdc_raw` is a second name of
the same file. So a write is in the file before it is acknowledged, and long before the index counts it. The bytes of
compressed and encrypted segments, and those of `commitlog_disk_access_mode: direct`, reach the file with their sync.

Cassandra source: o.a.c.db.commitlog.MemoryMappedSegment, CommitLogSegment.sync (which writes a sync marker each 100 ms,
and syncs each `commitlog_sync_period`), CommitLogSegmentManagerCDC.createSegment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from change_agent.commitlog.reader import SegmentReader

__all__ = ["UnsyncedReading"]

_log: Final = logging.getLogger(__name__)

# After a read of so many mutations or more, the next pause is longer. So messages have several events under load. Each
# message costs CPU in the agent, in Pulsar and in the connector, which matters when Cassandra needs all cores.
_MANY: Final = 8
_LONGER: Final = 3


class UnsyncedReading:
    """Says how often unsynced changes are read, and reports why they cannot be read. Used by the reader's thread.

    `access_mode` returns Cassandra's `commitlog_disk_access_mode`; empty while it is not known.
    """

    def __init__(self, min_interval_s: float, max_interval_s: float, access_mode: Callable[[], str]) -> None:
        self.min_interval_s: Final = min_interval_s
        self._max_interval_s: Final = max_interval_s
        self._access_mode: Final = access_mode
        self._reported = ""

    def next_interval_s(self, interval_s: float, mutations: int) -> float:
        """The pause before the next read, by the number of mutations of the last one.

        It is the minimum after a few, three times the minimum after many, and twice the last pause after none.
        """
        if mutations == 0:
            return min(self._max_interval_s, 2 * interval_s)
        return self.min_interval_s if mutations < _MANY else min(self._max_interval_s, _LONGER * self.min_interval_s)

    def may_read(self, reader: SegmentReader) -> bool:
        """True if the file of this segment can have changes before their sync; if not, the log says so once."""
        descriptor = reader.descriptor
        if reader.can_read_unsynced and self._access_mode() != "direct":
            self._reported = ""
            return True
        if descriptor.encryption is not None:
            why = "the commit log is encrypted"
        elif descriptor.compression is not None:
            why = "the commit log is compressed"
        elif not reader.can_read_unsynced:
            why = "Cassandra 3.11 hands over a segment when it has finished it"
        else:
            why = "Cassandra writes with commitlog_disk_access_mode: direct"
        if why != self._reported:
            self._reported = why
            _log.warning("readUnsynced has no effect: %s; each change waits for its sync", why)
        return False
