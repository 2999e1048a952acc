"""Reads the table's metadata from Cassandra's `system_schema`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from schemas.system_schema import SELECTS, SystemSchema, plain_row, tables_of
from schemas.table_metadata import TableMetadata
from source_connector.errors import TableNotFoundError

if TYPE_CHECKING:
    from source_connector.rows.cassandra_client import CassandraClient

__all__ = ["TableSchemaReader", "VersionedTable"]

# Rows of views are not needed: a view has no commit log entries.
_LISTS = ("tables", "columns", "types", "dropped_columns")


class VersionedTable(NamedTuple):
    """A table that was read, and a version of the cluster's schema.

    `is_agreed`: all nodes had this version before and after the read. Otherwise the table may be of an earlier version.
    """

    version: UUID
    table: TableMetadata
    is_agreed: bool


class TableSchemaReader:
    """Reads the metadata of one table and the version of the cluster's schema. Each call waits for the answer."""

    def __init__(self, client: CassandraClient, keyspace: str, table: str) -> None:
        self._client = client
        self.keyspace: Final = keyspace
        self.table: Final = table

    def read_versioned(self) -> VersionedTable:
        """The table with the schema's version. Raises the errors of `read`."""
        version, before = self.version(), self._client.schema_versions()
        table = self.read()
        is_agreed = before == self._client.schema_versions() and len(before) == 1
        # `version` may come from a node that is ahead of the nodes that returned the table.
        return VersionedTable(next(iter(before)) if is_agreed else version, table, is_agreed)

    def read(self) -> TableMetadata:
        """The table as it is now. Raises TableNotFoundError (also if it is just being dropped or created), FetchError,
        SystemSchemaError.
        """
        schema: SystemSchema = {
            name: [
                plain_row(row)
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
        """When the table was created: the smallest write time of its columns, because CREATE writes all of them.

        This write time is the same on all nodes and survives restarts. It is greater than that of any earlier DROP, or
        the table would not exist. The write time in `system_schema.tables` changes with each ALTER. The smallest one of
        the columns stays as long as one column is as it was created: ALTER writes columns that are added or renamed, or
        whose user type changes.
        """
        select = "SELECT WRITETIME(type) AS written_us FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"
        rows = self._client.system_rows(select, (self.keyspace, self.table))
        return min((row["written_us"] for row in rows), default=None)

    def current_id(self) -> object:
        """The id that the table has now; None if there is no table. Raises FetchError.

        `read` reads its lists one by one. If the id is still the same after that, no DROP or CREATE came in between.
        """
        select = "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
        rows = self._client.system_rows(select, (self.keyspace, self.table))
        return rows[0]["id"] if rows else None

    def version(self) -> UUID:
        """A value that changes with every change of the cluster's schema. Raises FetchError."""
        return self._client.schema_version()

    def version_since(self, asked_after: float) -> UUID:
        """The version that a node had at this time (of `time.monotonic`) or later. Raises FetchError."""
        return self._client.schema_version(asked_after)
