"""The meaning of captured messages of DataStax's agents for a table."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from schemas.cql_type import NativeType
from schemas.mutation_event import MalformedEventsError, MutationEvent, MutationKind, RangeBounds
from schemas.table_metadata import ColumnKind, TableMetadata
from source_connector.encoding.projection import Projection
from source_connector.events.datastax_events import DataStaxEvent, DataStaxSchema, as_mutation_events
from source_connector.events.dead_letters import DeadLetter
from source_connector.events.events_message import DataStaxMessage, RawMessage
from source_connector.tables.guessed_events import microsecond_bounds
from tests.cql.tables import table_of
from tests.unit.source_connector.events import column, event, table

_GOLDEN: Final = Path(__file__).parents[2] / "golden" / "datastax"
SEM: Final = table_of(
    {"a": "text"},
    {"b": "int"},
    static={"d": "text"},
    regular={"c": "text", "e": "set<int>"},
    name="ks2.sem",
    table_id=UUID(int=5),
)


def _schema(text: str) -> DataStaxSchema:
    document = json.loads(text)
    key, value = (json.dumps(document[each]).encode() for each in ("key", "value"))
    return DataStaxSchema(len(key).to_bytes(4, "big") + key + len(value).to_bytes(4, "big") + value)


def captured(file: str) -> list[DataStaxEvent]:
    *messages, last = [json.loads(line) for line in (_GOLDEN / file).read_text().splitlines()]
    schema = _schema(last["data"])
    return [
        schema.decode(base64.b64decode(each["key"]), bytes.fromhex(each["data"]), each["props"]) for each in messages
    ]


def understood(number: int, of: TableMetadata = SEM) -> MutationEvent:
    (change,) = as_mutation_events(captured("statements-events.txt")[number], Projection(of)).events
    return change


def test_a_row_is_found_by_the_bytes_of_its_key() -> None:
    """insert into sem(a,b,c,d,e) values('p',1,...): key, position, digest and write time are as captured."""
    content = as_mutation_events(captured("statements-events.txt")[0], Projection(SEM))
    (change,) = content.events
    assert (content.table_id, content.segment_id, change.position) == (UUID(int=5), 1795218821164, 12441180)
    assert content.node_id == UUID("0d5885d4-d932-4c22-b25d-41c00bbedfb6")
    assert (change.kind, change.partition_key, change.clustering) == (MutationKind.ROW, b"p", (b"\0\0\0\1",))
    assert (change.key.hex(), change.digest.hex()) == ("02700202", "b6156a47b0282379ddeff6a6cf0743d3")
    assert (change.writetime_us, change.live_cell_writetime_us) == (1795219823642645, 1795219823642645)
    assert change.columns == ("c",)


def test_an_event_without_clustering_values_is_a_guess() -> None:
    """The guess is a static row if the table has static columns, and a partition deletion if it has none."""
    assert (understood(4).kind, understood(4).clustering) == (MutationKind.STATIC_ROW, ())
    no_static = replace(SEM, static_columns=())
    assert understood(4, no_static).kind is MutationKind.PARTITION_DELETION
    assert understood(4, no_static).deletion_time_us == understood(4).writetime_us


def test_a_renamed_key_column_is_met_by_its_place() -> None:
    """These agents keep the key's schema that they built first, so columns match by position."""
    renamed = replace(SEM, clustering_key=(column("other", ColumnKind.CLUSTERING, position=0),))
    assert understood(0, renamed).clustering == (b"\0\0\0\1",)


@pytest.mark.parametrize(
    "of",
    [
        replace(SEM, clustering_key=()),
        replace(SEM, clustering_key=(column("b", ColumnKind.CLUSTERING, "uuid", position=0),)),
    ],
)
def test_the_key_of_another_table_is_refused(of: TableMetadata) -> None:
    """The table was dropped and created again with another key."""
    with pytest.raises(MalformedEventsError, match="its key"):
        understood(0, of)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_key_without_a_value_for_its_partition_is_refused(columns: int) -> None:
    """A schema of another producer may allow null there; the message becomes a dead letter, and the others go on."""
    keys = [column(name, ColumnKind.PARTITION_KEY, position=place) for place, name in enumerate("xy"[:columns])]
    keyed = replace(SEM, partition_key=tuple(keys), clustering_key=())
    event = replace(captured("statements-events.txt")[0], key={"x": None, "y": 1} if columns == 2 else {"x": None})
    with pytest.raises(MalformedEventsError, match=r"none of ks2\.sem \(a column of the partition key is null\)"):
        as_mutation_events(event, Projection(keyed))


def test_keys_of_every_type_become_cql_bytes() -> None:
    """Both captured keys have all 19 columns."""
    one, two = captured("all-key-types-events.txt")
    assert (one.key["ktiny"], two.key["ktiny"], two.key["ksmall"]) == (5, 251, 65236)
    assert (one.key["ktime"], two.key["ktime"]) == (3723123456, 3723123456)


@pytest.mark.parametrize(
    ("key", "value", "properties"),
    [
        (b"", b"\0\0\0", {}),
        (b"\2p\2\2\0", b"\0\0\0", {}),
        (b"\2p\2\2", b"\2", {}),
        (b"\2p\2\2", b"\0\0\0", {"segpos": "x"}),
    ],
)
def test_bytes_that_are_no_such_event_are_an_error(key: bytes, value: bytes, properties: dict[str, str]) -> None:
    """The bytes are cut or too long, or the properties belong to something else."""
    *_, last = (_GOLDEN / "statements-events.txt").read_text().splitlines()
    with pytest.raises(MalformedEventsError, match="no event of a DataStax agent"):
        _schema(json.loads(last)["data"]).decode(key, value, properties)


def test_a_backfilled_event_has_neither_node_nor_digest() -> None:
    """Its digest is a constant, which would make all backfilled events copies of one another."""
    *_, last = (_GOLDEN / "statements-events.txt").read_text().splitlines()
    schema = _schema(json.loads(last)["data"])
    value = b"\0\2\x20BACK_FILL_INSERT\0"
    one = schema.decode(b"\2p\2\2", value, {"segpos": "-1:-1", "token": ""})
    two = schema.decode(b"\2p\2\4", value, {"segpos": "-1:-1", "token": ""})
    assert (one.node_id, one.writetime_us, one.segment_id, one.position) == (UUID(int=0), None, -1, -1)
    assert len(one.digest) == 16 and one.digest != two.digest


def test_what_is_no_schema_is_an_error() -> None:
    """The schema is of a topic that something else has written."""
    with pytest.raises(MalformedEventsError, match="no KEY_VALUE schema"):
        DataStaxSchema(b"\0\0\0\1{")


@pytest.mark.parametrize(
    ("schema", "key"), [("string", b"\2p"), ("null", b""), ({"type": "array", "items": "int"}, b"\2\2\0")]
)
def test_a_key_that_is_no_record_is_refused(schema: object, key: bytes) -> None:
    """Another producer may write plain keys. The message becomes a dead letter, and the others go on."""
    *_, last = (_GOLDEN / "statements-events.txt").read_text().splitlines()
    plain = _schema(json.dumps(json.loads(json.loads(last)["data"]) | {"key": schema}))
    keyed = replace(SEM, partition_key=SEM.partition_key[:1], clustering_key=())
    with pytest.raises(MalformedEventsError, match="no record"):
        as_mutation_events(plain.decode(key, b"\0\0\0", {}), Projection(keyed))


@pytest.mark.parametrize(
    ("is_desc", "start", "end"), [(False, 5000, 5999), (True, 5999, 5000)], ids=["ascending", "descending"]
)
def test_a_cut_time_stands_for_its_microsecond(*, is_desc: bool, start: int, end: int) -> None:
    """The event becomes the scope of all times within the microsecond, in clustering order."""
    keyed = table(clustering_key=("c",), clustering_type="time", descending=("c",) if is_desc else ())
    assert keyed.clustering_key[0].type == NativeType("time")
    found = microsecond_bounds(Projection(keyed), event(1)._replace(clustering=((5000).to_bytes(8, "big"),)))
    assert found == RangeBounds(
        start=(start.to_bytes(8, "big"),), start_inclusive=True, end=(end.to_bytes(8, "big"),), end_inclusive=True
    )
    assert microsecond_bounds(Projection(table(clustering_key=("c",))), event(1, 2)) is None


def test_a_dead_letter_holds_the_message_as_it_was() -> None:
    """It also keeps key and properties, so that a resend gives the connector the same message."""
    message_id: Any = "(1,2,3,4)"
    raw = RawMessage(data=b"v", key="AnAC", properties={"segpos": "1:2", "writetime": "3"})
    message = DataStaxMessage(
        identity=b"",
        message_id=message_id,
        topic="events-ks2.sem",
        event=captured("statements-events.txt")[0],
        raw=raw,
        origin=_Nowhere(),
    )
    letter = DeadLetter.of_message(message.unreadable("its key has 1 columns"))
    assert DeadLetter.from_message(letter.data, letter.properties) == letter
    assert (letter.data, letter.message_key, letter.message_properties) == (raw.data, raw.key, raw.properties)
    understood_message = message.understood(as_mutation_events(message.event, Projection(SEM)))
    (pending,) = understood_message.take_events()
    of_event = DeadLetter.of_event(pending, "refused")
    assert (of_event.data, of_event.message_key, of_event.message_properties) == (raw.data, raw.key, raw.properties)
    assert DeadLetter.from_message(of_event.data, of_event.properties) == of_event


class _Nowhere:
    """The origin of messages in unit tests."""

    def settled(self, message: object, events: int) -> None: ...
