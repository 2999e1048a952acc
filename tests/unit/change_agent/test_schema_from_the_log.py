"""The schema as read from the log: real mutations of system_schema of each Cassandra version, with rows between them.

Only the tables of `system_schema` and `system.local` are known, and no node answers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypedDict
from uuid import UUID

import pytest

from change_agent.commitlog.entry import CommitLogEntry
from change_agent.events.mutation_events import TableEvent
from change_agent.events.mutation_interpreter import MutationInterpreter
from change_agent.metrics import AgentMetrics
from change_agent.parking.parked import ParkedMutations
from change_agent.positions.segment_ids import SegmentIds
from change_agent.schema.schema_history import NodeSchema, SchemaHistory
from change_agent.schema.schema_mutations import SchemaChange
from change_agent.schema.schema_store import LogPlace
from change_agent.schema.table_metadata import KnownTables
from schemas.system_schema import SystemSchema

_FOLDER = Path(__file__).parents[2] / "golden" / "schema_mutations"
_KEYS_FOLDER = Path(__file__).parents[2] / "golden" / "schema_key_mutations"
_NODE = UUID(int=9)
_GOLDEN = sorted(path.stem for path in _FOLDER.glob("*.json"))


class _Entry(TypedDict):
    segment_id: int
    version: int
    position: int
    payload: str


class _Golden(TypedDict):
    statements: list[str]
    schema: SystemSchema
    entries: list[_Entry]


class _LogOnly:
    """A history that gets changes only from the log, because the node does not answer."""

    def __init__(self, directory: Path, schema: SystemSchema) -> None:
        self.history = SchemaHistory(directory)
        self.history.load()
        if self.history.node_id is None:
            self.history.add(NodeSchema(node_id=_NODE, schema=schema))
        self._version = 1

    @property
    def known(self) -> KnownTables:
        history = self.history
        return KnownTables(
            version=self._version,
            node_id=_NODE,
            tables=history.tables,
            versions=history.versions,
            places=tuple(history.places),
        )

    def as_of(self, time_ms: int, timeout_s: float, *, reread: bool = False) -> KnownTables | None:
        return None

    def note(self, change: SchemaChange, segment_id: int, position: int) -> KnownTables:
        self.history.note(change, segment_id, position)
        self._version += 1
        return self.known

    def settle(self, places: Sequence[LogPlace]) -> None:
        self.history.settle(places)

    def forget_places_before(self, segment_id: int, position: int) -> KnownTables:
        self.history.forget_places_before(segment_id, position)
        self._version += 1
        return self.known


class _Reader:
    """Read entries like the agent's reader, and return the table id and clustering key of each published event."""

    def __init__(self, directory: Path, schema: SystemSchema, finished: Sequence[int] = ()) -> None:
        self.source = _LogOnly(directory, schema)
        self.parked = ParkedMutations(directory, lambda: None)
        self.interpreter = MutationInterpreter(
            self.source,
            self.parked,
            AgentMetrics(),
            threading.Event(),
            reread_pause_s=0.0,
            finished=SegmentIds.of(finished),
        )
        self._segment_id = 0

    def read(self, entries: Sequence[_Entry]) -> Iterator[tuple[UUID, int]]:
        for each in self.events(entries):
            yield each.keys.table.table_id, int.from_bytes(each.event.clustering[0] or b"", "big")

    def events(self, entries: Sequence[_Entry]) -> Iterator[TableEvent]:
        for entry in entries:
            self._begin(entry["segment_id"])
            payload = bytes.fromhex(entry["payload"])
            found = self.interpreter.events_of(
                "segment",
                entry["segment_id"],
                entry["version"],
                CommitLogEntry(entry["position"], payload),
            )
            yield from found or ()
        self.parked.save()

    def _begin(self, segment_id: int) -> None:
        if segment_id != self._segment_id:
            if self._segment_id:
                self.interpreter.end(self._segment_id)
            self._segment_id = segment_id
            self.interpreter.use_schema_of(1)
            self.interpreter.begin(segment_id, 10**13, is_resumed=True)

    def close(self) -> None:
        self.parked.close()
        self.source.history.close()


@pytest.fixture(params=_GOLDEN)
def golden(request: pytest.FixtureRequest) -> _Golden:
    """The mutations that one Cassandra version wrote."""
    content: _Golden = json.loads((_FOLDER / f"{request.param}.json").read_text())
    return content


@pytest.fixture(params=sorted(path.stem for path in _KEYS_FOLDER.glob("*.json")))
def key_golden(request: pytest.FixtureRequest) -> _Golden:
    """The mutations that one Cassandra version wrote while key columns were changed."""
    content: _Golden = json.loads((_KEYS_FOLDER / f"{request.param}.json").read_text())
    return content


def test_every_cassandra_is_there() -> None:
    """The versions 6, 7 and 8 of the commit log."""
    assert _GOLDEN == ["3.11", "4.0", "4.1", "5.0", "5.0-none"]


def test_the_log_alone_tells_tables_columns_types_and_when_cdc_was_on(golden: _Golden, tmp_path: Path) -> None:
    """Tables that were dropped later are known from the first entry on.

    The row that was written while `cdc` was off is not published. Nor are rows of the table without CDC in a batch.
    """
    reader = _Reader(tmp_path, golden["schema"])
    published = list(reader.read(golden["entries"]))
    assert [ck for _, ck in published] == [1, 3, 4, 5, 6, 7]
    first, *_, last = [table_id for table_id, _ in published]
    assert [table_id for table_id, _ in published] == [first] * 5 + [last] and first != last
    assert reader.parked.count == 0
    reader.close()


def test_a_table_whose_cdc_is_off_is_left_out_although_it_was_on_before(golden: _Golden, tmp_path: Path) -> None:
    """Its earlier changes are published, so it is in both lists. Its progress must stop."""
    reader = _Reader(tmp_path, golden["schema"])
    left_out: list[bool] = []
    for entry in golden["entries"]:
        list(reader.read([entry]))
        left_out.append("k.t" in {each.full_name for each in reader.interpreter.left_out_tables})
    changes = [number for number, (one, other) in enumerate(pairwise(left_out)) if one != other]
    assert len(changes) == 2 and not left_out[0] and not left_out[-1]
    assert "k.t" in {each.full_name for each in reader.interpreter.published_tables}
    # Several threads ask several times a second, for all tables of the cluster.
    assert reader.interpreter.published_tables is reader.interpreter.published_tables
    assert reader.interpreter.left_out_tables is reader.interpreter.left_out_tables
    reader.close()


def test_reading_goes_on_in_the_middle_as_if_it_had_never_stopped(golden: _Golden, tmp_path: Path) -> None:
    """The process ends after every third entry, and the next one reads some entries again.

    The history is in the file.
    """
    for stop in range(2, len(golden["entries"]), 3):
        directory = tmp_path / str(stop)
        first = _Reader(directory, golden["schema"])
        published = list(first.read(golden["entries"][:stop]))
        first.close()
        segments = sorted({entry["segment_id"] for entry in golden["entries"][:stop]})
        second = _Reader(directory, golden["schema"], finished=segments[:-1])
        again = max(0, stop - 3)
        while golden["entries"][again]["segment_id"] != golden["entries"][stop]["segment_id"]:
            again += 1
        published += list(second.read(golden["entries"][again:]))
        assert list(dict.fromkeys(ck for _, ck in published)) == [1, 3, 4, 5, 6, 7], f"stopped behind entry {stop}"
        second.close()


def test_behind_a_gap_in_the_log_rows_are_published_in_doubt(golden: _Golden, tmp_path: Path) -> None:
    """The segment before was not read to its end. The flag may have changed there, and the node does not answer."""
    entries = golden["entries"]
    off = _rows(golden)[1]
    reader = _Reader(tmp_path, golden["schema"])
    published = [ck for _, ck in reader.read(entries[:off])]
    moved = [entry | {"segment_id": entry["segment_id"] + 2} for entry in entries[off : off + 1]]
    reader._segment_id = 0
    published += [ck for _, ck in reader.read(moved)]  # type: ignore[arg-type]
    assert published == [1, 2]
    reader.close()


def test_a_table_whose_making_is_not_in_the_log_is_parked(golden: _Golden, tmp_path: Path) -> None:
    """An ALTER contains only the altered columns. Rows of tables that are created later are published."""
    entries = golden["entries"]
    rows = _rows(golden)
    reader = _Reader(tmp_path, golden["schema"])
    assert [ck for _, ck in reader.read(entries[rows[0] :])] == [7]
    unknown = [entries[at]["position"] for at in (*rows[:5], rows[6])]
    assert [each.position for each in reader.parked.waiting(0, 100)] == unknown
    reader.close()


def test_a_change_of_the_schema_that_cannot_be_read_is_told_and_not_parked(
    golden: _Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After an upgrade the system tables may have other columns. Only rows that cannot be decoded are parked."""
    columns = [row for row in golden["schema"]["columns"] if row["column_name"] != "flags"]
    reader = _Reader(tmp_path, {**golden["schema"], "columns": columns})
    assert list(reader.read(golden["entries"])) == []
    assert "a change of the schema cannot be read" in caplog.text
    rows = [golden["entries"][at]["position"] for at in _rows(golden)]
    assert [each.position for each in reader.parked.waiting(0, 100)] == rows
    reader.close()


def test_rows_around_changes_of_key_columns_keep_their_whole_keys(key_golden: _Golden, tmp_path: Path) -> None:
    """RENAME of partition and clustering key columns and of a field of a key's type, and a masked column (5.0)."""
    reader = _Reader(tmp_path, key_golden["schema"])
    events = list(reader.events(key_golden["entries"]))
    names = [", ".join(column.name for column in each.keys.table.primary_key) for each in events]
    inserts = [each for each in key_golden["statements"] if each.startswith("INSERT")]
    assert names == [each.partition("(")[2].partition(", v)")[0] for each in inserts]
    # 'a', the value of the type as an Avro record, and the clustering key from 1 to 6.
    assert [each.event.key for each in events] == [b"\x02a\x02\x02\x02" + bytes([2 * ck]) for ck in range(1, 7)]
    assert [column.name for column in events[-1].keys.table.value_columns] == ["v"]
    assert reader.parked.count == 0
    reader.close()


def test_a_table_may_use_a_type_that_only_the_node_named(golden: _Golden, tmp_path: Path) -> None:
    """The CREATE TYPE is not in the log any more. No table used the type when the node returned it."""
    schema = golden["schema"]
    [types_id] = [str(row["id"]).replace("-", "") for row in schema["tables"] if row["table_name"] == "types"]
    point = {"keyspace_name": "k", "type_name": "point", "field_names": ["x", "y"], "field_types": ["int", "text"]}
    entries = [each for each in golden["entries"] if types_id not in each["payload"]]
    assert len(entries) == len(golden["entries"]) - 1
    reader = _Reader(tmp_path, {**schema, "types": [point | {"written_us": 1}]})
    assert [ck for _, ck in reader.read(entries)] == [1, 3, 4, 5, 6, 7]
    assert reader.parked.count == 0
    reader.close()


def _rows(golden: _Golden) -> list[int]:
    """Return the indexes of the INSERTs' entries.

    Their order: rows 1 to 5 of `t`, the row of `plain`, the batch with row 6, row 7 of the second `t`.
    """
    ids = {str(row["id"]).replace("-", "") for row in golden["schema"]["tables"]}
    found = [at for at, each in enumerate(golden["entries"]) if each["payload"][2:34] not in ids]
    assert len(found) == 8
    return found
