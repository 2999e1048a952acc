"""Ranges of clustering values are compared as in Cassandra; keys are the connector's Avro."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from schemas.cql_value import AvroValue
from schemas.row_record import record_writer
from spark_bridge.rows.fold import Bounds
from spark_bridge.rows.range_scope import RangeScope
from spark_bridge.topics.topic_schemas import AvroRecord
from tests.fixtures.spark import table_schemas

VERSION = 7
# A type, and values in Cassandra's order.
ORDERS: Sequence[tuple[str, Sequence[object]]] = (
    ("int", (-(1 << 31), -1, 0, 5)),
    ("bigint", (-(1 << 63), -1, 0, 1 << 40)),
    ("text", ("", "Z", "a", "é", "\U0001f600")),
    ("blob", (b"", b"\x00", b"\x7f", b"\x80", b"\xff")),
    ("boolean", (False, True)),
    ("double", (float("-inf"), -1.5, -0.0, 0.0, 2.0, float("inf"), float("nan"))),
    ("timestamp", (-(1 << 62), -1, 0, 1 << 62)),  # Beyond the range of Python's own times.
    ("date", (-719_529, 0, 3_000_000)),
    ("varint", tuple(each.to_bytes(9, "big", signed=True) for each in (-(1 << 70), -1, 0, 255, 1 << 70))),
    (
        "decimal",
        tuple(
            {"bigint": unscaled.to_bytes(4, "big", signed=True), "scale": scale}
            for unscaled, scale in ((-12, 1), (-1, 0), (0, 3), (99, 2), (1, 0), (1, -9))
        ),
    ),
    (
        "timeuuid",  # by time, whose lowest bits stand first, then by signed bytes: from minTimeuuid to maxTimeuuid
        (
            "ffffffff-0000-1000-8000-000000000000",
            "00000000-0001-1000-8000-000000000000",
            "00000000-0001-1000-8000-000000000001",
            "00000000-0001-1001-8080-808080808080",
            "00000000-0001-1001-8005-aabbccddeeff",
            "00000000-0001-1001-bf05-aabbccddeeff",
            "00000000-0001-1001-7f7f-7f7f7f7f7f7f",
            "00000000-0000-1002-8000-000000000000",
        ),
    ),
    (
        "uuid",  # by version first
        (
            "ffffffff-ffff-1fff-bfff-ffffffffffff",
            "00000000-0000-4000-8000-000000000000",
            "00000000-0000-4000-9000-000000000000",
        ),
    ),
    ("frozen<list<int>>", ([], [1], [1, 2], [2])),
    ("frozen<map<text, int>>", ({}, {"a": 1}, {"a": 1, "b": 0}, {"a": 2}, {"b": 0})),
    (
        "frozen<tuple<int, text>>",
        ({"index_0": None, "index_1": "z"}, {"index_0": 1, "index_1": None}, {"index_0": 1, "index_1": "a"}),
    ),
)


class Table:
    """Keys of one partition of a table."""

    def __init__(self, **clustering: str) -> None:
        schema, _ = table_schemas(partition_key={"pk": "text"}, clustering=clustering, regular={"v": "int"})
        self._write = record_writer(schema)
        self.covers = RangeScope([(VERSION, cast("AvroRecord", schema))])

    def key(self, values: Mapping[str, object]) -> bytes:
        """The key with these values, and null for the others."""
        return self._write(cast("Mapping[str, AvroValue]", {"pk": "p", **values}))

    def bounds(
        self,
        start: Mapping[str, object],
        end: Mapping[str, object],
        *,
        closed: tuple[bool, bool],
        reversed_: str = "[]",
        types: str | None = None,
    ) -> Bounds:
        first, last = (base64.b64encode(self.key(each)).decode() if each else None for each in (start, end))
        has_first, has_last = (str(each).lower() for each in closed)
        return Bounds(first, last, has_first, has_last, reversed_, types, VERSION)


@pytest.mark.parametrize(("cql_type", "values"), ORDERS)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_values_compare_as_in_cassandra(cql_type: str, values: Sequence[object], is_reversed: bool) -> None:
    table = Table(c=cql_type)
    ordered = list(reversed(values)) if is_reversed else list(values)
    names = '["c"]' if is_reversed else "[]"
    for at, value in enumerate(ordered):
        for closed in (False, True):
            behind = table.bounds({"c": value}, {}, closed=(closed, False), reversed_=names)
            before = table.bounds({}, {"c": value}, closed=(False, closed), reversed_=names)
            keys = [table.key({"c": each}) for each in ordered]
            first, last = at + (not closed), at + closed
            assert [table.covers(behind, each, VERSION) for each in keys] == [n >= first for n in range(len(keys))]
            assert [table.covers(before, each, VERSION) for each in keys] == [n < last for n in range(len(keys))]


@pytest.mark.parametrize(
    ("cql_type", "values"),
    [
        (
            "inet",  # by bytes: 4 or 16 of them
            ("0:0:0:0:0:ffff:a00:1", "9.0.0.0", "10.0.0.1", "10.0.0.20", "2001:db8:0:0:0:0:0:1", "100.0.0.0"),
        ),
        (
            "uuid",
            (
                "00000000-0001-1000-8000-000000000000",
                "00000000-0000-1001-7f7f-7f7f7f7f7f7f",
                "00000000-0000-1001-8080-808080808080",
                "00000000-0000-4000-8000-000000000000",
            ),
        ),
    ],
)
def test_a_type_that_avro_does_not_show_is_told_by_the_marker(cql_type: str, values: Sequence[str]) -> None:
    """Also for keys of a later schema version, in which the column has another name."""
    table, types = Table(c=cql_type), json.dumps({"c": cql_type})
    schemas = [table_schemas(partition_key={"pk": "text"}, clustering={each: cql_type}, regular={})[0] for each in "cd"]
    covers = RangeScope([(VERSION + at, cast("AvroRecord", each)) for at, each in enumerate(schemas)])
    for at, value in enumerate(values):
        bounds = table.bounds({"c": value}, {}, closed=(True, False), types=types)
        for version in (VERSION, VERSION + 1):
            found = [covers(bounds, table.key({"c": each}), version) for each in values]
            assert found == [n >= at for n in range(len(values))]


def test_addresses_are_texts_where_no_type_is_told() -> None:
    """In markers of earlier versions."""
    table = Table(c="inet")
    nine, ten = ({"c": each} for each in ("9.0.0.0", "10.0.0.1"))
    assert not table.covers(table.bounds(nine, {}, closed=(True, False)), table.key(ten), VERSION)
    told = table.bounds(nine, {}, closed=(True, False), types='{"c":"inet"}')
    assert table.covers(told, table.key(ten), VERSION)


def test_two_columns_may_have_the_same_named_type() -> None:
    """The second column only names the record `cql_decimal`, which has no namespace."""
    table = Table(a="decimal", b="decimal")
    low, high = ({"bigint": bytes([each]), "scale": 0} for each in (1, 2))
    bounds = table.bounds({"a": low, "b": high}, {}, closed=(True, False))
    covered = [table.covers(bounds, table.key({"a": low, "b": each}), VERSION) for each in (low, high)]
    assert covered == [False, True]


def test_a_bound_may_be_a_prefix() -> None:
    """All rows of a prefix are between its inclusive bounds, and none between its exclusive ones."""
    table = Table(a="int", b="text")
    keys = [table.key({"a": a, "b": b}) for a in (1, 2, 3) for b in ("", "x")]

    def covered(start: Mapping[str, object], end: Mapping[str, object], *closed: bool) -> list[int]:
        bounds = table.bounds(start, end, closed=(closed[0], closed[1]))
        return [at for at, key in enumerate(keys) if table.covers(bounds, key, VERSION)]

    assert covered({"a": 2}, {"a": 2}, True, True) == [2, 3]
    assert covered({"a": 2}, {"a": 2}, False, True) == []
    assert covered({"a": 1}, {"a": 3}, False, False) == [2, 3]
    assert covered({"a": 1, "b": ""}, {"a": 3, "b": "x"}, False, False) == [1, 2, 3, 4]
    assert covered({}, {"a": 1}, False, True) == [0, 1]
    assert covered({}, {}, False, False) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("names", ["[]", '["b"]'], ids=["ascending", "descending"])
def test_an_empty_value_comes_before_all_others(names: str) -> None:
    """As of `blobAsInt(0x)`, or of a column that a row of COMPACT STORAGE does not have: it is null in the key."""
    table = Table(a="int", b="int")
    empty, low = table.key({"a": 1}), table.key({"a": 1, "b": -5})
    bounds = [
        table.bounds({"a": 1, "b": -9}, {"a": 1}, closed=(True, True), reversed_=names),
        table.bounds({"a": 1}, {"a": 1, "b": -9}, closed=(True, True), reversed_=names),
        table.bounds({"a": 1}, {"a": 1}, closed=(True, True), reversed_=names),
    ]
    covered = [[table.covers(each, key, VERSION) for each in bounds] for key in (empty, low)]
    is_last = names != "[]"
    assert covered == [[is_last, not is_last, True], [not is_last, is_last, True]]
