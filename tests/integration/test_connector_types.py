"""Every CQL type in every place that allows it, in the three formats, compared with the values of SELECT."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from cassandra.cluster import Session

from cdc.rest import rest
from cdc.sandbox import artifacts
from cdc.sandbox.prerequisites import java_home
from schemas.table_metadata import ColumnMetadata
from tests.cql.forms import consumer_form, from_json, sorted_sets
from tests.fixtures.connector import DeployConnector, OpenDataTopic, OpenEventsWriter
from tests.servers.interface import PulsarServer
from tests.topics.data_topic import DataTopic
from tests.topics.events_topic import wait_until
from tests.topics.events_writer import EventsWriter

_FORMATS: Final = ("key-value-avro", "key-value-json", "json")
_JAVA: Final = Path(__file__).parent.parent / "java" / "AutoConsume.java"
# Type and literal; other connectors get negative numbers, fractions below a microsecond and addresses wrong.
_SCALARS: Final = {
    "ascii": "'abc'",
    "bigint": "-5000000000",
    "blob": "0xcafe00",
    "boolean": "true",
    "date": "'1969-12-31'",
    "decimal": "-1.50",
    "double": "1.5",
    "float": "-2.25",
    "inet": "'2001:db8::1'",
    "int": "-70000",
    "smallint": "-300",
    "text": "'hé\"llo'",
    "time": "'01:02:03.123456789'",
    "timestamp": "1609459200123",
    "timeuuid": "50554d6e-29bb-11e5-b345-feff819cdc9f",
    "tinyint": "-5",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "varint": "-123456789012345678901234567890",
}
# Places that allow a type: column prefix -> (type, literal).
_PLACES: Final = {
    "v": ("{t}", "{x}"),
    "l": ("list<{t}>", "[{x}, {x}]"),
    "s": ("set<{t}>", "{{{x}}}"),
    "mk": ("map<{t}, int>", "{{{x}: 1}}"),
    "mv": ("map<text, {t}>", "{{'a': {x}}}"),
    "t": ("tuple<{t}, {t}>", "({x}, null)"),
    "ll": ("list<frozen<list<{t}>>>", "[[{x}], []]"),
    "ms": ("map<text, frozen<set<{t}>>>", "{{'a': {{{x}}}}}"),
    "mm": ("map<text, frozen<map<{t}, {t}>>>", "{{'a': {{{x}: {x}}}}}"),
    "st": ("set<frozen<tuple<{t}, text>>>", "{{({x}, 'b')}}"),
    "tl": ("tuple<int, frozen<list<{t}>>>", "(1, [{x}])"),
    "tk": ("map<frozen<tuple<{t}, int>>, int>", "{{({x}, 1): 2}}"),
}
_NOT_COMPARABLE: Final = {"duration": "-1mo2d3ns"}
_NAMES: Final = {
    "Mixed": "int",
    "a b": "text",
    "a_u0020_b": "text",
    "1st": "int",
    "naïve": "int",
    "select": "int",
    "string": "text",
    "INT32": "int",
    "bytes": "blob",
    "boolean": "boolean",
    "timestamp": "timestamp",
    "none": "int",
}
_AVRO_NAMES: Final = {"a b": "a_u0020_b_2", "1st": "_1st", "naïve": "na_u00ef_ve"}


def _columns() -> dict[str, tuple[str, str]]:
    """Column -> (type, literal), without the key's columns and those of `_NAMES`."""
    columns = {
        f"{prefix}_{name}": (cql_type.format(t=name), text.format(x=literal))
        for prefix, (cql_type, text) in _PLACES.items()
        for name, literal in _SCALARS.items()
    }
    for prefix in ("v", "l", "mv", "t", "ll", "tl"):
        cql_type, text = _PLACES[prefix]
        for name, literal in _NOT_COMPARABLE.items():
            columns[f"{prefix}_{name}"] = cql_type.format(t=name), text.format(x=literal)
    whole = "{" + ", ".join(f"f_{name}: {literal}" for name, literal in _SCALARS.items()) + "}"
    return columns | {
        "u": ("all_of_them", whole),
        "u_frozen": ("frozen<all_of_them>", whole),
        "u_part": ("all_of_them", "{f_int: 1}"),
        "lu": ("list<frozen<all_of_them>>", f"[{whole}]"),
        "mu": ("map<text, frozen<all_of_them>>", f"{{'a': {whole}}}"),
        "tu": ("tuple<int, frozen<all_of_them>>", f"(1, {whole})"),
        "ul": ("frozen<of_collections>", "{lt: [1609459200123], mi: {'a': '10.0.0.1'}, \"S t\": {(1, 'a')}}"),
        "uk": ('map<frozen<"My Type">, int>', '{{"Fa": 3, "f b": \'x\'}: 1}'),
        "um": ('frozen<"My Type">', '{"Fa": 3, "f b": \'x\'}'),
        "string_type": ("frozen<string>", "{f: 'a'}"),
        "table_type": ("frozen<t>", "{f: 'a'}"),
        "vec": ("vector<float, 3>", "[1.5, 2.5, -3]"),
        "vec_text": ("vector<text, 2>", "['a', 'b']"),
    }


def _key_columns() -> list[str]:
    return [f"k_{name}" for name in _SCALARS]


@pytest.fixture
def table(cql: Session, keyspace: str) -> str:
    """The table `t` with about 250 columns; its key has every type that a key allows."""
    fields = ", ".join(f"f_{name} {name}" for name in _SCALARS)
    cql.execute(f"CREATE TYPE {keyspace}.all_of_them ({fields})")
    cql.execute(
        f"CREATE TYPE {keyspace}.of_collections "
        '(lt frozen<list<timestamp>>, mi frozen<map<text, inet>>, "S t" frozen<set<frozen<tuple<int, text>>>>)'
    )
    cql.execute(f'CREATE TYPE {keyspace}."My Type" ("Fa" int, "f b" text)')
    cql.execute(f"CREATE TYPE {keyspace}.string (f text)")
    cql.execute(f"CREATE TYPE {keyspace}.t (f text)")
    columns = [f"{name} {cql_type}" for name, (cql_type, _) in _columns().items()]
    columns += [f"k_{name} {name}" for name in _SCALARS] + [f'"{name}" {each}' for name, each in _NAMES.items()]
    partition, clustering = _key_columns()[:9], _key_columns()[9:]
    key = f"PRIMARY KEY (({', '.join(partition)}), {', '.join(clustering)})"
    cql.execute(f"CREATE TABLE {keyspace}.t ({', '.join(columns)}, {key})")
    return f"{keyspace}.t"


def _insert(cql: Session, table: str) -> None:
    """Insert one row with all columns, and one with only its key."""
    values = {name: text for name, (_, text) in _columns().items()}
    values |= {f"k_{name}": literal for name, literal in _SCALARS.items()}
    values |= {f'"{name}"': _literal(each) for name, each in _NAMES.items()}
    cql.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(values.values())}) USING TIMESTAMP 9")
    only_key = {f"k_{name}": literal for name, literal in _SCALARS.items()} | {"k_tinyint": "7"}
    cql.execute(f"INSERT INTO {table} ({', '.join(only_key)}) VALUES ({', '.join(only_key.values())})")


def _literal(cql_type: str) -> str:
    return {"int": "4", "text": "'x'", "blob": "0x01", "boolean": "false", "timestamp": "0"}[cql_type]


def _key_bytes(cql: Session, table: str, row: Any) -> list[bytes]:
    """The CQL bytes of a row's key, as the driver encodes them."""
    where = " AND ".join(f"{name} = ?" for name in _key_columns())
    values = [row[name] for name in _key_columns()]
    return list(cql.prepare(f"SELECT k_int FROM {table} WHERE {where}").bind(values).values)


def _rows(cql: Session, table: str) -> list[dict[str, Any]]:
    result = cql.execute(f"SELECT * FROM {table}")
    return [dict(zip(result.column_names, row, strict=True)) for row in result]


def _wait_for_subscriptions(admin_url: str, topic: str, count: int) -> None:
    url = f"{admin_url}/admin/v2/{topic.replace('://', '/')}/partitioned-stats"

    def are_there() -> bool:
        found = rest().get(url, timeout=30).raise_for_status().json()["subscriptions"]
        return sum(bool(each.get("consumers")) for each in found.values()) == count

    wait_until(are_there, f"{count} connectors on {topic}")


def _expected(columns: tuple[ColumnMetadata, ...], row: dict[str, Any]) -> dict[str, Any]:
    return {_AVRO_NAMES.get(each.name, each.name): consumer_form(each.type, row[each.name]) for each in columns}


def _found(columns: tuple[ColumnMetadata, ...], record: dict[str, Any] | None, *, is_json: bool) -> dict[str, Any]:
    assert record is not None
    convert = from_json if is_json else sorted_sets
    return {name: convert(column.type, record[name]) for name, column in zip(record, columns, strict=True)}


def _java(pulsar_url: str, topics: list[str], count: int) -> list[list[str]]:
    """The lines that AUTO_CONSUME prints for each topic."""
    class_path = str(artifacts.pulsar_distribution() / "lib" / "*")
    command = [
        str(java_home() / "bin" / "java"),
        "-XX:TieredStopAtLevel=1",
        "-Dstdout.encoding=UTF-8",
        "-cp",
        class_path,
    ]
    command += [str(_JAVA), pulsar_url, *(word for topic in topics for word in (topic, str(count)))]
    done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    printed = [text for text in done.stdout.decode().splitlines() if text.startswith("key ")]
    assert len(printed) == count * len(topics), done.stderr.decode()
    return [printed[at : at + count] for at in range(0, len(printed), count)]


def test_every_type_in_every_place_and_format_is_what_select_gives(
    cql: Session,
    table: str,
    pulsar: PulsarServer,
    deploy_connector: DeployConnector,
    open_data_topic: OpenDataTopic,
    open_events_writer: OpenEventsWriter,
) -> None:
    """One row with about 250 columns: 18 types in 12 places and in the key, user types, vectors, names of all kinds."""
    keyspace, _, name = table.partition(".")
    _insert(cql, table)
    rows = _rows(cql, table)
    writer = open_events_writer(keyspace, name, partitions=1)
    topics = _deploy(deploy_connector, open_data_topic, keyspace)
    _wait_for_subscriptions(pulsar.admin_url, writer.topic, 3)
    writer.send(*(_event(writer, cql, table, row) for row in rows))
    key, values = writer.table.primary_key, writer.table.value_columns
    for data_format, topic in topics.items():
        is_json = data_format != "key-value-avro"
        columns = key + values if data_format == "json" else values
        records = {record.key["k_tinyint"]: record for record in topic.next(2)}
        for row in rows:
            record = records[row["k_tinyint"]]
            assert _found(key, dict(record.key), is_json=is_json) == _expected(key, row), data_format
            found, expected = _found(columns, record.value, is_json=is_json), _expected(columns, row)
            different = {each: (found[each], expected[each]) for each in expected if found.get(each) != expected[each]}
            assert not different, data_format
            assert list(record.value or {}) == list(expected)
            assert record.properties["kind"] == "row"
    for printed in _java(pulsar.service_url, [topic.name for topic in topics.values()], 2):
        assert all("k_smallint=-300" in line or '"k_smallint":-300' in line for line in printed)
        assert sum("a_u0020_b_2=x" in line for line in printed) == 1


def _deploy(deploy: DeployConnector, open_topic: OpenDataTopic, keyspace: str) -> dict[str, DataTopic]:
    topics = {}
    for number, data_format in enumerate(_FORMATS):
        topics[data_format] = open_topic(f"{keyspace}.t-{data_format}")
        subscription = "sub" if number == 0 else f"sub-{number}"
        deploy(
            keyspace,
            "t",
            settings={"topicName": topics[data_format].name},
            outputFormat=data_format,
            events__subscription__name=subscription,
        )
    return topics


def _event(writer: EventsWriter, cql: Session, table: str, row: dict[str, Any]) -> Any:
    return writer.event(*_key_bytes(cql, table, row), writetime_us=9, columns=("v_int",))
