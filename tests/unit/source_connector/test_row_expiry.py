"""When a row and its columns expire, by the TTLs that were read and by the row markers in events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from schemas.mutation_event import (
    EXPIRY_SEGMENT_ID,
    MARKER_STAYS,
    NO_MARKER,
    SNAPSHOT_SEGMENT_ID,
    MutationEvent,
    MutationEvents,
    MutationKind,
)
from source_connector.encoding.projection import Projection
from source_connector.events.events_message import EventsMessage, PendingEvent
from source_connector.rows.row_expiry import NextExpiry, add_expiry
from tests.unit.source_connector.events import NODE, column, event, int32, pending, read_at, table

NOW_S = 1_000_000
INSERT = event(writetime_us=10, expiry_time_s=NOW_S + 50, marker_expiry_s=NOW_S + 50, columns=("v", "w"))
UPDATE = event(writetime_us=10, expiry_time_s=NOW_S + 50, marker_expiry_s=NO_MARKER, columns=("v",))
STAYING = event(writetime_us=10, marker_expiry_s=MARKER_STAYS, columns=("v", "w"))
DELETION = event(kind=MutationKind.ROW_DELETION, writetime_us=9, live_us=None, columns=())
SNAPSHOT = event(writetime_us=10, columns=("v", "w"))
OF_AN_OLDER_AGENT = event(writetime_us=10, expiry_time_s=NOW_S + 50, columns=("v", "w"))


def snapshot() -> list[PendingEvent]:
    content = MutationEvents(
        node_id=NODE,
        segment_id=SNAPSHOT_SEGMENT_ID,
        keyspace="ks",
        table="t",
        table_id=table().table_id,
        key_schema="",
        events=(SNAPSHOT,),
    )
    return EventsMessage(identity=b"", message_id=None, content=content).take_events()


def said(events: Sequence[PendingEvent], *cells: tuple[int, int | None] | None) -> dict[str, object]:
    """The properties for a row whose columns v and w have these write times and TTLs."""
    projection = Projection(table(columns=("v", "w")))
    values = [None if each is None else int32(1) for each in cells]
    times = [None if each is None else each[0].to_bytes(8, "big") for each in cells]
    ttls = [None if each is None or each[1] is None else int32(each[1]) for each in cells]
    properties: dict[str, str] = {}
    add_expiry(properties, projection, projection.row_selection, (*values, *times, *ttls, read_at(NOW_S)), events)
    return {name: json.loads(each) if each[0] == "{" else each for name, each in properties.items()}


def test_a_row_without_ttls_says_nothing() -> None:
    """The value that the event wrote is gone or was overwritten."""
    assert said(pending(UPDATE), (10, None), (10, None)) == said(pending(STAYING), (10, None), None) == {}


def test_a_row_of_an_insert_with_a_ttl_goes_as_a_whole() -> None:
    """The second in the events is exact if their cell is the one that was read."""
    end = NOW_S + 50
    assert said(pending(INSERT), (10, 49), (10, 51)) == {
        "columns_expire_at": {"v": end, "w": end},
        "cells_expire_at": str(end),
        "expires_at": str(end),
        "row_marker": "expires",
    }
    only_marker = said(pending(INSERT), None, None)
    assert only_marker == {"expires_at": str(end), "row_marker": "expires"}


def test_one_column_that_goes_leaves_the_row() -> None:
    """The row existed before, and one of its columns was updated with a TTL."""
    assert said(pending(UPDATE), (10, 50), (3, None)) == {"columns_expire_at": {"v": NOW_S + 50}}


def test_an_update_does_not_tell_whether_the_row_goes_with_its_last_cell() -> None:
    """The row marker of an earlier INSERT may keep the row."""
    assert said(pending(UPDATE), (10, 50), None) == {
        "columns_expire_at": {"v": NOW_S + 50},
        "cells_expire_at": str(NOW_S + 50),
    }


@pytest.mark.parametrize("write", [INSERT, UPDATE])
def test_a_deletion_that_is_merged_with_a_write_with_a_ttl_leaves_nothing_that_stays(write: MutationEvent) -> None:
    """Everything that kept the row before is deleted."""
    found = said(pending(DELETION, write), (10, 50), None)
    assert (found["expires_at"], found["row_marker"]) == (str(NOW_S + 50), "expires")


@pytest.mark.parametrize(
    "deletion", [DELETION, DELETION._replace(kind=MutationKind.RANGE_DELETION, deletion_time_us=9)]
)
def test_a_deletion_alone_says_nothing_about_the_marker_of_a_row_that_is_there(deletion: MutationEvent) -> None:
    """The row survived the deletion, or was written afterwards with a marker of its own."""
    found = said(pending(deletion), (10, 50), None)
    assert found["expires_at"] == str(NOW_S + 50)
    assert "row_marker" not in found


def test_of_markers_the_one_written_last_counts() -> None:
    """The write time counts, as in Cassandra."""
    later = STAYING._replace(writetime_us=11)
    for events in (pending(INSERT, later), pending(later, INSERT)):
        assert "expires_at" not in said(events, (10, 50), None)
    earlier = STAYING._replace(writetime_us=9)
    for events in (pending(INSERT, earlier), pending(earlier, INSERT)):
        assert said(events, (10, 50), None)["expires_at"] == str(NOW_S + 50)


def test_a_deletion_removes_a_marker_of_its_own_time() -> None:
    """As in Cassandra. The cell is of a later write, and the row goes with it."""
    deletion = DELETION._replace(writetime_us=10, deletion_time_us=10)
    assert said(pending(INSERT, deletion), (11, 20), None)["expires_at"] == str(NOW_S + 20)


def test_a_row_that_was_asked_for_goes_with_the_last_of_its_cells() -> None:
    """No event has its marker, so the row expires with its last cell."""
    for events in (snapshot(), pending(OF_AN_OLDER_AGENT)):
        found = said(events, (7, 60), (8, 70))
        assert found == {
            "columns_expire_at": {"v": NOW_S + 60, "w": NOW_S + 70},
            "cells_expire_at": str(NOW_S + 70),
            "expires_at": str(NOW_S + 70),
        }
        assert "expires_at" not in said(events, (7, 60), (8, None))
    before = OF_AN_OLDER_AGENT._replace(expiry_time_s=None)
    assert "expires_at" not in said(pending(before, OF_AN_OLDER_AGENT), (10, 50), None)


def test_another_write_of_the_column_has_its_own_second() -> None:
    """Columns with equal write times and different TTLs keep their own seconds."""
    columns = said(pending(INSERT), (10, 20), (12, 49))["columns_expire_at"]
    assert columns == {"v": NOW_S + 20, "w": NOW_S + 49}


@pytest.mark.parametrize(("events", "goes"), [([INSERT], True), ([UPDATE], False), ([SNAPSHOT], False)])
def test_a_collection_stays_unless_an_insert_with_a_ttl_wrote_it(events: list[MutationEvent], goes: bool) -> None:
    """Before 5.0, no CQL function returns the TTLs of its cells."""
    made = table(columns=("v",))
    of_map = replace(made, regular_columns=(*made.regular_columns, column("m", cql_type="map<int, int>")))
    projection = Projection(of_map)
    row = (int32(1), b"\0\0\0\0", (10).to_bytes(8, "big"), int32(50), read_at(NOW_S))
    properties: dict[str, str] = {}
    named = [each._replace(columns=("v", "m")) for each in events]
    add_expiry(properties, projection, projection.row_selection, row, pending(*named))
    assert ("expires_at" in properties) is goes
    assert json.loads(properties["columns_expire_at"]) == {"v": NOW_S + 50} | ({"m": NOW_S + 50} if goes else {})
    without_map = (int32(1), None, *row[2:])
    properties.clear()
    add_expiry(properties, projection, projection.row_selection, without_map, pending(INSERT))
    assert properties["expires_at"] == str(NOW_S + 50)


def test_static_columns_go_by_themselves() -> None:
    """A static row's record has no row that could expire."""
    projection = Projection(table(clustering_key=("c",), static=("s",)))
    static = event(kind=MutationKind.STATIC_ROW, columns=("s",))
    properties: dict[str, str] = {}
    row = (int32(1), (10).to_bytes(8, "big"), int32(50), read_at(NOW_S))
    add_expiry(properties, projection, projection.static_selection, row, pending(static))
    assert properties == {"columns_expire_at": f'{{"s":{NOW_S + 50}}}'}


def first(
    events: Sequence[PendingEvent], *cells: tuple[int, int | None] | None, tags: bytes | None = None
) -> NextExpiry | None:
    """The first expiry, if there is one."""
    found = looks_at(events, *cells, tags=tags)
    return found[0] if found else None


def looks_at(
    events: Sequence[PendingEvent], *cells: tuple[int, int | None] | None, tags: bytes | None = None
) -> Sequence[NextExpiry]:
    """The expiries of a row whose columns v and w have these write times and TTLs, and whose set has this value."""
    of = replace(table(columns=("v", "w")), regular_columns=(*table(columns=("v", "w")).regular_columns, TAGS))
    projection = Projection(of)
    values = [None if each is None else int32(1) for each in cells]
    times = [None if each is None else each[0].to_bytes(8, "big") for each in cells]
    ttls = [None if each is None or each[1] is None else int32(each[1]) for each in cells]
    row = (*values, tags, *times, *ttls, read_at(NOW_S))
    return add_expiry({}, projection, projection.row_selection, row, events)


TAGS = column("tags", cql_type="set<text>")


@pytest.mark.parametrize(
    ("events", "cells", "looks"),
    [
        ((INSERT,), ((10, 50), (10, 50)), {NOW_S + 50: ("v", "w")}),
        ((INSERT,), ((10, 50), (11, 20)), {NOW_S + 20: ("w",), NOW_S + 50: ()}),
        ((INSERT,), (None, None), {NOW_S + 50: ()}),
        ((INSERT,), ((11, None), None), {NOW_S + 50: ()}),
        ((UPDATE,), ((10, 50), (3, None)), {NOW_S + 50: ("v",)}),
        ((STAYING,), ((11, 7), None), {NOW_S + 7: ("v",)}),
        ((DELETION, UPDATE), ((10, 50), None), {NOW_S + 50: ("v",)}),
        ((OF_AN_OLDER_AGENT,), ((10, 50), None), {NOW_S + 50: ("v",)}),
        ((STAYING,), ((10, None), None), {}),
    ],
)
def test_the_seconds_in_which_something_goes(
    events: Sequence[MutationEvent],
    cells: Sequence[tuple[int, int | None] | None],
    looks: dict[int, tuple[str, ...]],
) -> None:
    """The first columns to expire and the marker: reads do not show the marker, and a cell that keeps the row now may
    be deleted."""
    assert [(each.second, each.columns) for each in looks_at(pending(*events), *cells)] == list(looks.items())


def test_a_set_is_known_by_its_bytes() -> None:
    """The TTLs of its cells cannot be read: a smaller set shows that some have expired."""
    write = INSERT._replace(columns=("v", "w", "tags"))
    found, other = (first(pending(write), (10, 50), (10, 50), tags=each) for each in (b"two", b"one"))
    assert found is not None and other is not None
    assert found.columns == ("v", "w", "tags") and found.digest != other.digest


def test_an_expiry_publishes_nothing_about_the_marker() -> None:
    """A later INSERT may have written another marker, which keeps the row. A marker in an earlier version's expiry
    gives the time of the next look."""
    content = MutationEvents(
        node_id=NODE,
        segment_id=EXPIRY_SEGMENT_ID,
        keyspace="ks",
        table="t",
        table_id=table().table_id,
        key_schema="",
        events=(
            event(writetime_us=None, live_us=None, expiry_time_s=NOW_S, marker_expiry_s=NOW_S + 9, columns=("v",)),
        ),
    )
    due = EventsMessage(identity=b"", message_id=None, content=content).take_events()
    updated = pending(event(marker_expiry_s=NO_MARKER))
    assert said(due, None, None) == {}
    for events in (due, [*due, *updated], [*updated, *due]):
        assert said(events, (10, 20), None) == {
            "columns_expire_at": {"v": NOW_S + 20},
            "cells_expire_at": str(NOW_S + 20),
        }
    found = first(due, None, None)
    assert found is not None and (found.second, found.columns) == (NOW_S + 9, ())
    assert "expires_at" not in said(due, (10, None), None)


def test_elements_that_were_added_with_a_ttl_have_a_second_of_their_own() -> None:
    """Reads show no expiry of the column; after that second the column is smaller."""
    added = UPDATE._replace(columns=("tags",), expiry_time_s=NOW_S + 30)
    found = first(pending(added), (3, None), None, tags=b"some")
    assert found is not None and (found.second, found.columns) == (NOW_S + 30, ("tags",))
    assert first(pending(added), (3, None), None) is None
