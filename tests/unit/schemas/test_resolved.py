"""The resolved timestamp of a table, from the nodes' progress records and the connector's cursor."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from schemas.progress_record import (
    UNKNOWN_POSITION,
    Checkpoint,
    MalformedProgressError,
    Peer,
    ProgressRecord,
    TableProgress,
    TopicPosition,
    decode_progress,
    encode_progress,
)
from schemas.resolved import PartitionCursor, pinned, resolved_of

_A, _B, _C = (UUID(int=number) for number in (1, 2, 3))
_TABLE = "ks.t"
_NOW_MS = 20_000


def _record(
    node: UUID,
    *checkpoints: Checkpoint,
    peers: tuple[UUID, ...] = (_A, _B),
    stopped: str | None = None,
    behind: str | None = None,
    published_ms: int = _NOW_MS - 100,
    replication: dict[str, str] | None = None,
    centers: dict[UUID, str] | None = None,
) -> ProgressRecord:
    table = TableProgress(keyspace="ks", table="t", table_id=UUID(int=9), checkpoints=checkpoints, stopped=stopped)
    return ProgressRecord(
        node_id=node,
        published_ms=published_ms,
        tables=(table,),
        peers=tuple(Peer(each, f"10.0.0.{each.int}", (centers or {}).get(each, "dc1")) for each in peers),
        replication={
            "ks": replication or {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "2"}
        },
        behind=behind,
    )


def _cursors(*pairs: tuple[int, int]) -> list[PartitionCursor]:
    """Cursors with the consumed position and the end of each partition, in ledger 7."""
    return [PartitionCursor(consumed=TopicPosition(7, a), end=TopicPosition(7, b)) for a, b in pairs]


def _at(*entries: int) -> tuple[TopicPosition, ...]:
    return tuple(TopicPosition(7, entry) for entry in entries)


def test_a_record_comes_back_as_it_was_sent() -> None:
    """The record has all optional fields."""
    record = _record(_A, Checkpoint(5, _at(1, 2)), Checkpoint(3), stopped="parked", behind="late")
    assert decode_progress(encode_progress(record)) == record


@pytest.mark.parametrize("payload", [b"", b"\x00", b"not a record at all", b"\xff" * 40])
def test_a_foreign_message_is_told_by_one_error(payload: bytes) -> None:
    """Any other content raises the same error."""
    with pytest.raises(MalformedProgressError, match="not a progress record"):
        decode_progress(payload)


def test_it_is_the_least_over_the_nodes_of_what_the_cursor_has_passed() -> None:
    """If the newer checkpoint is not passed, the older one counts."""
    records = {
        _A: _record(_A, Checkpoint(500, _at(9, 9)), Checkpoint(300, _at(4, 4))),
        _B: _record(_B, Checkpoint(400, _at(5, 4))),
    }
    found = resolved_of(_TABLE, records, {}, _cursors((5, 9), (8, 9)), _NOW_MS)
    assert found.resolved_ms == 300
    assert [each.resolved_ms for each in found.nodes] == [300, 400]
    everything = resolved_of(_TABLE, records, {}, _cursors((9, 9), (9, 9)), _NOW_MS)
    assert everything.resolved_ms == 400
    assert not everything.problems


def test_one_partition_that_is_behind_is_enough() -> None:
    """It holds back the timestamp, however far the others are."""
    records = {_A: _record(_A, Checkpoint(500, _at(9, 9)), peers=(_A,))}
    assert resolved_of(_TABLE, records, {}, _cursors((9, 9), (8, 9)), _NOW_MS).resolved_ms is None


def test_an_unknown_position_is_the_end_of_the_partition() -> None:
    """An agent that was restarted does not know the positions that the earlier one sent."""
    records = {_A: _record(_A, Checkpoint(500, (UNKNOWN_POSITION,)), peers=(_A,))}
    assert resolved_of(_TABLE, records, {}, _cursors((8, 9), (3, 3)), _NOW_MS).resolved_ms is None
    assert resolved_of(_TABLE, records, {}, _cursors((9, 9), (3, 3)), _NOW_MS).resolved_ms == 500
    earlier = {_A: [pinned(Checkpoint(450), _cursors((8, 9), (3, 3)))]}
    later = _cursors((10, 12), (3, 3))
    assert resolved_of(_TABLE, records, earlier, later, _NOW_MS).resolved_ms == 450


def test_a_topic_that_was_never_made_has_nothing_to_wait_for() -> None:
    """No agent has published an event."""
    records = {_A: _record(_A, Checkpoint(500), peers=(_A,))}
    assert resolved_of(_TABLE, records, {}, [], _NOW_MS).resolved_ms == 500
    gone = {_A: _record(_A, Checkpoint(500, _at(1)), peers=(_A,))}
    assert resolved_of(_TABLE, gone, {}, [], _NOW_MS).resolved_ms is None


def test_an_agent_takes_back_what_it_said_when_its_events_topic_was_lost() -> None:
    """The earlier checkpoints belong to the lost topic, and the cursor is after their positions."""
    earlier = {_A: [Checkpoint(100, _at(5))]}
    records = {_A: _record(_A, peers=(_A,), stopped="the events topic was deleted")}
    found = resolved_of(_TABLE, records, earlier, _cursors((8, 9)), _NOW_MS)
    assert (found.resolved_ms, list(found.problems)) == (None, ["node 10.0.0.1: the events topic was deleted"])
    records = {_A: _record(_A, Checkpoint(200, _at(9)), peers=(_A,))}
    assert resolved_of(_TABLE, records, earlier, _cursors((8, 9)), _NOW_MS).resolved_ms == 100


def test_a_node_without_an_agent_is_named() -> None:
    """The finding says what is known without that node."""
    found = resolved_of(_TABLE, {_A: _record(_A, Checkpoint(500, _at(1)))}, {}, _cursors((1, 1)), _NOW_MS)
    assert found.resolved_ms is None
    assert "10.0.0.2" in found.problems[0]
    assert "at least 2 replicas" in found.problems[1]
    assert "complete until 1970-01-01T00:00:00.500Z for" in found.problems[1]


def test_a_node_that_is_down_holds_the_timestamp() -> None:
    """Its last writes may not be published."""
    records = {
        _A: _record(_A, Checkpoint(900, _at(1))),
        _B: _record(_B, Checkpoint(400, _at(1)), published_ms=_NOW_MS - 50_000),
    }
    found = resolved_of(_TABLE, records, {}, _cursors((1, 1)), _NOW_MS)
    assert found.resolved_ms == 400
    assert "has not reported for 50 s" in found.problems[0]


def test_nodes_of_a_data_center_without_replicas_do_not_count() -> None:
    """They receive no write of the table."""
    options = {"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "dc1": "2", "dc2": "0"}
    record = _record(_A, Checkpoint(500, _at(1)), peers=(_A, _C), replication=options, centers={_C: "dc2"})
    assert resolved_of(_TABLE, {_A: record}, {}, _cursors((1, 1)), _NOW_MS).resolved_ms == 500


def test_no_agent_at_all_is_told() -> None:
    """The problem is returned instead of a time."""
    found = resolved_of(_TABLE, {}, {}, [], _NOW_MS)
    assert found.resolved_ms is None
    assert list(found.problems) == ["no agent has published its progress"]


def test_the_reason_of_a_table_that_stands_still_is_told() -> None:
    """The result also has the time that the table has reached."""
    records = {_A: _record(_A, Checkpoint(500, _at(1)), peers=(_A,), stopped="its events are held on disk")}
    found = resolved_of(_TABLE, records, {}, _cursors((1, 1)), _NOW_MS)
    assert found.resolved_ms == 500
    assert "held on disk" in found.problems[0]


def test_a_time_that_stands_still_without_a_reason_of_the_agent_is_told() -> None:
    """The agent reports, and the connector has read all: so events of the table wait in the agent."""
    published_ms = _NOW_MS + 61_000
    records = {_A: _record(_A, Checkpoint(_NOW_MS, _at(1)), peers=(_A,), published_ms=published_ms)}
    found = resolved_of(_TABLE, records, {}, _cursors((1, 1)), published_ms + 100)
    assert found.resolved_ms == _NOW_MS
    assert [each.why for each in found.nodes] == ["its agent has not published everything of this table for 61 s"]


_ONE_CENTER = {"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "dc1": "2"}
_TWO_CENTERS = {**_ONE_CENTER, "dc2": "1"}


@pytest.mark.parametrize("newer", [_A, _B])
def test_an_agent_that_does_not_know_of_a_new_data_center_leaves_out_nobody(newer: UUID) -> None:
    """This holds for either newest record, because nodes of the new data center may already have received writes."""
    centers = {_A: "dc1", _B: "dc1", _C: "dc2"}
    records = {
        node: _record(
            node,
            Checkpoint(500, _at(1)),
            peers=(_A, _B, _C),
            centers=centers,
            replication=replication,
            published_ms=_NOW_MS - (100 if node == newer else 200),
        )
        for node, replication in ((_A, _ONE_CENTER), (_B, _TWO_CENTERS))
    }
    found = resolved_of(_TABLE, records, {}, _cursors((1, 1)), _NOW_MS)
    assert (found.resolved_ms, [each.node_id for each in found.nodes]) == (None, [_A, _B, _C])
    elsewhere = {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "2"}
    changed = {node: replace(each, replication={"ks": elsewhere}) for node, each in records.items() if node == newer}
    assert resolved_of(_TABLE, records | changed, {}, _cursors((1, 1)), _NOW_MS).resolved_ms is None


def test_a_dead_letter_is_the_reason_why_a_timestamp_stands_still() -> None:
    """This holds also for a new dead letter. A table whose newest checkpoint is passed has no problem."""
    records = {_A: _record(_A, Checkpoint(500, _at(9)), Checkpoint(400, _at(4)), peers=(_A,))}
    held = [replace(each, is_held=True) for each in _cursors((5, 9))]
    found = resolved_of(_TABLE, records, {}, held, _NOW_MS)
    assert (found.resolved_ms, found.problems) == (
        400,
        ["node 10.0.0.1: events of it are dead letters: see cdc connector dead-letters, then run cdc connector resend"],
    )
    behind = [replace(each, is_held=True) for each in _cursors((9, 12))]
    assert not resolved_of(_TABLE, records, {}, behind, _NOW_MS).problems
