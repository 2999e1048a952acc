"""SchemaHistory: dropped tables stay known, also for the next process."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from change_agent.schema_history import DamagedSchemaCopyError, NodeSchema, SchemaHistory
from schemas.system_schema import SystemSchema

_NODE = UUID(int=9)
_OLD, _NEW, _OTHER = UUID(int=1), UUID(int=2), UUID(int=3)


def _schema(*tables: tuple[UUID, str, str]) -> NodeSchema:
    """Tables by id, name and type of their key column."""
    schema: SystemSchema = {
        "keyspaces": [{"keyspace_name": "ks"}],
        "tables": [
            {"keyspace_name": "ks", "table_name": name, "id": str(table_id), "flags": ["compound"], "cdc": True}
            for table_id, name, _ in tables
        ],
        "columns": [
            {
                "keyspace_name": "ks", "table_name": name, "column_name": "k", "kind": "partition_key",
                "position": 0, "clustering_order": "none", "type": key_type,
            }
            for _, name, key_type in tables
        ],
        "types": [{"keyspace_name": "ks", "type_name": "address", "field_names": ["a"], "field_types": ["int"]}],
        "views": [],
        "dropped_columns": [],
    }  # fmt: skip
    return NodeSchema(node_id=_NODE, schema=schema)


def _key_types(history: SchemaHistory) -> dict[UUID, str]:
    return {table_id: str(table.partition_key[0].type) for table_id, table in history.tables.items()}


def test_a_table_that_was_dropped_and_made_again_is_known_under_both_ids(tmp_path: Path) -> None:
    """The same name, another id, another key."""
    history = SchemaHistory(tmp_path)
    history.add(_schema((_OLD, "t", "address"), (_OTHER, "o", "int")))
    history.add(_schema((_NEW, "t", "bigint"), (_OTHER, "o", "int")))
    assert _key_types(history) == {_OLD: "address", _NEW: "bigint", _OTHER: "int"}


def test_the_next_process_knows_the_same(tmp_path: Path) -> None:
    """From the copy alone, with the node's id and the time of its last confirmation."""
    history = SchemaHistory(tmp_path)
    history.add(_schema((_OLD, "t", "address")))
    history.add(_schema())
    history.confirm(1_700_000_000_123)
    again = SchemaHistory(tmp_path)
    again.load()
    assert _key_types(again) == {_OLD: "address"}
    assert again.latest is not None and again.latest.node_id == _NODE
    assert again.confirmed_at_ms == 1_700_000_000_123


def test_the_first_start_has_no_copy(tmp_path: Path) -> None:
    """Nothing is known, and that is no error."""
    history = SchemaHistory(tmp_path)
    history.load()
    assert (history.latest, dict(history.tables)) == (None, {})


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", json.dumps({"node_id": 1}).encode(), b"[]"])
def test_a_damaged_copy_is_told(tmp_path: Path, content: bytes) -> None:
    """It is never taken for an empty schema."""
    (tmp_path / "node-schema.json").write_bytes(content)
    with pytest.raises(DamagedSchemaCopyError, match="is damaged"):
        SchemaHistory(tmp_path).load()
