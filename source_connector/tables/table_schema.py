"""The table's metadata as Cassandra's `system_schema` has it now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from schemas.system_schema import SELECTS, SystemSchema, tables_of
from schemas.table_metadata import TableMetadata
from source_connector.errors import TableNotFoundError

if TYPE_CHECKING:
    from source_connector.rows.cassandra_client import CassandraClient

__all__ = ["TableSchemaReader", "VersionedTable"]

# Rows of views are not needed: a view has no commit log entries.
_LISTS = ("tables", "columns", "types", "dropped_columns")


class VersionedTable(NamedTuple):
    """A table, and the version of the cluster's schema by which, or by a later one, it was read.

    `is_agreed`: all nodes had that version before and behind it. Otherwise the table may be that of an earlier version.
    """

    version: UUID
    table: TableMetadata
    is_agreed: bool


class TableSchemaReader:
    """Reads the metadata of one table, and says when any schema of the cluster has changed. Waits for the answers."""

    def __init__(self, client: CassandraClient, keyspace: str, table: str) -> None:
        self._client = client
        self.keyspace: Final = keyspace
        self.table: Final = table

    def read_versioned(self) -> VersionedTable:
        """The table with the schema's version. Raises as `read` does."""
        version, before = self.version(), self._client.schema_versions()
        table = self.read()
        is_agreed = before == self._client.schema_versions() and len(before) == 1
        # `version` may come from a node that is ahead of those that returned the table.
        return VersionedTable(next(iter(before)) if is_agreed else version, table, is_agreed)

    def read(self) -> TableMetadata:
        """The table as it is now. Raises TableNotFoundError (also where it is dropped, or created, just now), FetchError,
        SystemSchemaError.
        """
        schema: SystemSchema = {
            name: [
                {column: value.hex() if isinstance(value, bytes) else value for column, value in row.items()}
                for row in self._client.system_rows(f"{SELECTS[name]} WHERE keyspace_name = %s", (self.keyspace,))
            ]
            for name in _LISTS
        }
        generation = self._generation()
        for table in tables_of(schema).values():
            if table.name == self.table and table.partition_key and self.current_id() == table.table_id:
                return replace(table, generation=generation)
        raise TableNotFoundError(f"{self.keyspace}.{self.table}")

    def _generation(self) -> int | None:
        """When the table was created: Cassandra writes all its columns then, and each at the table's CREATE or later.

        The write time is the same on all nodes, survives restarts, and is greater than that of any DROP before, or the table would
        not be there. `system_schema.tables` has another one after each ALTER. The smallest one stays as long as one column is left
        as it was created: ALTER writes those that are added, renamed, or of a user type that changes.
        """
        select = "SELECT WRITETIME(type) AS written_us FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"
        rows = self._client.system_rows(select, (self.keyspace, self.table))
        return min((row["written_us"] for row in rows), default=None)

    def current_id(self) -> object:
        """The id that the table has now, None without one. Raises FetchError.

        The lists are read one by one: where the id is the same behind them, no DROP or CREATE came in between.
        """
        select = "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
        rows = self._client.system_rows(select, (self.keyspace, self.table))
        return rows[0]["id"] if rows else None

    def version(self) -> UUID:
        """A value that changes with every change of the cluster's schema. Raises FetchError."""
        return self._client.schema_version()

    def version_since(self, asked_after: float) -> UUID:
        """The version that a node had at this time, of `time.monotonic`, or later. Raises FetchError."""
        return self._client.schema_version(asked_after)
