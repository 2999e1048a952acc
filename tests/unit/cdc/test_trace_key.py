"""The key of a trace: arguments of the command become the bytes that Cassandra stores."""

from __future__ import annotations

import pytest

from cdc.health.findings import Level
from cdc.health.sources import SourceView
from cdc.trace.current_row import CurrentRow
from cdc.trace.report import difference
from cdc.trace.row_key import RowKey
from cdc.trace.topic_places import DataRecord
from schemas.cql_type import ListType, NativeType
from schemas.errors import ConfigError
from schemas.mutation_event import MutationEvent, MutationKind
from schemas.table_metadata import TableMetadata
from source_connector.data_format import DataFormat
from tests.cql.tables import table_of


def _table(*types: str, partition: int = 1) -> TableMetadata:
    columns = [(f"k{at}", name) for at, name in enumerate(types)]
    return table_of(dict(columns[:partition]), dict(columns[partition:]))


@pytest.mark.parametrize(
    ("cql_type", "word", "wanted"),
    [
        ("int", "-5", "fffffffb"),
        ("tinyint", "-5", "fb"),
        ("smallint", "300", "012c"),
        ("bigint", "1", "0000000000000001"),
        ("text", "ü", "c3bc"),
        ("text", "", ""),
        ("text", "0x41", "30783431"),
        ("ascii", "0xzz", "30787a7a"),
        ("int", "0x00000041", "00000041"),
        ("time", "23:59:59.999999999", "00004e94914effff"),
        ("blob", "0x00ff", "00ff"),
        ("boolean", "TRUE", "01"),
        ("uuid", "6ab09bec-e68e-48d9-a5f8-97e6fb4c9b47", "6ab09bece68e48d9a5f897e6fb4c9b47"),
        ("date", "1970-01-02", "80000001"),
        ("timestamp", "1970-01-01T00:00:01", "00000000000003e8"),
        ("timestamp", "1970-01-01T01:00:01+01:00", "00000000000003e8"),
        ("timestamp", "1000", "00000000000003e8"),
        ("time", "00:00:01.000000005", "000000003b9aca05"),
        ("varint", "128", "0080"),
        ("varint", "-128", "80"),
        ("decimal", "-1.25", "0000000283"),
        ("inet", "10.0.0.1", "0a000001"),
        ("double", "1", "3ff0000000000000"),
    ],
)
def test_a_word_becomes_the_bytes_of_its_type(cql_type: str, word: str, wanted: str) -> None:
    """The bytes are those that Cassandra writes."""
    assert RowKey.of_words(_table(cql_type), [word]).parts == (bytes.fromhex(wanted),)


@pytest.mark.parametrize(
    ("cql_type", "word", "said"),
    [
        ("int", "five", "KEY: k0: 'five' is no int"),
        ("int", "3000000000", "is no int"),
        ("boolean", "yes", "is no boolean"),
        ("date", "24.11.2026", "is no date"),
        ("blob", "0xzz", "is no hexadecimal number"),
        ("blob", "abc", "give its bytes as 0x"),
        ("decimal", "NaN", "is no decimal"),
        ("time", "99999999999999999999", "is no time"),
        ("time", "24:00:00", "is no time"),
        ("time", "13:99:00", "is no time"),
        ("time", "13:00:60", "is no time"),
        ("time", "13:-1:00", "is no time"),
        ("time", "13:00:00.0000000001", "is no time"),
        ("time", "1_0:00:00", "is no time"),
        ("int", "1_0", "is no int"),
        ("varint", "1_0", "is no varint"),
        ("decimal", "1_0", "is no decimal"),
        ("double", "1_0", "is no double"),
        ("bigint", "99999999999999999999", "is no bigint"),
        ("int", "0x41", "k0: 0x41 is no int"),
        ("uuid", "0x41", "k0: 0x41 is no uuid"),
        ("text", "x" * 65_536, "k0: a value of 65,536 bytes is too long; a key's value has at most 65,535"),
    ],
)
def test_a_wrong_word_is_told_with_its_column(cql_type: str, word: str, said: str) -> None:
    """The error is one line."""
    with pytest.raises(ConfigError, match=said) as raised:
        RowKey.of_words(_table(cql_type), [word])
    assert "\n" not in str(raised.value)


def test_the_longest_value_of_a_composite_key_is_taken() -> None:
    """The length of the value is an unsigned short."""
    key = RowKey.of_words(_table("text", "text", partition=2), ["x" * 65_535, "y"])
    assert key.partition_key.startswith(b"\xff\xffx")
    with pytest.raises(ConfigError, match="too long"):
        RowKey.of_words(_table("text", "text", partition=2), ["y", "x" * 65_536])


def test_the_wrong_number_of_words_is_told_with_what_the_key_is() -> None:
    """Values for the whole key or for the partition key are required."""
    with pytest.raises(
        ConfigError, match=r"2 values are given; the key of ks\.t is: k0 \(int\), k1 \(int\), k2 \(text\)"
    ):
        RowKey.of_words(_table("int", "int", "text"), ["1", "2"])


def test_a_column_of_another_type_is_given_by_its_bytes() -> None:
    """A frozen list is such a type."""
    table = table_of({"k0": ListType(NativeType("int"), frozen=True)})
    assert RowKey.of_words(table, ["0x0102"]).parts == (b"\x01\x02",)
    with pytest.raises(ConfigError, match="give its bytes"):
        RowKey.of_words(table, ["[1, 2]"])


def _event(kind: MutationKind, partition_key: bytes, *clustering: bytes) -> MutationEvent:
    return MutationEvent(
        position=1, ordinal=0, kind=kind, key=b"", partition_key=partition_key, digest=b"", clustering=clustering
    )


def test_events_that_may_have_changed_the_row_concern_it() -> None:
    """For a row: its own events and those of its whole partition. For a partition: all events."""
    row = RowKey.of_words(_table("text", "text"), ["a", "b"])
    partition = RowKey.of_words(_table("text", "text"), ["a"])
    own, beside = _event(MutationKind.ROW, b"a", b"b"), _event(MutationKind.ROW, b"a", b"c")
    wide, other = _event(MutationKind.PARTITION_DELETION, b"a"), _event(MutationKind.ROW, b"x", b"b")
    assert [row.concerns(each) for each in (own, beside, wide, other)] == [True, False, True, False]
    assert [partition.concerns(each) for each in (own, beside, wide, other)] == [True, True, True, False]
    assert (row.is_row, partition.is_row) == (True, False)


def test_a_decimal_is_found_in_events_that_write_it_differently() -> None:
    """1.0 and 1.00 in a clustering column are one row, and in a partition key two."""
    one, one_too, two = b"\0\0\0\1\x0a", b"\0\0\0\2\x64", b"\0\0\0\0\2"
    row = RowKey.of_words(_table("text", "decimal"), ["a", "1.0"])
    events = [_event(MutationKind.ROW, b"a", each) for each in (one, one_too, two)]
    assert [row.concerns(each) for each in events] == [True, True, False]
    partition = RowKey.of_words(_table("decimal", "text"), ["1.0", "b"])
    events = [_event(MutationKind.ROW, each, b"b") for each in (one, one_too, two)]
    assert [partition.concerns(each) for each in events] == [True, False, False]


def test_nan_is_found_in_events_that_write_it_differently() -> None:
    """All NaN in a clustering column are one row."""
    row = RowKey.of_words(_table("text", "double"), ["a", "NaN"])
    forms = [bytes.fromhex(each) for each in ("7ff8000000000000", "fff8000000000001", "3ff8000000000000")]
    events = [_event(MutationKind.ROW, b"a", each) for each in forms]
    assert [row.concerns(each) for each in events] == [True, True, False]


@pytest.mark.parametrize(
    ("options", "level"),
    [
        ({"keyspace": "ks", "table": "t"}, Level.FAILURE),
        ({"keyspace": "ks", "table": "t", "columns.hash": "v"}, Level.WARNING),
        ({"tables": ["ks.*"], "columns": {"mask": "v"}}, Level.WARNING),
        ({"keyspace": "ks", "table": "other", "columns.hash": "v"}, Level.FAILURE),
    ],
)
def test_a_source_that_hides_columns_is_no_reason_to_call_its_records_wrong(
    options: dict[str, object], level: Level
) -> None:
    """A record may differ from the row because of the source's column options."""
    key = RowKey.of_words(_table("int"), ["1"])
    row = CurrentRow(
        values={}, records={DataFormat.KEY_VALUE_AVRO: b"row"}, writetime_us=None, consistency="LOCAL_QUORUM"
    )
    source = SourceView(name="s", topic="", options=options, wanted=1, instances=(), is_stopped=False)
    record = DataRecord(place="", published_ms=0, is_marker=False, data=b"hidden", value={}, properties={})
    assert difference(key, row, [record], [source]).level is level
    equal = DataRecord(place="", published_ms=0, is_marker=False, data=b"row", value={}, properties={})
    assert difference(key, row, [equal], [source]).level is Level.OK
