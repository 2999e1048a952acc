"""SchemaMoments: which entries are certainly after a change of `cdc`, when segments are not read in the log's order."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from change_agent.cdc_raw.segment_key import key_of_reading_again
from change_agent.db.write_time import lowest_write_time_us
from change_agent.positions.segment_ids import SegmentIds
from change_agent.schema.schema_moments import SchemaMoments
from change_agent.schema.schema_store import LogPlace
from change_agent.schema.table_metadata import KnownTables
from change_agent.schema.table_versions import TableVersion, TableVersions
from tests.agent.segment_writer import segment_bytes
from tests.agent.stages import GOLDEN, MemoryTables, StagedAgent, payloads
from tests.topics.events_topic import wait_until

[_PAYLOAD] = payloads(1)
_TABLE_ID = UUID(bytes=_PAYLOAD[1:17])
_WRITTEN_US = lowest_write_time_us(_PAYLOAD)
_S = 1_000_000


def _known(off_since_us: int, places: Sequence[LogPlace] = ()) -> KnownTables:
    """Known tables, one of which had its `cdc` turned off at this time."""
    table = GOLDEN.tables()[_TABLE_ID]
    on = TableVersion(table=table, since_us=1, confirmed_us=off_since_us - 10 * _S)
    off = TableVersion(table=replace(table, cdc=False), since_us=off_since_us, confirmed_us=None)
    return KnownTables(
        version=1,
        node_id=UUID(int=1),
        tables={**GOLDEN.tables(), _TABLE_ID: off.table},
        versions={_TABLE_ID: TableVersions([on, off])},
        places=places,
        confirmed_at_ms=time.time_ns() // 1_000_000,
    )


class _Moments:
    """Times are in seconds after the write of the entry. `cdc` was turned off 50 s after it."""

    def __init__(self, *places: tuple[int, int]) -> None:
        since_us = _WRITTEN_US + 50 * _S
        self.moments = SchemaMoments(SegmentIds())
        self.moments.use(
            _known(
                since_us,
                [
                    LogPlace(segment_id=each, position=position, table_id=_TABLE_ID, since_us=since_us, settled=True)
                    for each, position in places
                ],
            )
        )

    def begin(self, key: int, latest_s: int, *, goes_back: bool = False) -> None:
        self.moments.begin(key, _ms(latest_s), _ms(10_000), goes_back=goes_back)

    def read(self, key: int, latest_s: int) -> None:
        self.begin(key, latest_s)
        self.moments.note_read(key, _ms(latest_s))
        self.moments.end(key)

    def is_published(self) -> bool:
        [update] = self.moments.decode(_PAYLOAD, 100, 7).updates
        return update.table.cdc


def _ms(after_s: int) -> int:
    return _WRITTEN_US // 1000 + after_s * 1000


def test_what_comes_behind_a_segment_that_was_read_is_not_older_than_that() -> None:
    """Only the order of the log proves it, because the client chooses the write time."""
    moments = _Moments()
    moments.begin(7, 100)
    assert moments.is_published()
    moments.read(7, 100)
    moments.begin(8, 300)
    assert not moments.is_published()


def test_a_segment_that_is_read_again_says_nothing_about_the_time_of_others() -> None:
    """The newest of them are read first, and all of them before other segments. Their files may be new."""
    moments = _Moments()
    moments.read(key_of_reading_again(8), 5000)
    moments.begin(key_of_reading_again(7), 5000)
    assert moments.is_published()
    moments.read(key_of_reading_again(7), 5000)
    moments.begin(7, 300)
    assert moments.is_published()


def test_the_changes_of_a_segment_that_is_read_again_hold_only_behind_them_in_it() -> None:
    """A position in the newer segment is later in the log than the segment that is read next, whose key is higher."""
    newer, older = key_of_reading_again(8), key_of_reading_again(7)
    moments = _Moments((newer, 50))
    moments.begin(newer, 5000)
    assert not moments.is_published()
    moments.read(newer, 5000)
    assert not moments.moments.follows(older)
    moments.begin(older, 5000)
    assert moments.is_published()
    assert moments.moments.unsettled(9, 100) == []
    moments.begin(7, 300)
    assert moments.is_published()


def test_entries_that_come_once_more_are_not_taken_for_new_ones() -> None:
    """The entries after a truncation are read again from the present segment."""
    moments = _Moments()
    moments.read(7, 100)
    moments.begin(7, 300, goes_back=True)
    assert moments.is_published()
    moments.begin(7, 300)
    assert not moments.is_published()


def test_a_segment_that_could_not_be_read_is_not_behind_itself() -> None:
    """The reading is repeated. Its entries were written before its last sync, not after it."""
    moments = _Moments()
    moments.begin(7, 100)
    moments.begin(7, 100)
    assert moments.is_published()


def test_a_segment_that_was_written_while_the_clock_was_ahead_says_nothing_about_the_next() -> None:
    """The node's clock was set back between the two segments."""
    moments = _Moments()
    moments.read(7, 5000)
    moments.begin(8, 300)
    assert moments.is_published()


class _TurnedOff(MemoryTables):
    """Known tables, one of which had its `cdc` turned off at this time."""

    def __init__(self, since_s: float) -> None:
        super().__init__(GOLDEN.tables())
        self._since_us = int(since_s * _S)

    def as_of(self, time_ms: int, timeout_s: float, *, reread: bool = False) -> KnownTables | None:
        return _known(self._since_us)


@pytest.mark.parametrize("reprocessed", [0, 1, 2])
def test_changes_that_were_written_while_cdc_was_on_are_published_whatever_is_reprocessed(
    tmp_path: Path, reprocessed: int
) -> None:
    """The agent stopped before `cdc` was turned off. The files in `reprocess` are new."""
    now = time.time()
    first_id = int((now - 4000) * 1000)
    agent = StagedAgent(tmp_path, _TurnedOff(now - 3000))
    agent.segment(first_id + 9, content := segment_bytes(first_id + 9, [[_PAYLOAD]]), str(len(content)))
    os.utime(agent.cdc_raw / f"CommitLog-7-{first_id + 9}_cdc.idx", (now - 2900, now - 2900))
    (agent.work / "reprocess").mkdir(parents=True)
    for each in range(first_id, first_id + reprocessed):
        (agent.work / "reprocess" / f"CommitLog-7-{each}.log").write_bytes(segment_bytes(each, [[_PAYLOAD]]))
    agent.start()
    try:
        wait_until(lambda: len(agent.published) == 1 + reprocessed, "all are published", 10)
    finally:
        agent.stop()
    assert len(set(agent.places())) == 1 + reprocessed
