"""The selection of a table's columns, and the encoding of its rows as DataStax's bytes: golden files have rows of a
real Cassandra."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from schemas.cql_type import CqlType, NativeType, UserType, parse_cql_type
from schemas.hidden_columns import ColumnPattern, HiddenColumns, Hiding
from schemas.mutation_event import MutationEvent, MutationKind
from schemas.row_record import events_key_schema, record_writer, schema_text
from schemas.system_schema import tables_of
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from source_connector.data_format import DataFormat
from source_connector.encoding.projection import Projection
from source_connector.errors import DeploymentError, RowConversionError
from tests.cql.tables import table_of

_GOLDEN: Final = Path(__file__).parents[2] / "golden" / "datastax"
_CAPTURED: Final = json.loads((_GOLDEN / "types-rows.json").read_text())
_TABLES: Final = {table.name: table for table in tables_of(_CAPTURED["schema"]).values()}
_COUNTERS: Final = {"cnt"}  # DataStax leaves these out of the schema; here they are longs.


def _vectors(converter: str) -> dict[str, list[tuple[str, str]]]:
    """The captured values of each table for a converter, `avro` or `json`: (what, text), in order."""
    found: dict[str, list[tuple[str, str]]] = {}
    table = ""
    for line in (_GOLDEN / "types.txt").read_text().splitlines():
        if line.startswith("### "):
            table = line.removeprefix("### ")
            found[table] = []
        elif line.startswith(f"{converter} "):
            what, _, text = line.removeprefix(f"{converter} ").partition(" ")
            found[table].append((what, text))
    return found


def _throws(vectors: dict[str, list[tuple[str, str]]]) -> set[str]:
    return {name for name, lines in vectors.items() if {"SCHEMAFAIL", "ROWFAIL"} & dict(lines).keys()}


def _values(name: str, data_format: DataFormat = DataFormat.KEY_VALUE_AVRO) -> list[bytes]:
    projection = Projection(_TABLES[name], data_format=data_format)
    rows = [[None if each is None else bytes.fromhex(each) for each in row] for row in _CAPTURED["rows"][name]]
    width = len(projection.table.primary_key)
    return [projection.record_value(projection.group_selection, row, row[:width]) for row in rows]


_AVRO: Final = _vectors("avro")
_JSON: Final = _vectors("json")
_AVRO_THROWS: Final = _throws(_AVRO)
_JSON_THROWS: Final = _throws(_JSON)
# For columns of these types, DataStax leaves them out of its JSON schema and writes null, or writes `/192.168.1.1`.
_JSON_WRONG: Final = {name for name in _JSON if name.startswith(("t_", "c_tuple_"))} | {
    "l_inet",
    "st_inet",
    "mv_inet",
    "ul_inet",
}


@pytest.mark.parametrize("name", sorted(_AVRO.keys() - _AVRO_THROWS - _COUNTERS))
def test_schemas_and_values_are_those_of_datastax(name: str) -> None:
    """The texts of both schemas, and the bytes of every row, are equal for every type that DataStax handles."""
    projection = Projection(_TABLES[name])
    captured = dict(_AVRO[name])
    assert projection.key_schema == captured["keyschema"]
    assert projection.value_schema == captured["valschema"]
    assert [value.hex() for value in _values(name)] == [text for what, text in _AVRO[name] if what == "row"]


@pytest.mark.parametrize("name", sorted(_JSON.keys() - _JSON_THROWS - _COUNTERS - _JSON_WRONG))
def test_json_is_that_of_datastax(name: str) -> None:
    """The texts of the schemas, and of every row, are equal for the JSON format, too."""
    projection = Projection(_TABLES[name], data_format=DataFormat.KEY_VALUE_JSON)
    captured = dict(_JSON[name])
    assert projection.key_schema == captured["keyschema"]
    assert projection.value_schema == captured["valschema"]
    rows = [text for what, text in _JSON[name] if what == "row"]
    assert [value.decode() for value in _values(name, DataFormat.KEY_VALUE_JSON)] == rows


@pytest.mark.parametrize("name", sorted(_AVRO_THROWS | _COUNTERS))
def test_rows_that_datastax_cannot_convert_are_converted(name: str) -> None:
    """These are 27 types for which DataStax's connector throws, and counters."""
    assert all(_values(name))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l_date", '{"v":[-1]}'),
        ("l_decimal", '{"v":[{"bigint":"/2o=","scale":2}]}'),
        ("l_inet", '{"v":["192.168.1.1"]}'),
        ("l_smallint", '{"v":[-300]}'),
        ("l_time", '{"v":[3723123456]}'),
        ("l_tinyint", '{"v":[-5]}'),
        ("l_varint", '{"v":["/nEW8Ak8jB8RscD1Lg=="]}'),
        ("mv_date", '{"v":{"a":-1}}'),
        ("mk_blob", '{"v":{"0xcafe00":1}}'),
        ("c_mapk_udt", '{"v":{"{\\"n\\":1,\\"d\\":{\\"bigint\\":\\"Cg==\\",\\"scale\\":1}}":1}}'),
        ("c_list_list_ts", '{"v":[[1609459200123]]}'),
        ("c_map_list", '{"v":{"a":[1,2]}}'),
        ("t_timestamp", '{"v":{"index_0":1609459200123,"index_1":null}}'),
        ("t_duration", '{"v":{"index_0":{"months":14,"days":3,"nanoseconds":14706007008009},"index_1":null}}'),
        ("c_tuple_nested", '{"v":{"index_0":1,"index_1":{"index_0":2,"index_1":"z"}}}'),
        ("c_mixudt", '{"v":{"Fa":3}}'),
        ("cnt", '{"c":1}'),
        ("MixT", '{"Val":2,"a_u0020_b":"sp"}'),
    ],
)
def test_json_that_datastax_cannot_write_has_a_form_of_its_own(name: str, text: str) -> None:
    """The forms within containers are those outside; tuples are objects, and counters are numbers."""
    assert name in _JSON_THROWS | _JSON_WRONG | _COUNTERS
    assert _values(name, DataFormat.KEY_VALUE_JSON) == [text.encode()]


@pytest.mark.parametrize("name", sorted(_JSON_THROWS | _JSON_WRONG | _COUNTERS))
def test_every_row_is_json_that_its_schema_describes(name: str) -> None:
    """Every field of the row is in the schema, and the text is JSON."""
    schema = json.loads(Projection(_TABLES[name], data_format=DataFormat.JSON).value_schema)
    names = [field["name"] for field in schema["fields"]]
    assert [list(json.loads(value)) for value in _values(name, DataFormat.JSON)] == [names] * len(_values(name))


def test_most_types_are_compared() -> None:
    """The golden files have 188 tables; the other connector cannot convert 27 of them to Avro and 32 to JSON."""
    assert (len(_AVRO), len(_AVRO_THROWS), len(_JSON), len(_JSON_THROWS)) == (188, 27, 188, 32)


def test_the_format_json_holds_key_and_value_in_one_object() -> None:
    """As captured: the key's columns come first, static rows lack clustering columns, and `{}` is a missing row."""
    projection = Projection(_TABLES["stat"], data_format=DataFormat.JSON)
    a, b, c, d = (each.encode() for each in "abcd")
    assert projection.key_schema == ""
    assert [field["name"] for field in json.loads(projection.value_schema)["fields"]] == ["a", "b", "c", "d"]
    assert projection.record_key((a, b)) == b'{"a":"a","b":"b"}'
    assert projection.record_value(projection.row_selection, (c, d), (a, b)) == b'{"a":"a","b":"b","c":"c","d":"d"}'
    assert projection.record_key((a,)) == b'{"a":"a","b":null}'
    assert projection.record_value(projection.static_selection, (d,), (a,)) == b'{"d":"d"}'
    assert projection.deleted == b"{}"


def _column(name: str, kind: ColumnKind, cql_type: str = "int", position: int = -1) -> ColumnMetadata:
    parsed: CqlType = parse_cql_type(cql_type, {})
    return ColumnMetadata(name=name, kind=kind, type=parsed, position=position)


def _table(*, static: bool = True, values: bool = True) -> TableMetadata:
    return table_of(
        {"pk": "int"},
        {"c k": "int"},
        static={"s": "int"} if static else {},
        regular={"list": "list<int>", "v": "int"} if values else {},
        name="ks.T",
    )


ONE, TWO = b"\0\0\0\1", b"\0\0\0\2"


def test_names_are_quoted_and_write_times_and_ttls_asked_for_where_cassandra_knows_them() -> None:
    """Cassandra refuses WRITETIME and TTL for key columns and for collections that are not frozen."""
    projection = Projection(_table())
    assert projection.select(projection.row_selection, projection.row_where) == (
        'SELECT "list", "v", "s", WRITETIME("v"), TTL("v"), now() FROM "ks"."T" WHERE "pk" = ? AND "c k" = ?'
    )
    assert projection.select(projection.static_selection, projection.partition_where) == (
        'SELECT "s", WRITETIME("s"), TTL("s"), now() FROM "ks"."T" WHERE "pk" = ?'
    )


def test_columns_that_are_not_wanted_are_not_selected_but_still_prove_a_read() -> None:
    """The option `columns` is a regular expression on whole names."""
    projection = Projection(_table(), columns="list")
    assert projection.row_selection.text == 'SELECT "list", WRITETIME("v"), TTL("v"), now()'
    assert projection.static_selection.value_columns == ()
    assert [field["name"] for field in json.loads(projection.value_schema)["fields"]] == ["list"]


def test_columns_that_leave_nothing_are_refused() -> None:
    """A record without fields would be zero bytes, which means a deletion on the wire."""
    with pytest.raises(DeploymentError, match=r"columns: 'x.\*' matches no value column of ks.T"):
        Projection(_table(), columns="x.*")


def test_a_table_of_keys_only_repeats_its_key_in_the_value() -> None:
    """Nothing else distinguishes an existing row from a missing one."""
    projection = Projection(_table(static=False, values=False))
    assert projection.row_selection.text == 'SELECT "pk", "c k"'
    assert projection.record_value(projection.row_selection, (ONE, TWO), (ONE, TWO)) == b"\x02\x02\x04"
    assert projection.record_value(projection.scope_selection, (ONE, TWO), (ONE, TWO)) == b"\x02\x02\x04"


def test_missing_clustering_values_are_null_in_a_key() -> None:
    """Static rows and deletions of many rows have no clustering values, and bounds have some."""
    projection = Projection(_table())
    assert projection.avro_key((ONE,)) == b"\x02\x00"
    assert projection.avro_key((ONE, TWO)) == b"\x02\x02\x04"


def test_a_value_that_is_none_of_its_type_names_the_row() -> None:
    """The error concerns only this row, and names the row and the reason on one line."""
    projection = Projection(_table())
    with pytest.raises(
        RowConversionError, match=r"^row 00000001 00000002 of ks.T cannot be converted: .*int"
    ) as raised:
        projection.record_value(projection.group_selection, (ONE, TWO, None, b"\1", None, None), (ONE, TWO))
    assert raised.value.key == "00000001 00000002"


def test_each_kind_of_event_has_its_selection() -> None:
    """Rows are selected by their key, the static row alone, and rows with their keys for deletions of many rows."""
    projection = Projection(_table())
    assert projection.selection_for(MutationKind.ROW_DELETION) is projection.row_selection
    assert projection.selection_for(MutationKind.STATIC_ROW) is projection.static_selection
    assert projection.selection_for(MutationKind.RANGE_DELETION) is projection.scope_selection
    assert projection.selection_for(MutationKind.PARTITION_DELETION) is projection.scope_selection


_HASH_KEY: Final = b"0123456789abcdef0123456789abcdef"
_HASH_OF_ONE: Final = "35f4de17037e6bda7c5405ab920c2fbab00399741622a75b8d89a64e9230a911"


def _hiding(data_format: DataFormat = DataFormat.KEY_VALUE_AVRO, **options: str) -> Projection:
    patterns = [ColumnPattern.parse(Hiding(f"columns.{name}"), each) for name, each in options.items()]
    return Projection(_table(), data_format=data_format, hidden=HiddenColumns(patterns=patterns, hash_key=_HASH_KEY))


def test_what_is_hidden_is_hidden_in_each_format_and_so_says_the_schema() -> None:
    """This holds for the key, the value, the static row and the bounds of a range. A hashed int is a string."""
    row = (ONE, TWO, None, ONE, None, None)
    for data_format in DataFormat:
        projection = _hiding(data_format, hash="ks.T.pk", mask="ks.T.v", drop="ks.T.list")
        fields = {each["name"]: each["type"] for each in json.loads(projection.value_schema)["fields"]}
        assert "list" not in fields and fields["v"] == ["null", "string"]
        key, value = (
            projection.record_key((ONE, TWO)),
            projection.record_value(projection.group_selection, row[:2] + row[3:], (ONE, TWO)),
        )
        assert _HASH_OF_ONE.encode() in key and b"****" in value and ONE not in key + value
    avro = _hiding(hash="ks.T.pk", mask="ks.T.s")
    assert avro.avro_key((ONE,)) == b"\x80\x01" + _HASH_OF_ONE.encode() + b"\0"
    assert json.loads(avro.key_schema)["fields"][0]["type"] == "string"
    assert avro.static_value(avro.static_selection, (ONE, None, None), (ONE,)).endswith(b"\x02\x08****")
    assert avro.row_value(avro.row_selection, (None, TWO, ONE), ONE, (TWO,)) == b"\x00\x02\x04\x02\x08****"


def test_hidden_columns_are_read_as_before() -> None:
    """Their write times prove the read, also those of a column whose values are not selected."""
    projection = _hiding(drop="ks.T.v", hash="ks.T.pk")
    assert projection.row_selection.text == 'SELECT "list", "s", WRITETIME("v"), TTL("v"), now()'
    assert projection.multi_cell_places == Projection(_table()).multi_cell_places


def test_the_key_of_an_event_is_not_passed_on_where_its_columns_are_hidden() -> None:
    """The key in the event is not hidden."""
    event = _event()
    schema = schema_text(events_key_schema(_table()))
    assert Projection(_table()).event_key(event, schema) is event.key
    assert _hiding(hash="ks.T.v").event_key(event, schema) is event.key
    assert Projection(_table()).event_key_of((ONE, TWO)) == event.key
    assert _hiding(hash="ks.T.pk").event_key_of((ONE, TWO)) == event.key
    assert _hiding(hash="ks.T.pk").event_key(event, schema) == b"\x80\x01" + _HASH_OF_ONE.encode() + b"\x02\x04"


def _with_a_key_of(*fields: str) -> TableMetadata:
    """A table whose first clustering column has a user type with these fields of type int."""
    of_type = UserType("ks", "u", fields, tuple(NativeType("int") for _ in fields), frozen=True)
    number = parse_cql_type("int", {})
    key = ColumnMetadata(name="pk", kind=ColumnKind.PARTITION_KEY, type=number, position=0)
    first = ColumnMetadata(name="u", kind=ColumnKind.CLUSTERING, type=of_type, position=0)
    second = ColumnMetadata(name="c", kind=ColumnKind.CLUSTERING, type=number, position=1)
    return replace(_table(static=False), partition_key=(key,), clustering_key=(first, second))


def test_a_key_that_was_written_before_its_type_got_a_field_has_the_fields_of_today() -> None:
    """Without the new field, a reader would take the bytes of the next key column for it."""
    before, now = _with_a_key_of("a"), _with_a_key_of("a", "b")
    clustering = (b"\0\0\0\4" + ONE, TWO)
    event = _event()._replace(key=Projection(before).record_key((ONE, *clustering)), clustering=clustering)
    written = schema_text(events_key_schema(before))
    assert Projection(before).event_key(event, written) is event.key
    wanted = record_writer(events_key_schema(now))({"pk": 1, "u": {"a": 1, "b": None}, "c": 2})
    assert Projection(now).event_key(event, written) == wanted


def test_a_key_that_was_written_after_its_type_got_a_field_waits_for_the_definition_of_today() -> None:
    before, now = _with_a_key_of("a"), _with_a_key_of("a", "b")
    clustering = (b"\0\0\0\4" + ONE + b"\0\0\0\4" + TWO, TWO)
    event = _event()._replace(key=Projection(now).record_key((ONE, *clustering)), clustering=clustering)
    with pytest.raises(RowConversionError, match="8 bytes are after the 1 fields that are known"):
        Projection(before).event_key(event, schema_text(events_key_schema(now)))


def test_a_row_of_equal_decimals_has_one_key_in_each_format() -> None:
    """1.0 and 1.00 are one row for Cassandra. The key in an event of DataStax's agents is that of the client's bytes."""
    table = replace(_table(), clustering_key=(_column("ck", ColumnKind.CLUSTERING, "decimal", 0),))
    schema = schema_text(events_key_schema(table))
    forms = {b"\x02\x02\x02\x0a\x02": b"\0\0\0\1\x0a", b"\x02\x02\x02\x64\x04": b"\0\0\0\2\x64"}
    events = [_event()._replace(key=key, clustering=(value,)) for key, value in forms.items()]
    for data_format in DataFormat:
        assert len({Projection(table, data_format=data_format).event_key(each, schema) for each in events}) == 1
    assert {Projection(table).event_key(each, schema) for each in events} == {b"\x02\x02\x02\x01\x00"}
    assert {Projection(table).avro_key((ONE, each)) for each in forms.values()} == {b"\x02\x02\x02\x01\x00"}


def test_a_row_of_any_nan_has_one_key_in_each_format() -> None:
    """All NaN are one row for Cassandra. The key in an event of an earlier agent has the client's bytes."""
    table = replace(_table(), clustering_key=(_column("ck", ColumnKind.CLUSTERING, "double", 0),))
    schema = schema_text(events_key_schema(table))
    values = [bytes.fromhex(each) for each in ("fff8000000000000", "7ff8000000000000")]
    events = [_event()._replace(key=b"\x02\x02" + each[::-1], clustering=(each,)) for each in values]
    for data_format in DataFormat:
        assert len({Projection(table, data_format=data_format).event_key(each, schema) for each in events}) == 1
    assert {Projection(table).event_key(each, schema) for each in events} == {events[1].key}


def test_a_table_of_keys_only_repeats_the_hidden_key() -> None:
    """The key in the value must be hidden, too."""
    patterns = [ColumnPattern.parse(Hiding.HASH, "ks.T.pk")]
    hidden = HiddenColumns(patterns=patterns, hash_key=_HASH_KEY)
    projection = Projection(_table(static=False, values=False), hidden=hidden)
    value = projection.row_value(projection.row_selection, (ONE, TWO), ONE, (TWO,))
    assert value == b"\x80\x01" + _HASH_OF_ONE.encode() + b"\x02\x04"


def test_an_error_does_not_show_a_hidden_key() -> None:
    """The error is logged."""
    projection = _hiding(hash="ks.T.pk")
    with pytest.raises(RowConversionError, match=r"^row \(hidden\) of ks.T cannot be converted"):
        projection.record_value(projection.group_selection, (ONE, TWO, None, b"\1", None, None), (ONE, TWO))


def test_columns_that_cannot_be_hidden_stop_the_table() -> None:
    """The error has all reasons, on one line."""
    with pytest.raises(
        DeploymentError, match=r"columns.hash: ks.T.x matches no column of ks.T; columns.drop: ks.T.pk matches the key"
    ):
        _hiding(hash="ks.T.x", drop="ks.T.pk")
    patterns = [ColumnPattern.parse(Hiding.DROP, f"ks.T.{each}") for each in ("list", "v", "s")]
    with pytest.raises(
        DeploymentError, match=r"columns: '.\*' matches no value column of ks.T that columns.drop leaves"
    ):
        Projection(_table(), hidden=HiddenColumns(patterns=patterns))


def _event() -> MutationEvent:
    return MutationEvent(
        position=1,
        ordinal=0,
        kind=MutationKind.ROW,
        key=b"\x02\x02\x04",
        partition_key=ONE,
        clustering=(TWO,),
        digest=bytes(16),
    )
