"""SchemaHistory: it keeps every definition by table id and time, also after a restart or a crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from cdc.schema_source import load_schema
from change_agent.schema.schema_history import NodeSchema, SchemaHistory
from change_agent.schema.schema_mutations import SchemaChange, TableChange, TypeChange
from change_agent.schema.schema_store import SchemaStore, schema_bytes
from change_agent.schema.table_versions import LogEvidence, WrittenWhen
from change_agent.sqlite_file import UnwritableFileError
from schemas.cql_type import UserType
from schemas.errors import ConfigError
from schemas.system_schema import Row, SystemSchema, tables_of
from schemas.table_metadata import TableMetadata
from tests.agent.killed_script import lines_before_kill_9

_NODE = UUID(int=9)
_OLD, _NEW, _OTHER = UUID(int=1), UUID(int=2), UUID(int=3)
_S = 1_000_000


def _column(table: str, name: str, cql_type: str, kind: str = "regular", position: int | None = None) -> Row:
    if position is None:
        position = 0 if kind == "partition_key" else -1
    return {
        "keyspace_name": "ks",
        "table_name": table,
        "column_name": name,
        "kind": kind,
        "position": position,
        "clustering_order": "none",
        "type": cql_type,
    }


def _table(table_id: UUID, name: str, *, cdc: bool = True, written_us: int = 0) -> Row:
    row = {"keyspace_name": "ks", "table_name": name, "id": str(table_id), "flags": ["compound"], "cdc": cdc}
    return row | ({"written_us": written_us} if written_us else {})


def _schema(*tables: Row, columns: Sequence[Row] = (), key_type: str = "int") -> NodeSchema:
    """A schema of these tables with a partition key `k`, these columns, and the type `address`."""
    schema: SystemSchema = {
        "keyspaces": [{"keyspace_name": "ks"}],
        "tables": list(tables),
        "columns": [*(_column(str(each["table_name"]), "k", key_type, "partition_key") for each in tables), *columns],
        "types": [{"keyspace_name": "ks", "type_name": "address", "field_names": ["a"], "field_types": ["int"]}],
        "views": [],
        "dropped_columns": [],
    }
    return NodeSchema(node_id=_NODE, schema=schema)


def _change(
    table_id: UUID, since_us: int, *, cdc: bool, columns: Sequence[Row] = (), removed: Iterable[str] = ()
) -> SchemaChange:
    """A change of a table `t` as read from the log."""
    table = TableChange(
        table_id=table_id,
        list_name="tables",
        keyspace="ks",
        name="t",
        since_us=since_us,
        row=_table(table_id, "t", cdc=cdc),
        columns=tuple(columns),
        removed=frozenset(removed),
        dropped_columns=(),
    )
    return SchemaChange(tables=(table,), types=())


def _key_types(history: SchemaHistory) -> dict[UUID, str]:
    return {table_id: str(table.partition_key[0].type) for table_id, table in history.tables.items()}


def _chosen(history: SchemaHistory, table_id: UUID, written_us: int) -> TableMetadata:
    """The definition of a mutation that was certainly written at this time."""
    when = WrittenWhen(written_us=written_us, earliest_us=written_us, latest_us=written_us, confirmed_us=0)
    return history.versions[table_id].definitions(when, None)[0]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[SchemaHistory]:
    """The history of an empty working directory."""
    made = SchemaHistory(tmp_path)
    made.load()
    yield made
    made.close()


def _reopened(tmp_path: Path) -> SchemaHistory:
    again = SchemaHistory(tmp_path)
    again.load()
    return again


def test_a_table_that_was_dropped_and_made_again_is_known_under_both_ids(history: SchemaHistory) -> None:
    """The new table has the same name, another id and another key."""
    history.add(_schema(_table(_OLD, "t"), key_type="address"))
    history.add(_schema(_table(_NEW, "t"), _table(_OTHER, "o"), key_type="bigint"))
    assert _key_types(history) == {_OLD: "address", _NEW: "bigint", _OTHER: "bigint"}


@pytest.mark.parametrize("ids", [(_OLD, _NEW), (_NEW, _OLD)], ids=["a greater id", "a smaller id"])
def test_a_table_that_was_made_again_stands_behind_the_dropped_one(
    history: SchemaHistory, tmp_path: Path, ids: tuple[UUID, UUID]
) -> None:
    """Of two tables with the same name the last one counts, because a gap record needs the id of the present table."""
    dropped, present = ids
    history.add(_schema(_table(dropped, "t", written_us=9 * _S), _table(_OTHER, "o", written_us=_S)))
    # The clock of the node that created it again was behind.
    history.add(_schema(_table(present, "t", written_us=8 * _S), _table(_OTHER, "o", written_us=_S)))
    orders = [list(history.tables)]
    history.close()
    again = _reopened(tmp_path)
    orders.append(list(again.tables))
    again.close()
    assert orders == [[dropped, _OTHER, present]] * 2


def test_a_dropped_table_that_only_the_log_tells_of_stands_before_its_successor(history: SchemaHistory) -> None:
    """The agent was down when the table was created, dropped and created again. The node returns the last one first."""
    history.add(_schema(_table(_NEW, "t", written_us=9 * _S)))
    history.note(_change(_OLD, 5 * _S, cdc=True, columns=[_column("t", "k", "int", "partition_key")]), 11, 300)
    assert list(history.tables) == [_OLD, _NEW]


def test_half_a_table_takes_nothing_from_what_was_known(history: SchemaHistory) -> None:
    """A node that was killed during DROP TABLE may keep the table without columns. It does not use such a table."""
    whole = _schema(_table(_OLD, "t"))
    history.add(whole)
    history.add(NodeSchema(node_id=_NODE, schema={**whole.schema, "columns": []}))
    history.add(NodeSchema(node_id=_NODE, schema={**_schema(_table(_NEW, "t")).schema, "columns": []}))
    assert _key_types(history) == {_OLD: "int"}


def test_the_next_process_knows_the_same(history: SchemaHistory, tmp_path: Path) -> None:
    """The file also has the node's id and the time of the last confirmation."""
    history.add(_schema(_table(_OLD, "t", written_us=5 * _S), key_type="address"))
    history.add(_schema(_table(_OLD, "t", cdc=False, written_us=9 * _S), key_type="address"))
    history.add(_schema())
    history.note(_change(_OLD, 7 * _S, cdc=True), 11, 300)
    history.confirm(1_700_000_000_123)
    history.close()
    again = _reopened(tmp_path)
    assert _key_types(again) == {_OLD: "address"}
    assert (again.node_id, again.confirmed_at_ms) == (_NODE, 1_700_000_000_123)
    assert [(each.segment_id, each.position, each.since_us, each.settled) for each in again.places] == [
        (11, 300, 7 * _S, False)
    ]
    assert [_chosen(again, _OLD, at * _S).cdc for at in (6, 8, 100)] == [True, True, True]
    again.close()


def test_the_first_start_knows_nothing(history: SchemaHistory) -> None:
    """An empty history is not an error."""
    assert (history.node_id, dict(history.tables)) == (None, {})


def test_a_column_that_came_back_with_another_type_is_read_by_the_type_of_its_time(history: SchemaHistory) -> None:
    """Keys use the newest names, but a cell is read by the layout in which it was written."""
    history.add(_schema(_table(_OLD, "t", written_us=10 * _S), columns=[_column("t", "v", "int")]))
    history.add(_schema(_table(_OLD, "t", written_us=50 * _S), columns=[_column("t", "v", "blob")]))
    types = {at: str(_chosen(history, _OLD, at * _S).regular_columns[0].type) for at in (1, 20, 49, 50, 99)}
    assert types == {1: "int", 20: "int", 49: "int", 50: "blob", 99: "blob"}
    when = WrittenWhen(written_us=20 * _S, earliest_us=0, latest_us=99 * _S, confirmed_us=0)
    by_log = history.versions[_OLD].definitions(when, LogEvidence(since_us=50 * _S, settled=True))
    assert [str(each.regular_columns[0].type) for each in by_log] == ["blob", "int"]


def test_an_added_column_needs_no_choice(history: SchemaHistory) -> None:
    """The newest definition can read rows from before the column was added."""
    history.add(_schema(_table(_OLD, "t", written_us=10 * _S), columns=[_column("t", "v", "int")]))
    both = [_column("t", "v", "int"), _column("t", "w", "text")]
    history.add(_schema(_table(_OLD, "t", written_us=50 * _S), columns=both))
    assert dict(history.versions) == {}
    assert [each.name for each in history.tables[_OLD].regular_columns] == ["v", "w"]


def test_places_up_to_a_missing_part_are_forgotten_here_and_in_the_file(history: SchemaHistory, tmp_path: Path) -> None:
    """A place at the end of the missing part belongs to it. The next process must not keep it."""
    history.add(_schema(_table(_OLD, "t", written_us=5 * _S)))
    for position in (200, 300, 400):
        history.note(_change(_OLD, (5 + position) * _S, cdc=True), 11, position)
    history.forget_places_before(11, 300)
    assert [each.position for each in history.places] == [400]
    history.close()
    again = _reopened(tmp_path)
    assert [each.position for each in again.places] == [400]
    again.close()


def test_a_definition_that_went_says_until_when_it_was_seen(history: SchemaHistory, tmp_path: Path) -> None:
    """That is the last confirmation before the table was missing. It may have changed at any time since."""
    history.add(_schema(_table(_OLD, "t", written_us=5 * _S)))
    history.confirm(1_700_000_000_123)
    history.add(_schema())
    history.confirm(1_700_000_009_999)
    history.close()
    again = _reopened(tmp_path)
    (definition,) = again.archived(_NODE, 0).definitions
    assert (definition.present, definition.confirmed_ms) == (False, 1_700_000_000_123)
    again.close()


def test_a_table_that_only_the_log_tells_of_is_known(history: SchemaHistory, tmp_path: Path) -> None:
    """The table was created, altered and dropped while the node was not asked. The log also has its user type."""
    history.add(_schema())
    key, column = _column("t", "k", "int", "partition_key"), _column("t", "v", "frozen<point>")
    point = {"keyspace_name": "ks", "type_name": "point", "field_names": ["x"], "field_types": ["double"]}
    types = TypeChange(keyspace="ks", name="point", since_us=1 * _S, row=point)
    history.note(SchemaChange(tables=(), types=(types,)), 1, 100)
    assert history.note(_change(_OLD, 2 * _S, cdc=True, columns=[key, column]), 1, 200)
    assert history.note(_change(_OLD, 3 * _S, cdc=True, columns=[_column("t", "w", "text")]), 1, 300)
    history.close()
    again = _reopened(tmp_path)
    assert [(each.name, str(each.type)) for each in again.tables[_OLD].regular_columns] == [
        ("v", "frozen<point>"),
        ("w", "text"),
    ]
    again.close()


def test_an_altered_table_that_was_never_known_stays_unknown(history: SchemaHistory) -> None:
    """The log has only the altered column, which is not enough to decode rows."""
    history.add(_schema())
    assert not history.note(_change(_OLD, 2 * _S, cdc=True, columns=[_column("t", "w", "text")]), 1, 300)
    assert _OLD not in history.tables


def _two_keys(first: str = "a", second: str = "b", *more: Row) -> list[Row]:
    """The columns of a table `t` with two partition key columns, a clustering column `c` and a column `v`."""
    keys = [_column("t", first, "text", "partition_key"), _column("t", second, "text", "partition_key", 1)]
    return [*keys, _column("t", "c", "int", "clustering", 0), _column("t", "v", "int"), *more]


def _add_two_keys(history: SchemaHistory, written_us: int, columns: Sequence[Row]) -> None:
    schema = _schema(_table(_OLD, "t", written_us=written_us)).schema
    history.add(NodeSchema(node_id=_NODE, schema={**schema, "columns": columns}))


def _names(table: TableMetadata) -> list[list[str]]:
    return [
        [each.name for each in columns]
        for columns in (table.partition_key, table.clustering_key, table.regular_columns)
    ]


def test_a_renamed_key_column_leaves_the_others(history: SchemaHistory, tmp_path: Path) -> None:
    """The log adds the new name and deletes the old one. The other columns stay, also for the next process."""
    _add_two_keys(history, 2 * _S, _two_keys())
    [renamed, *_] = _two_keys("a2")
    assert history.note(_change(_OLD, 3 * _S, cdc=True, columns=[renamed], removed={"a"}), 1, 300)
    assert _names(history.tables[_OLD]) == [["a2", "b"], ["c"], ["v"]]
    second = _two_keys("a2", "b2")[1]
    assert history.note(_change(_OLD, 4 * _S, cdc=True, columns=[second], removed={"b"}), 1, 400)
    clustering = _column("t", "c2", "int", "clustering", 0)
    assert history.note(_change(_OLD, 5 * _S, cdc=True, columns=[clustering], removed={"c"}), 1, 500)
    history.close()
    again = _reopened(tmp_path)
    assert _names(again.tables[_OLD]) == [["a2", "b2"], ["c2"], ["v"]]
    again.close()


def test_key_columns_that_an_alter_writes_as_they_were_leave_the_others(history: SchemaHistory) -> None:
    """MASKED of Cassandra 5.0 does this."""
    _add_two_keys(history, 2 * _S, _two_keys())
    assert history.note(_change(_OLD, 3 * _S, cdc=True, columns=_two_keys()[:1]), 1, 300)
    assert _names(history.tables[_OLD]) == [["a", "b"], ["c"], ["v"]]


def test_a_table_that_is_made_again_with_its_id_has_the_new_columns(history: SchemaHistory) -> None:
    """CREATE TABLE ... WITH ID, here with one partition key column less."""
    _add_two_keys(history, 2 * _S, _two_keys())
    history.add(_schema())
    columns = [_column("t", "a", "text", "partition_key"), _column("t", "w", "int")]
    assert history.note(_change(_OLD, 3 * _S, cdc=True, columns=columns), 1, 300)
    assert _names(history.tables[_OLD]) == [["a"], [], ["w"]]


def test_a_renamed_table_that_was_never_known_stays_unknown(history: SchemaHistory) -> None:
    """The columns that the statement does not contain are unknown."""
    history.add(_schema())
    [renamed, *_] = _two_keys("a2")
    assert not history.note(_change(_OLD, 3 * _S, cdc=True, columns=[renamed], removed={"a"}), 1, 300)
    assert _OLD not in history.tables


def test_a_whole_table_with_the_tombstone_of_a_column_is_known(history: SchemaHistory) -> None:
    """The change has this form when the schema of another node is merged. `x` was dropped."""
    history.add(_schema())
    columns = [_column("t", "a", "text", "partition_key"), _column("t", "w", "int")]
    assert history.note(_change(_OLD, 3 * _S, cdc=True, columns=columns, removed={"x"}), 1, 300)
    assert _names(history.tables[_OLD]) == [["a"], [], ["w"]]


def test_a_name_between_two_renames_is_no_further_key_column(history: SchemaHistory, tmp_path: Path) -> None:
    """The node returns the last name first, and the log returns the name before it later."""
    _add_two_keys(history, 9 * _S, _two_keys("a3", "b", _column("t", "w", "int")))
    [renamed, *_] = _two_keys("a2")
    history.note(_change(_OLD, 3 * _S, cdc=True, columns=[renamed], removed={"a"}), 1, 300)
    older, newest = (tables_of(each.rows)[_OLD] for each in SchemaStore(tmp_path).definitions())
    assert _names(newest) == [["a3", "b"], ["c"], ["v", "w"]]
    assert _names(older)[0] == ["a2", "b"]


def _address(since_us: int, *fields: str) -> Row:
    names, types = list(fields), ["int"] * len(fields)
    return {
        "keyspace_name": "ks",
        "type_name": "address",
        "field_names": names,
        "field_types": types,
        "written_us": since_us,
    }


@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "by the next process"])
def test_a_new_table_may_use_a_type_that_only_the_node_named(
    history: SchemaHistory, tmp_path: Path, restarts: bool
) -> None:
    """The log of the type is gone.

    The node returns the table with another `cdc` later, and both definitions are known.
    """
    schema = _schema(_table(_OTHER, "o", written_us=1)).schema
    node = NodeSchema(node_id=_NODE, schema={**schema, "types": [_address(2 * _S, "x")]})
    history.add(node)
    if restarts:
        history.close()
        history = _reopened(tmp_path)
    key, column = _column("t", "k", "int", "partition_key"), _column("t", "v", "frozen<address>")
    assert history.note(_change(_NEW, 5 * _S, cdc=True, columns=[key, column]), 1, 200)
    assert [str(each.type) for each in history.tables[_NEW].regular_columns] == ["frozen<address>"]
    off = _schema(_table(_NEW, "t", cdc=False, written_us=9 * _S), columns=[column])
    history.add(NodeSchema(node_id=_NODE, schema={**off.schema, "types": [_address(2 * _S, "x")]}))
    assert not history.tables[_NEW].cdc
    assert _chosen(history, _NEW, 6 * _S).cdc
    history.close()


def test_an_added_column_may_have_a_type_that_only_the_node_named(history: SchemaHistory) -> None:
    """The table did not use the type before."""
    history.add(_schema(_table(_OLD, "t", written_us=2 * _S)))
    assert history.note(_change(_OLD, 3 * _S, cdc=True, columns=[_column("t", "w", "frozen<address>")]), 1, 300)
    assert [str(each.type) for each in history.tables[_OLD].regular_columns] == ["frozen<address>"]


def test_of_a_types_definitions_the_one_of_the_time_counts(history: SchemaHistory) -> None:
    """The node may return the later definition first, before the log has the earlier ones."""
    node = NodeSchema(node_id=_NODE, schema={**_schema().schema, "types": [_address(7 * _S, "x", "y", "z")]})
    history.add(node)
    for since_us, fields in ((1, ["x"]), (4, ["x", "y"])):
        row = {name: value for name, value in _address(0, *fields).items() if name != "written_us"}
        types = TypeChange(keyspace="ks", name="address", since_us=since_us * _S, row=row)
        history.note(SchemaChange(tables=(), types=(types,)), 1, 100 + since_us)
    key, column = _column("t", "k", "int", "partition_key"), _column("t", "v", "frozen<address>")
    found = []
    for since_us in (8, 2, 5):
        history.note(_change(UUID(int=since_us), since_us * _S, cdc=True, columns=[key, column]), 1, 200 + since_us)
        [value] = history.tables[UUID(int=since_us)].regular_columns
        found.append(len(value.type.field_names) if isinstance(value.type, UserType) else 0)
    assert found == [3, 1, 2]


def test_types_that_the_node_named_while_the_disk_was_full_are_stored_later(
    history: SchemaHistory, tmp_path: Path
) -> None:
    """The same holds for its tables."""
    history.add(NodeSchema(node_id=_NODE, schema={**_schema().schema, "types": []}))
    database = history._opened()._database
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")
    large = NodeSchema(
        node_id=_NODE, schema={**_schema().schema, "types": [_address(_S, *(f"f{each}" for each in range(2000)))]}
    )
    with pytest.raises(UnwritableFileError):
        history.add(large)
    database.execute("PRAGMA max_page_count = 10000")
    history.add(large)
    assert [each.name for each in SchemaStore(tmp_path).user_types()] == ["address"]


def test_what_the_node_says_replaces_what_the_log_told(history: SchemaHistory) -> None:
    """The same change from both sources is one definition, also when the log is read again."""
    history.add(_schema())
    key = _column("t", "k", "int", "partition_key")
    history.note(_change(_OLD, 2 * _S, cdc=True, columns=[key]), 1, 200)
    history.add(_schema(_table(_OLD, "t", written_us=2 * _S)))
    assert not history.note(_change(_OLD, 2 * _S, cdc=True, columns=[key]), 1, 200)
    assert len(history.places) == 1
    assert dict(history.versions) == {}


def test_of_a_table_that_is_altered_all_day_the_last_places_are_kept(history: SchemaHistory, tmp_path: Path) -> None:
    """The file must not grow with every ALTER."""
    history.add(_schema(_table(_OLD, "t", written_us=1)))
    for at in range(1, 251):
        history.note(_change(_OLD, 1, cdc=True), at, 100)
    assert 100 <= len(history.places) <= 200
    assert history.places[-1].segment_id == 250
    history.close()
    again = _reopened(tmp_path)
    assert [each.segment_id for each in again.places] == [each.segment_id for each in history.places]
    again.close()


def test_what_the_node_said_while_the_disk_was_full_is_stored_later(history: SchemaHistory, tmp_path: Path) -> None:
    """The next answer of the node is the same, and it is stored then."""
    history.add(_schema(_table(_OLD, "t", written_us=1)))
    database = history._opened()._database
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")
    large = _schema(_table(_NEW, "t", written_us=2), columns=[_column("t", f"c{each}", "int") for each in range(500)])
    with pytest.raises(UnwritableFileError, match=r"schema\.sqlite cannot be written"):
        history.add(large)
    database.execute("PRAGMA max_page_count = 10000")
    history.add(large)
    assert set(history.tables) == {_OLD, _NEW}
    history.close()
    again = _reopened(tmp_path)
    assert set(again.tables) == {_OLD, _NEW}
    again.close()


def test_the_log_may_tell_first_of_a_table_that_the_node_named_while_the_disk_was_full(history: SchemaHistory) -> None:
    """The definition is not new then, but it must be used. Otherwise the table's mutations would be parked."""
    key, column = _column("t", "k", "int", "partition_key"), _column("t", "v", "int")
    history.add(_schema(_table(_OLD, "t", written_us=1 * _S)))
    database = history._opened()._database
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")
    large = [column, *(_column("t", f"c{each}", "int") for each in range(500))]
    with pytest.raises(UnwritableFileError):
        history.add(_schema(_table(_NEW, "t", written_us=2 * _S), columns=large))
    with pytest.raises(UnwritableFileError):
        history.note(_change(_NEW, 2 * _S, cdc=True, columns=[key, *large]), 1, 200)
    database.execute("PRAGMA max_page_count = 10000")
    history.note(_change(_NEW, 2 * _S, cdc=True, columns=[key, *large]), 1, 200)
    assert len(history.tables[_NEW].regular_columns) == 501
    assert [each.table_id for each in history.places] == [_NEW]


def test_the_file_is_a_schema_for_cdc_decode(history: SchemaHistory, tmp_path: Path) -> None:
    """It includes dropped tables, and can be read while the agent writes to it.

    A damaged file is a configuration error.
    """
    history.add(_schema(_table(_OLD, "t", written_us=5), key_type="text"))
    history.add(_schema(_table(_NEW, "t", written_us=9)))
    tables = load_schema(tmp_path / "schema.sqlite")
    assert {each: str(table.partition_key[0].type) for each, table in tables.items()} == {_OLD: "text", _NEW: "int"}
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with pytest.raises(ConfigError, match="is no whole schema history"):
        load_schema(damaged)


def test_the_copy_of_an_earlier_version_is_taken_over(tmp_path: Path) -> None:
    """Its tables are known, also dropped ones, and the file is deleted.

    A later time from the node does not create another definition.
    """
    dropped, now = _schema(_table(_OLD, "t")), _schema(_table(_NEW, "t"))
    copy = {"node_id": str(_NODE), "schema": now.schema, "dropped": [dropped.schema]}
    path = tmp_path / "node-schema.json"
    path.write_text(json.dumps(copy))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    history = _reopened(tmp_path)
    assert set(history.tables) == {_OLD, _NEW}
    assert history.confirmed_at_ms == 1_700_000_000_000
    assert not path.exists()
    history.add(_schema(_table(_NEW, "t", written_us=3 * _S)))
    assert dict(history.versions) == {}
    history.close()


def test_a_damaged_copy_of_an_earlier_version_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The node is asked, and the file stays for the operator."""
    (tmp_path / "node-schema.json").write_bytes(b"{")
    _reopened(tmp_path).close()
    [record] = caplog.records
    assert "node-schema.json is damaged" in record.getMessage()


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_store_is_set_aside_and_made_again(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not silently count as an empty schema. The log reports the loss, and the node is asked again."""
    (tmp_path / "schema.sqlite").write_bytes(content)
    history = _reopened(tmp_path)
    [record] = caplog.records
    assert (
        "schema.sqlite is damaged" in record.getMessage()
        and "the schema is read from the node again" in record.getMessage()
    )
    assert (tmp_path / "schema.sqlite.damaged").read_bytes() == content
    history.add(_schema(_table(_NEW, "t")))
    history.close()
    again = _reopened(tmp_path)
    assert set(again.tables) == {_NEW}
    again.close()


def test_changed_bytes_of_a_definition_are_noticed(
    history: SchemaHistory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each row has a checksum, so a column is never read with a type that was not stored."""
    history.add(_schema(_table(_OLD, "t"), columns=[_column("t", "v", "bigint")]))
    history.close()
    path = tmp_path / "schema.sqlite"
    content = path.read_bytes()
    assert content.count(b'"bigint"') == 1
    path.write_bytes(content.replace(b'"bigint"', b'"double"'))
    again = _reopened(tmp_path)
    assert "has another checksum" in caplog.text
    assert dict(again.tables) == {}
    again.close()


def test_what_was_added_survives_kill_9(tmp_path: Path) -> None:
    """The process is killed while it adds changes. All changes that `note` has returned for are stored."""
    script = (
        "import sys; from pathlib import Path; from uuid import UUID\n"
        "from change_agent.schema.schema_history import SchemaHistory\n"
        "from change_agent.schema.schema_mutations import SchemaChange, TableChange\n"
        "history = SchemaHistory(Path(sys.argv[1])); history.load()\n"
        "key = {'keyspace_name': 'ks', 'table_name': 't', 'column_name': 'k', 'kind': 'partition_key', 'position': 0,\n"
        "       'clustering_order': 'none', 'type': 'int'}\n"
        "for at in range(1, 100_000):\n"
        "    row = {'keyspace_name': 'ks', 'table_name': 't', 'id': str(UUID(int=at)), 'flags': [], 'cdc': True}\n"
        "    table = TableChange(table_id=UUID(int=at), list_name='tables', keyspace='ks', name='t', since_us=at, row=row,\n"
        "                        columns=(key,), removed=frozenset(), dropped_columns=())\n"
        "    history.note(SchemaChange(tables=(table,), types=()), 1, at); print(at, flush=True)\n"
    )
    count = lines_before_kill_9(script, tmp_path)
    history = _reopened(tmp_path)
    assert {UUID(int=at) for at in range(1, count + 1)} <= set(history.tables)
    history.close()


def test_a_disk_that_is_full_at_the_start_is_not_taken_for_damage(tmp_path: Path) -> None:
    """The file is not set aside. When there is space, the same call reads it."""
    history = SchemaHistory(tmp_path)
    history.add(_schema(_table(_OLD, "t")))
    history.close()
    script = (
        "import resource, sys; from pathlib import Path; from change_agent.schema.schema_history import SchemaHistory\n"
        "from change_agent.sqlite_file import UnwritableFileError\n"
        "history = SchemaHistory(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n"
        "try:\n    history.load()\nexcept UnwritableFileError:\n    print('unwritable')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "history.load()\nprint(sorted(each.name for each in history.tables.values()))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert done.stdout == "unwritable\n['t']\n"
    assert not (tmp_path / "schema.sqlite.damaged").exists()


def test_a_node_that_confirms_its_schema_for_a_month_takes_no_more_disk(tmp_path: Path) -> None:
    """The write-ahead log begins again after 32 pages, so a thousand confirmations show the same size as a month."""
    store = SchemaStore(tmp_path)
    for number in range(1_000):
        store.set_meta("confirmed_ms", str(number))
    assert schema_bytes(tmp_path) < 300 << 10
    store.close()
