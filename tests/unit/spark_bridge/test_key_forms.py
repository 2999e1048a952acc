"""Keys with a user type that grows: one row has one key, and earlier keys are read with their own schema."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final, cast

import pytest

from schemas.cql_type import NativeType, UserType
from schemas.row_record import record_writer
from spark_bridge.rows.fold import Bounds
from spark_bridge.rows.key_forms import KeyForms
from spark_bridge.rows.range_scope import RangeScope
from spark_bridge.rows.row_chain import ChainRules, Op, Said, SaidKind, Step, Texts
from spark_bridge.topics.topic_schemas import PRESENT_VERSION, AvroRecord
from tests.fixtures.spark import table_schemas


def schema(cql_type: str, *fields: str) -> AvroRecord:
    """The key's schema with a clustering column of a type that holds a user type with these fields, and another one."""
    spot = UserType("shop", "spot", fields, tuple(NativeType("int") for _ in fields))
    columns: Mapping[str, Mapping[str, str]] = {
        "partition_key": {"pk": "text"},
        "clustering": {"at": cql_type, "c": "text"},
    }
    return cast("AvroRecord", table_schemas(**columns, regular={"v": "int"}, user_types={"spot": spot})[0])


def versions(cql_type: str) -> list[tuple[int, AvroRecord]]:
    """Version 2 has one more field, and version 3 one more and another name. The present table has version 3."""
    of = [("x",), ("x",), ("x", "y"), ("x", "why", "z")]
    return [(PRESENT_VERSION, schema(cql_type, *of[3])), *[(at, schema(cql_type, *each)) for at, each in enumerate(of)]]


def key(at: AvroRecord, value: object, c: str = "c") -> bytes:
    return record_writer(cast("Any", at))(cast("Any", {"pk": "p", "at": value, "c": c}))


SPOT: Final = "frozen<spot>"
SPOTS: Final = [
    (SPOT, lambda spot: spot),
    ("frozen<list<frozen<spot>>>", lambda spot: [spot]),
    ("frozen<map<text, frozen<spot>>>", lambda spot: {"k": spot}),
    ("frozen<tuple<int, frozen<spot>>>", lambda spot: {"index_0": 1, "index_1": spot}),
]


@pytest.mark.parametrize(("cql_type", "held"), SPOTS, ids=[each for each, _ in SPOTS])
def test_a_key_has_the_form_of_the_first_version_that_can_hold_it(cql_type: str, held: Any) -> None:
    """So the records of a row have one key, before and after ALTER TYPE ADD."""
    known = versions(cql_type)
    forms, by_version = KeyForms(known), dict(known)
    assert forms.differ
    one = key(by_version[0], held({"x": 1}))
    for version in (0, 1):
        assert forms.of(key(by_version[version], held({"x": 1})), version) == (one, 0)
    assert forms.of(key(by_version[2], held({"x": 1, "y": None})), 2) == (one, 0)
    for version in (3, PRESENT_VERSION):
        assert forms.of(key(by_version[version], held({"x": 1, "why": None, "z": None})), version) == (one, 0)
    two = key(by_version[2], held({"x": 1, "y": 2}))
    assert forms.of(two, 2) == (two, 2)
    for version in (3, PRESENT_VERSION):
        assert forms.of(key(by_version[version], held({"x": 1, "why": 2, "z": None})), version) == (two, 2)
    three = key(by_version[3], held({"x": None, "why": None, "z": 3}))
    assert [forms.of(three, each) for each in (3, PRESENT_VERSION)] == [(three, 3)] * 2


def test_a_key_that_no_version_can_read_stays() -> None:
    forms = KeyForms(versions(SPOT))
    assert [forms.of(b"\x08", each) for each in (2, 9)] == [(b"\x08", 2), (b"\x08", 9)]


def test_keys_of_other_types_stay() -> None:
    """A table that was made again with another key, and columns that were renamed or added beside the key."""
    other = table_schemas(partition_key={"pk": "text"}, clustering={"at": "int"})[0]
    known = [(0, cast("AvroRecord", other)), *[(at + 1, each) for at, each in versions(SPOT)[1:]]]
    spot = {"x": 1, "y": None}
    assert KeyForms(known).of(key(known[3][1], spot), 3) == (key(known[1][1], {"x": 1}), 1)
    assert not KeyForms([(0, schema(SPOT, "x")), (1, schema(SPOT, "ex"))]).differ


def bounds(version: int, at: AvroRecord, spot: Mapping[str, int | None]) -> Bounds:
    """The range with one spot, of all rows with it."""
    bound = base64.b64encode(record_writer(cast("Any", at))(cast("Any", {"pk": "p", "at": spot, "c": None}))).decode()
    return Bounds(bound, bound, "true", "true", "[]", None, version)


def test_a_range_covers_keys_of_earlier_versions() -> None:
    """For Cassandra, a field that is missing is null."""
    known = dict(versions(SPOT)[1:])
    covers = RangeScope(list(known.items()))
    later, earlier = bounds(2, known[2], {"x": 1, "y": None}), bounds(0, known[0], {"x": 1})
    for each in (later, earlier):
        assert covers(each, key(known[0], {"x": 1}), 0)
        assert covers(each, key(known[2], {"x": 1, "y": None}), 2)
        assert not covers(each, key(known[0], {"x": 2}), 0)
        assert not covers(each, key(known[2], {"x": 1, "y": 0}), 2)


def test_a_range_deletion_is_a_change_of_a_row_with_an_earlier_key() -> None:
    """The row's result tells the version of its key, also if the row is gone. The newest version cannot read the key."""
    known = dict(versions(SPOT)[1:])
    gone, stays = (key(known[0], {"x": each}).hex().upper() for each in (1, 2))
    rules = ChainRules(has_clustering=True, covers=RangeScope(list(known.items())), key_version=3, gone_us=9)
    row, nothing = Texts("v", None), Texts(None, None)
    said = [
        Said(0, SaidKind.BEFORE, gone, True, (0, 0, 0, 0), row, None),
        Said(1, SaidKind.BEFORE, stays, True, (0, 0, 0, 0), row, None),
        Said(
            2,
            SaidKind.RANGE,
            "",
            False,
            (0, 1, 0, -1),
            nothing,
            7,
            bounds(3, known[3], {"x": 1, "why": None, "z": None}),
        ),
        Said(3, SaidKind.AFTER, gone, False, (0, 0, 0, 0), nothing, 7, key_version=0),
        Said(4, SaidKind.AFTER, stays, True, (0, 0, 0, 0), row, None, key_version=0),
    ]
    steps = [each for each in rules.changes(said) if isinstance(each, Step)]
    assert [(each.identity, each.op, each.changed_us, each.source) for each in steps] == [(gone, Op.DELETE, 7, 2)]
