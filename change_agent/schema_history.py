"""SchemaHistory: every table the agent has known, also after DROP, and the copy of it in the working directory.

What is stored is what `system_schema` said, as plain JSON rows, so that a newer agent reads more out of the same rows:

    node-schema.json => {"node_id": uuid, "schema": SystemSchema, "dropped": [SystemSchema of one table]}

The file's modification time is the last time when the node confirmed it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast
from uuid import UUID

from change_agent.offsets import sync_directory
from schemas.errors import CdcError
from schemas.system_schema import SystemSchema, tables_of
from schemas.table_metadata import TableMetadata

__all__ = ["DamagedSchemaCopyError", "NodeSchema", "SchemaHistory"]

_NAME: Final = "node-schema.json"
_BY_TABLE: Final = ("columns", "dropped_columns")


class DamagedSchemaCopyError(CdcError):
    """The copy cannot be read. It is made again from the node, but tables that were dropped since are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSchema:
    """What a node said about itself: its host id and its schema."""

    node_id: UUID
    schema: SystemSchema


class SchemaHistory:
    """Keeps tables by id. Not thread safe: its owner is the table metadata provider."""

    def __init__(self, directory: Path) -> None:
        self._path: Final = directory / _NAME
        self._dropped: list[SystemSchema] = []
        self.latest: NodeSchema | None = None
        self.tables: Mapping[UUID, TableMetadata] = {}
        self.confirmed_at_ms = 0

    def load(self) -> None:
        """Read the copy, if there is one. Raises DamagedSchemaCopyError."""
        try:
            stored = json.loads(self._path.read_bytes())
            dropped, schema, node_id = stored["dropped"], stored["schema"], UUID(stored["node_id"])
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedSchemaCopyError(
                f"{self._path} is damaged ({error}); delete it to ask the node again"
            ) from error
        self._dropped = cast("list[SystemSchema]", dropped)
        self.latest = NodeSchema(node_id=node_id, schema=schema)
        self.confirmed_at_ms = self._path.stat().st_mtime_ns // 1_000_000
        self.tables = self._all_tables()

    def add(self, read: NodeSchema) -> None:
        """Take what the node says now, keep what it no longer says, and store both. Raises SystemSchemaError."""
        now = tables_of(read.schema)
        if self.latest is not None:
            gone = tables_of(self.latest.schema).keys() - now.keys()
            self._dropped += [_one_table(self.latest.schema, table_id) for table_id in sorted(gone)]
        self.latest = read
        self.tables = self._all_tables()
        self._store()

    def confirm(self, time_ms: int) -> None:
        """The node says that its schema at `time_ms` (since the epoch) is the latest that was added."""
        self.confirmed_at_ms = time_ms
        os.utime(self._path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))

    def _all_tables(self) -> dict[UUID, TableMetadata]:
        tables: dict[UUID, TableMetadata] = {}
        for schema in self._dropped:
            tables |= tables_of(schema)
        if self.latest is not None:
            tables |= tables_of(self.latest.schema)
        return tables

    def _store(self) -> None:
        assert self.latest is not None
        stored = {
            "node_id": str(self.latest.node_id),
            "schema": self.latest.schema,
            "dropped": self._dropped,
        }
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(stored, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        sync_directory(self._path.parent)


def _one_table(schema: SystemSchema, table_id: UUID) -> SystemSchema:
    """The rows of one table, with the user types of its keyspace."""
    [(name, row)] = [
        (name, row) for name in ("tables", "views") for row in schema.get(name, ()) if str(row["id"]) == str(table_id)
    ]
    keyspace, table = row["keyspace_name"], row["table_name" if name == "tables" else "view_name"]
    found: dict[str, list[Mapping[str, object]]] = {name: [row]}
    for each in _BY_TABLE:
        rows = schema.get(each, ())
        found[each] = [row for row in rows if (row["keyspace_name"], row["table_name"]) == (keyspace, table)]
    for each in ("keyspaces", "types"):
        found[each] = [row for row in schema.get(each, ()) if row["keyspace_name"] == keyspace]
    return found
