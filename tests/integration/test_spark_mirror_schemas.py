"""The job `mirror` while a table and its types change: no change is lost, and none is invented."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

import pytest

from schemas.cql_type import NativeType, UserType
from schemas.cql_value import AvroValue
from schemas.row_record import AvroSchema, record_writer
from tests.fixtures.mirror import Mirror, MirrorOf, Rows, stopped_after
from tests.fixtures.spark import DataTopic, MakeTopic, Record, table_schemas
from tests.topics.table_records import NEW, OLD

# Spark plans dozens of small jobs for a micro-batch, which take minutes on a busy machine and seconds on an idle one.
pytestmark = pytest.mark.timeout(1_500)


_STREET = {"street": "text"}
_KEPT = {"home": "place", "places": "frozen<list<frozen<place>>>", "by_name": "map<text, frozen<place>>"}
_IDS = {"table_id": OLD, "writetime": "5"}


def schemas(fields: Mapping[str, str], **columns: str) -> tuple[AvroSchema, AvroSchema]:
    """Schemas of a table with these columns, and with columns of a user type with these fields."""
    place = UserType("shop", "place", tuple(fields), tuple(map(NativeType, fields.values())))
    key: Mapping[str, Mapping[str, str]] = {"partition_key": {"pk": "text"}, "clustering": {"a": "int"}}
    return table_schemas(**key, regular={**_KEPT, **columns}, user_types={"place": place})


def written(pk: str, a: int, ids: Mapping[str, str] = _IDS, /, **value: AvroValue) -> Record:
    return Record(key={"pk": pk, "a": a}, value=value, properties=ids)


def placed(place: Mapping[str, AvroValue]) -> dict[str, AvroValue]:
    """Values for the columns that hold the user type."""
    return {"home": place, "places": [place], "by_name": {"x": place}}


def parsed(rows: Rows) -> list[Mapping[str, object]]:
    """Rows as objects: columns that were added later come last in the mirror, so the texts differ."""
    return [json.loads(each) for each in rows]


def test_a_mirror_follows_what_becomes_of_its_table(mirror_of: MirrorOf, data_topic: MakeTopic) -> None:
    """The mirror follows ADD, DROP, ALTER TYPE ADD in lists and maps, a column that is dropped and added again, DROP
    and CREATE TABLE, and CREATE TABLE WITH ID of an earlier table."""
    topic = data_topic(*schemas(_STREET, name="text", gone="text"))
    kept = mirror_of(topic)
    topic.write(written("p", 1, name="old", gone="x", **placed({"street": "Elm"})))
    topic.write(written("p", 2, name="old", **placed({"street": "Oak"})), written("q", 1, name="old"))
    kept.run()
    _check_what_is_added(kept, topic)
    rows = _check_what_is_dropped(kept, topic)
    _check_other_lives(kept, topic, len(rows))


def _check_what_is_added(kept: Mirror, topic: DataTopic) -> None:
    """Check that rows without a new record are not updated."""
    _, wider = schemas({**_STREET, "number": "int"}, name="text", gone="text", size="int")
    oak_7 = placed({"street": "Oak", "number": 7})
    topic.write(written("p", 2, name="old", size=3, **oak_7), written("q", 2, size=4), value_schema=wider)
    kept.run()
    elm, oak = '{"street":"Elm"}', '{"street":"Oak","number":7}'
    assert kept.rows() == [
        f'{{"pk":"p","a":1,"by_name":{{"x":{elm}}},"gone":"x","home":{elm},"name":"old","places":[{elm}]}}',
        f'{{"pk":"p","a":2,"by_name":{{"x":{oak}}},"home":{oak},"name":"old","places":[{oak}],"size":3}}',
        '{"pk":"q","a":1,"name":"old"}',
        '{"pk":"q","a":2,"size":4}',
    ]
    assert kept.replayed() == kept.open_versions() == kept.rows() == kept.wanted()
    log = kept.table("changes").selectExpr("op", "after.pk", "after.a", "before.places.number", "after.places.number")
    assert sorted(map(tuple, log.collect()), key=str) == [
        ("insert", "p", 1, None, [None]),
        ("insert", "p", 2, None, [None]),
        ("insert", "q", 1, None, None),
        ("insert", "q", 2, None, None),
        ("update", "p", 2, [None], [7]),
    ]


def _check_what_is_dropped(kept: Mirror, topic: DataTopic) -> list[Mapping[str, object]]:
    """Check DROP and ADD in one micro-batch that failed midway: all rows lose old values, and no new value is lost."""
    fields = {**_STREET, "number": "int"}
    _, before = schemas(fields, name="text", gone="text", size="int")
    _, dropped = schemas(fields, size="int")
    _, again = schemas(fields, name="text", size="int")
    assert isinstance(again, dict)
    again = {**again, "cql_registration": 1}
    topic.write(written("p", 3, name="old", gone="x", size=5), value_schema=before)
    topic.write(written("p", 4, size=6), value_schema=dropped)
    topic.write(written("p", 5, name="new", size=7), value_schema=again)
    with stopped_after("history"):
        kept.run()
    kept.run()
    assert "gone" not in kept.table("rows").columns
    elm, oak = placed({"street": "Elm"}), placed({"street": "Oak", "number": 7})
    rows: list[Mapping[str, object]] = [
        {"pk": "p", "a": 1, **elm},
        {"pk": "p", "a": 2, **oak, "size": 3},
        {"pk": "p", "a": 3, "size": 5},
        {"pk": "p", "a": 4, "size": 6},
        {"pk": "p", "a": 5, "size": 7, "name": "new"},
        {"pk": "q", "a": 1},
        {"pk": "q", "a": 2, "size": 4},
    ]
    assert parsed(kept.rows()) == parsed(kept.wanted()) == parsed(kept.open_versions()) == rows
    topic.write(written("q", 3, name="new"), value_schema=again)
    kept.run()
    rows.append({"pk": "q", "a": 3, "name": "new"})
    assert parsed(kept.rows()) == parsed(kept.open_versions()) == rows
    return rows


def _check_other_lives(kept: Mirror, topic: DataTopic, there: int) -> None:
    """Check that DROP and CREATE TABLE empty the mirror, also with the id of an earlier table."""
    _, value_schema = schemas(_STREET, size="int")
    newer = {"table_id": NEW, "writetime": "6"}
    topic.write(written("r", 9, newer, size=1), value_schema=value_schema)
    summary = kept.run()
    assert (summary.inserted, summary.deleted) == (1, there)
    assert kept.rows() == kept.wanted() == ['{"pk":"r","a":9,"size":1}']
    # The old id comes back (`WITH ID`), and then a late record of the table in between.
    back = {**_IDS, "table_generation": "2000000000000000"}
    topic.write(written("r", 7, back, size=2), written("r", 8, newer, size=3), value_schema=value_schema)
    summary = kept.run()
    assert (summary.inserted, summary.deleted) == (1, 1)
    assert kept.rows() == ['{"pk":"r","a":7,"size":2}']
    assert kept.replayed() == kept.open_versions() == kept.rows()


@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.spark_line("==4.1"))])
def test_fields_of_a_user_type_have_their_new_names_in_all_rows(
    mirror_of: MirrorOf, data_topic: MakeTopic, table_format: str
) -> None:
    """ALTER TYPE RENAME is no change of a row: rows, history and change log keep the values of earlier records."""
    topic = data_topic(*schemas(_STREET, name="text"))
    kept = mirror_of(topic)
    topic.write(written("p", 1, name="old", **placed({"street": "Elm"})))
    topic.write(written("p", 2, **placed({"street": "Oak"})), written("q", 1, **placed({"street": "Ash"})))
    kept.run(table_format=table_format)
    _, renamed = schemas({"road": "text", "number": "int"}, name="text")
    topic.write(written("p", 2, **placed({"road": "Oak", "number": 7})), value_schema=renamed)
    rows: list[Mapping[str, object]] = [
        {"pk": "p", "a": 1, "name": "old", **placed({"road": "Elm"})},
        {"pk": "p", "a": 2, **placed({"road": "Oak", "number": 7})},
        {"pk": "q", "a": 1, **placed({"road": "Ash"})},
    ]
    assert parsed(kept.wanted()) == parsed(kept.fresh()) == rows
    summary = kept.run()
    assert (summary.inserted, summary.updated, summary.deleted) == (0, 1, 0)
    assert parsed(kept.rows()) == parsed(kept.open_versions()) == rows
    assert sorted(parsed(kept.replayed()), key=str) == sorted(rows, key=str)
    log = kept.table("changes").where("op = 'update'").selectExpr("before.home.road", "after.home", "after.places.road")
    assert [tuple(row) for row in log.collect()] == [("Oak", ("Oak", 7), ["Oak"])]


def keyed(*fields: str) -> tuple[AvroSchema, AvroSchema]:
    """Schemas of a table with a clustering column of a user type with these fields, and another one behind it."""
    spot = UserType("shop", "spot", fields, tuple(NativeType("int") for _ in fields))
    key: Mapping[str, Mapping[str, str]] = {
        "partition_key": {"pk": "text"},
        "clustering": {"at": "frozen<spot>", "c": "text"},
    }
    return table_schemas(**key, regular={"v": "int"}, user_types={"spot": spot})


def test_a_row_stays_one_row_when_a_user_type_in_its_key_grows(mirror_of: MirrorOf, data_topic: MakeTopic) -> None:
    """ALTER TYPE ADD gives later keys more bytes. A later record, a deletion and a range are about the earlier row."""
    earlier, later = keyed("x"), keyed("x", "y")
    topic = data_topic(*earlier)
    kept = mirror_of(topic)

    def write(schemas: tuple[AvroSchema, AvroSchema], *records: Record) -> None:
        topic.writer.write(topic.name, *schemas, records)

    def of(x: int, v: int | None, **more: AvroValue) -> Record:
        value: Mapping[str, AvroValue] | None = None if v is None else {"v": v}
        kind = {"kind": "row" if value else "row_deletion"}
        return Record(key={"pk": "p", "at": {"x": x, **more}, "c": "c"}, value=value, properties={**_IDS, **kind})

    write(earlier, *[of(x, x) for x in range(5)])
    kept.run()
    write(later, of(0, 10, y=None), of(1, None, y=None), of(2, 12, y=7))
    three = base64.b64encode(record_writer(later[0])({"pk": "p", "at": {"x": 3, "y": None}, "c": None})).decode()
    bounds = {"range_start": three, "range_end": three, "range_start_inclusive": "true", "range_end_inclusive": "true"}
    marker = {**_IDS, **bounds, "kind": "range_deletion", "deletion_time": "5"}
    write(later, Record(key={"pk": "p"}, properties=marker))
    rows = [((0, None), 10), ((2, None), 2), ((2, 7), 12), ((4, None), 4)]
    wanted = [{"pk": "p", "c": "c", "at": {"x": x} if y is None else {"x": x, "y": y}, "v": v} for (x, y), v in rows]

    def sorted_rows(found: Rows) -> list[Mapping[str, object]]:
        return sorted(parsed(found), key=str)

    assert sorted_rows(kept.wanted()) == sorted_rows(kept.fresh()) == sorted(wanted, key=str)
    summary = kept.run()
    assert (summary.inserted, summary.updated, summary.deleted) == (1, 1, 2)
    for each in (kept.rows(), kept.open_versions(), kept.replayed()):
        assert sorted_rows(each) == sorted(wanted, key=str)
    plain = mirror_of(topic, "plain")
    plain.run(changelog=False, history=False)
    assert sorted_rows(plain.rows()) == sorted(wanted, key=str)
    write(earlier, of(4, None))
    for mirror in (kept, plain):
        mirror.run(changelog=mirror is kept, history=mirror is kept)
        assert len(mirror.rows()) == 3
