"""Upgrade and rollback: state of earlier versions is read.

State of a later version is read, or refused and not changed.
"""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import pytest

from change_agent.errors import PublishError, StateFormatError
from change_agent.parking.parked import ParkedMutations
from change_agent.positions.offsets import OffsetStore, parse_positions
from change_agent.publishing.held_events import HeldEvents
from change_agent.publishing.partition_counts import PartitionCounts
from change_agent.schema.schema_history import SchemaHistory
from schemas.mutation_event import (
    MUTATION_EVENTS_SCHEMA_TEXT,
    MalformedEventsError,
    decode_events,
    encode_events,
)
from schemas.system_schema import tables_of
from tests.golden.make_state import HELD, NODE_ID, PARKED, POSITIONS, STATE, TOPIC, golden_schema

_VERSIONS = sorted(path.name for path in STATE.iterdir() if path.is_dir())
_NEWER = "is of format 2, and this version knows 1: a newer version of the agent wrote it"


@pytest.fixture(params=_VERSIONS)
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the state of one version."""
    return Path(shutil.copytree(STATE / request.param, tmp_path / "work"))


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    """A copy of the state of this version."""
    return Path(shutil.copytree(STATE / _VERSIONS[-1], tmp_path / "work"))


def test_positions_of_every_version_are_read(state: Path) -> None:
    """They are written in the present format."""
    store = OffsetStore(state)
    assert store.load() == POSITIONS
    store.store(POSITIONS)
    assert store.load() == POSITIONS
    store.close()


def test_the_schema_history_of_every_version_is_read(state: Path) -> None:
    """The history has definitions by table id, and the node's id."""
    history = SchemaHistory(state)
    history.load()
    assert (history.node_id, history.confirmed_at_ms) == (NODE_ID, 1_795_000_000_000)
    assert dict(history.tables) == tables_of(golden_schema().schema)
    history.close()


def test_parked_mutations_of_every_version_are_read(state: Path) -> None:
    """They have everything that another try needs."""
    parked = ParkedMutations(state, lambda: None)
    assert parked.waiting(0, 10) == [PARKED]
    parked.close()


def test_held_events_of_every_version_are_read_and_added_to(state: Path) -> None:
    """One file may have events of several schemas."""
    held = HeldEvents(state / "held" / "ks.t.events")
    held.append([encode_events(HELD)])
    again = HeldEvents(held.path)
    for each in (held, again):
        assert [each.read_next(), each.read_next(), each.read_next()] == [HELD, HELD, None]
    again.rewind()
    assert again.read_next() == HELD


def test_numbers_of_partitions_of_every_version_are_read(state: Path) -> None:
    """A different number is refused."""
    counts = PartitionCounts(state)
    counts.check(TOPIC, 4)
    with pytest.raises(PublishError, match="had 4"):
        counts.check(TOPIC, 5)


@pytest.mark.parametrize("content", ["[]", '{"t": {"partitions": 4}}', '{"t": null}', "{"])
def test_numbers_of_partitions_of_another_form_are_refused(newest: Path, content: str) -> None:
    """The topic waits until the file is repaired."""
    (newest / "topic-partitions.json").write_text(content)
    with pytest.raises(PublishError, match="cannot be read"):
        PartitionCounts(newest).check(TOPIC, 4)


def _with_format(path: Path, number: int) -> None:
    body = path.read_bytes().partition(b"\n")[2]
    changed = json.dumps({**json.loads(body), "format": number, "new": [1]}).encode()
    path.write_bytes(b"%08x\n%s" % (zlib.crc32(changed), changed))


def test_positions_of_a_newer_format_are_refused_and_left(newest: Path) -> None:
    """If they counted as damaged, the agent would fall back to older ones.

    The same holds for the broker's copy.
    """
    path = newest / "positions-a.json"
    _with_format(path, 2)
    content = path.read_bytes()
    store = OffsetStore(newest)
    with pytest.raises(StateFormatError, match=_NEWER):
        store.load()
    store.close()
    with pytest.raises(StateFormatError, match=r"the copy .*is of format 2"):
        parse_positions(content, "the copy")
    assert path.read_bytes() == content


def test_what_is_not_known_of_this_format_is_passed_over(newest: Path) -> None:
    """A later version may add a field without a new format."""
    _with_format(newest / "positions-a.json", 1)
    store = OffsetStore(newest)
    assert store.load() == POSITIONS
    store.close()


@pytest.mark.parametrize(
    ("name", "open_store"),
    [
        ("parked.sqlite", lambda folder: ParkedMutations(folder, lambda: None)),
        ("schema.sqlite", lambda folder: SchemaHistory(folder).load()),
    ],
)
def test_a_database_of_a_newer_format_is_refused_and_left(
    name: str, open_store: Callable[[Path], object], newest: Path
) -> None:
    """It is not damaged, so it is neither set aside nor changed."""
    with closing(sqlite3.connect(newest / name)) as database:
        database.execute("PRAGMA user_version = 2")
        database.commit()
    before = {path.name: path.read_bytes() for path in newest.iterdir() if path.is_file()}
    with pytest.raises(StateFormatError, match=_NEWER):
        open_store(newest)
    after = {path.name: path.read_bytes() for path in newest.iterdir() if path.is_file()}
    assert {path: data for path, data in after.items() if not path.endswith(("-shm", "-wal"))} == before


# Event schemas of an earlier or later version.


def _schema(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> dict[str, Any]:
    schema = json.loads(MUTATION_EVENTS_SCHEMA_TEXT)
    change(schema, schema["fields"][-1]["type"]["items"])
    return schema


def _written_by(schema: dict[str, Any], **more: object) -> bytes:
    record = fastavro.schemaless_reader(
        io.BytesIO(encode_events(HELD)), fastavro.parse_schema(json.loads(MUTATION_EVENTS_SCHEMA_TEXT)), None
    )
    assert isinstance(record, dict)
    record["events"] = [{**event, **more} for event in record["events"]]
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {**record, **more})
    return out.getvalue()


NEXT = _schema(
    lambda message, event: (
        message["fields"].append({"name": "cluster", "type": ["null", "string"], "default": None}),
        event["fields"].append({"name": "user", "type": ["null", "bytes"], "default": None}),
    )[0]
)
BEFORE = _schema(
    lambda message, event: event.update(fields=[each for each in event["fields"] if each["name"] != "bounds"])
)


def test_events_of_a_newer_agent_are_read_without_what_is_new() -> None:
    """They are read with the schema that they were written with, which is in the registry."""
    assert decode_events(_written_by(NEXT, cluster="c", user=b"u"), NEXT) == HELD


def test_events_of_an_older_agent_lack_only_what_is_new() -> None:
    """The missing field is nullable and has a default."""
    assert decode_events(_written_by(BEFORE), BEFORE) == HELD


def test_a_newer_reader_understands_our_events() -> None:
    """Its schema resolves our events: the fields that we do not write are null."""
    record = fastavro.schemaless_reader(
        io.BytesIO(encode_events(HELD)),
        fastavro.parse_schema(json.loads(MUTATION_EVENTS_SCHEMA_TEXT)),
        fastavro.parse_schema(NEXT),
    )
    assert isinstance(record, dict)
    assert (record["cluster"], record["events"][0]["user"], record["segment_id"]) == (None, None, 8)


def test_a_kind_of_change_that_only_a_newer_agent_knows_is_refused() -> None:
    """The connector writes such a message to the dead letter topic. It must not guess."""

    def add_kind(message: dict[str, Any], event: dict[str, Any]) -> None:
        event["fields"][2]["type"]["symbols"].append("TRUNCATION")

    newer = _schema(add_kind)
    with pytest.raises(MalformedEventsError):
        decode_events(_written_by(newer, kind="TRUNCATION"), newer)
    assert decode_events(_written_by(newer), newer) == HELD


def test_events_that_lack_what_this_version_needs_are_refused() -> None:
    """Events with an invalid schema are refused too."""
    lacking = _schema(lambda message, event: message.update(fields=message["fields"][1:]))
    with pytest.raises(MalformedEventsError, match="node_id"):
        decode_events(_written_by(lacking), lacking)
    with pytest.raises(MalformedEventsError):
        decode_events(_written_by(NEXT), {"type": "nothing"})


def _frame(payload: bytes) -> bytes:
    return struct.pack(">II", len(payload), zlib.crc32(payload)) + payload


def test_held_events_of_a_newer_agent_are_read_and_ours_go_behind_them(tmp_path: Path) -> None:
    """After a rollback, the file itself has the schema for its events."""
    path = tmp_path / "ks.t.events"
    path.write_bytes(_frame(json.dumps(NEXT).encode()) + _frame(_written_by(NEXT, cluster="c", user=b"u")))
    held = HeldEvents(path)
    held.append([encode_events(HELD)])
    held = HeldEvents(path)
    assert [held.read_next(), held.read_next(), held.read_next()] == [HELD, HELD, None]
    assert path.read_bytes().count(b'"MutationEvents"') == 2


def test_a_schema_that_a_crash_left_alone_is_written_again(tmp_path: Path) -> None:
    """The schema and the events are one write. A partial write was never acknowledged."""
    path = tmp_path / "ks.t.events"
    whole = _frame(MUTATION_EVENTS_SCHEMA_TEXT.encode()) + _frame(encode_events(HELD))
    for cut in (len(whole) - 1, len(whole) - len(_frame(encode_events(HELD)))):
        path.write_bytes(whole[:cut])
        held = HeldEvents(path)
        assert (held.is_read, held.size, held.read_next()) == (True, 0, None)
        held.append([encode_events(HELD)])
        assert path.read_bytes() == whole
