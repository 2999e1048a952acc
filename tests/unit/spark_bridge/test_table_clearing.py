"""Truncations and drops in Spark: the connector's records, and the rule compared with the fault kit's oracle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.cql_value import AvroValue
from schemas.row_record import record_writer
from source_connector.tables.schema_changes import SCHEMA_CHANGE_SCHEMA
from spark_bridge.rows.cleared import clears, of_life
from spark_bridge.rows.table_lives import TableLife
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.table_clearing import TableClearing, clearing_of, seen_table_of
from tests.fault_kit.oracle import folding
from tests.fault_kit.oracle.topics import Clearing, DataRecord

IDS: Final = ("a5559b20-e53e-11f1-a9d7-973e92e688cb", "b5559b20-e53e-11f1-a9d7-973e92e688cb")
TIMES_MS: Final = st.integers(1, 3)
POSITIONS: Final = st.tuples(st.integers(1, 3), st.integers(0, 2))
CLEARINGS: Final = st.builds(
    TableClearing,
    kind=st.sampled_from(["truncation", "drop"]),
    table_id=st.sampled_from(IDS),
    table_generation=st.none() | st.integers(1, 2),
    time_ms=TIMES_MS,
    nodes=st.just((("n", 1, 2),)),
    data_topic=st.just("persistent://public/default/data-shop.t"),
    positions=st.lists(st.none() | POSITIONS, min_size=1, max_size=3).map(tuple),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(CLEARINGS, max_size=3),
    st.sampled_from(IDS),
    st.none() | st.integers(1, 2),
    st.integers(0, 3),
    POSITIONS,
    st.none() | st.builds(lambda time_ms, by: time_ms * 1_000 + by, TIMES_MS, st.integers(-1, 1)),
    st.booleans(),
)
def test_the_same_records_are_gone_as_in_the_oracle(
    clearings: Sequence[TableClearing],
    table_id: str,
    generation: int | None,
    partition: int,
    position: tuple[int, int],
    writetime_us: int | None,
    is_deletion: bool,
) -> None:
    """The cases combine kind, table, topic partition, position, write time and value, on both sides of each limit."""
    properties = {"table_id": table_id, "kind": "row"}
    if generation is not None:
        properties["table_generation"] = str(generation)
    if writetime_us is not None:
        properties["writetime"] = str(writetime_us)
    record = DataRecord(
        key_bytes=b"",
        key={},
        value={},
        value_bytes=None if is_deletion else b"",
        properties=properties,
        published_ms=0,
        partition=partition,
        position=position,
    )
    wanted = [folding._is_cleared(record, _of_oracle(each)) for each in clearings]
    mine = of_life(clearings, TableLife(table_id, generation))
    place = partition, (*position, -1), writetime_us
    assert [each in mine and clears(each, *place, is_deletion=is_deletion) for each in clearings] == wanted


def test_a_truncation_takes_a_row_whose_record_has_no_write_time() -> None:
    """After a repair or an expiry, no later record would delete the row. A deletion stays, because its row may have a
    later write time."""
    (clearing,) = [clearing_of(_record())]
    assert clearing is not None
    assert clears(clearing, 0, (7, 8, -1), None)
    assert not clears(clearing, 0, (7, 8, -1), None, is_deletion=True)
    assert not clears(clearing, 0, (7, 9, -1), None)


def test_a_topic_without_partitions_has_one_position() -> None:
    (clearing,) = [clearing_of(_record(positions=[{"ledger": 7, "entry": 2}]))]
    assert clearing is not None
    assert [clears(clearing, -1, (7, entry, 9), 1) for entry in (1, 2, 3)] == [True, True, False]


def test_a_record_of_the_connector_is_read() -> None:
    assert clearing_of(_record()) == TableClearing(
        kind="truncation",
        table_id=IDS[0],
        table_generation=5,
        time_ms=1_700_000_000_000,
        nodes=(("n1", 11, 12),),
        data_topic="persistent://public/default/data-shop.t",
        positions=((7, 8), None),
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff{",
        b"null",
        b"[]",
        b"{}",
        b'{"clearing": null}',
        b'{"clearing": {"kind": "merge"}}',
        b'{"clearing": {"kind": "drop"}}',
        b'{"clearing": "drop"}',
    ],
)
def test_what_is_no_clearing_is_skipped(data: bytes) -> None:
    assert clearing_of(data) is None


def test_of_records_about_one_truncation_the_first_one_counts() -> None:
    both = [{"node": name, "segment_id": 1, "position": 2, "time_ms": 3} for name in ("n1", "n2")]
    first, again = clearing_of(_record(nodes=both)), clearing_of(_record(nodes=both[1:], time_ms=1_700_000_000_900))
    assert first is not None
    assert again is not None
    assert again.repeats(first)
    other = clearing_of(_record(nodes=[{**both[1], "position": 9}], time_ms=1_700_000_000_900))
    assert other is not None
    assert not other.repeats(first)
    assert not first.repeats(other)


@pytest.mark.parametrize(
    ("given_options", "topic"),
    [
        ({}, "persistent://public/default/cdc-events-schema-changes"),
        ({"eventsTopicPrefix": "shop/prod/events-"}, "persistent://shop/prod/events-schema-changes"),
        ({"schemaChangesTopic": "changes"}, "persistent://public/default/changes"),
        ({"schemaChangesTopic": "none"}, None),
    ],
)
def test_the_topic_is_that_of_the_connector_unless_it_is_named(
    given_options: dict[str, str], topic: str | None
) -> None:
    needed = {"serviceUrl": "pulsar://p:6650", "adminUrl": "http://p:8080", "topic": "data-shop.t"}
    assert BridgeOptions.from_mapping({**needed, **given_options}).clearings_topic == topic


def _of_oracle(clearing: TableClearing) -> Clearing:
    return Clearing(
        table="shop.t",
        kind=clearing.kind,
        table_id=clearing.table_id,
        generation=clearing.table_generation,
        time_ms=clearing.time_ms,
        nodes={},
        positions=clearing.positions,
    )


def _record(**given_fields: Any) -> bytes:
    """The record as the connector writes it, checked against its schema."""
    clearing = {
        "kind": "truncation",
        "table_id": IDS[0],
        "table_generation": 5,
        "time_ms": 1_700_000_000_000,
        "nodes": [{"node": "n1", "segment_id": 11, "position": 12, "time_ms": 1_700_000_000_000}],
        "data_topic": "persistent://public/default/data-shop.t",
        "positions": [{"ledger": 7, "entry": 8}, None],
        **given_fields,
    }
    change = {
        "keyspace": "shop",
        "table": "t",
        "time_ms": 1,
        "changes": ["table truncated"],
        "old": None,
        "new": None,
        "clearing": clearing,
    }
    record_writer(SCHEMA_CHANGE_SCHEMA)(cast("dict[str, AvroValue]", change))
    return json.dumps(change).encode()


def test_a_table_is_seen_with_its_definition() -> None:
    """A table that is gone has none, and other records have no definition."""
    fields = {"keyspace": "shop", "table": "t", "time_ms": 5, "new": {"table_id": IDS[0]}}
    assert seen_table_of(json.dumps(fields).encode()) == ("shop.t", IDS[0], 5)
    for other in (fields | {"new": None}, fields | {"new": {}}, fields | {"time_ms": None}, {}, []):
        assert seen_table_of(json.dumps(other).encode()) is None
    assert seen_table_of(b"no record at all") is None
