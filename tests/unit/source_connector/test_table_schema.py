"""A table's metadata, which is read in several parts while the table may change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast
from uuid import UUID

import pytest

from source_connector.errors import TableNotFoundError
from source_connector.rows.cassandra_client import CassandraClient
from source_connector.tables.table_schema import TableSchemaReader

OLD, NEW = UUID(int=1), UUID(int=2)
Row = Mapping[str, object]


class Server:
    """A `system_schema` that changes after some reads; each state has a table's id, if any, and its columns."""

    def __init__(self, now: tuple[UUID | None, str], then: tuple[UUID | None, str], reads: int) -> None:
        self._now, self._then, self._reads = now, then, reads

    def system_rows(self, select: str, values: Sequence[object] = ()) -> list[Row]:
        table_id, columns = self._now if self._reads > 0 else self._then
        self._reads -= 1
        name = {"keyspace_name": "ks", "table_name": "t"}
        if ".tables" in select:
            return [] if table_id is None else [{**name, "id": table_id, "flags": None, "cdc": True}]
        if ".columns" in select:
            kinds = ("partition_key", "regular", "regular")
            return [
                {
                    **name,
                    "column_name": column,
                    "kind": kind,
                    "position": 0,
                    "clustering_order": "none",
                    "type": "int",
                    "written_us": ord(column),
                }
                for column, kind in zip(columns, kinds, strict=False)
            ]
        return []


def read(now: tuple[UUID | None, str], then: tuple[UUID | None, str], reads: int) -> tuple[UUID, str]:
    server = cast("CassandraClient", Server(now, then, reads))
    table = TableSchemaReader(server, "ks", "t").read()
    columns = (*table.partition_key, *table.regular_columns)
    return table.table_id, "".join(column.name for column in columns)


@pytest.mark.parametrize("reads", range(1, 6))
@pytest.mark.parametrize("then", [(None, ""), (NEW, "kw")])
def test_a_table_that_goes_while_it_is_read_is_not_there(then: tuple[UUID | None, str], reads: int) -> None:
    """This holds for each part that was read before the drop or the new CREATE: a table without columns, or with
    another table's, is none."""
    with pytest.raises(TableNotFoundError, match=r"table ks\.t does not exist"):
        read((OLD, "kv"), then, reads)


def test_a_table_whose_columns_are_not_there_yet_is_not_there() -> None:
    """A CREATE becomes visible in one table of `system_schema` after the other."""
    with pytest.raises(TableNotFoundError):
        read((NEW, ""), (NEW, "kw"), 2)


def test_the_generation_is_the_write_time_of_the_oldest_column() -> None:
    """Columns that ALTER adds or writes again are later."""
    server = cast("CassandraClient", Server((NEW, "wak"), (NEW, "wak"), 9))
    assert TableSchemaReader(server, "ks", "t").read().generation == ord("a")


def test_a_table_that_stays_is_read() -> None:
    """Its metadata is read as before or after the change of another table."""
    assert read((None, ""), (NEW, "kw"), 0) == (NEW, "kw")
    assert read((OLD, "kv"), (NEW, "kw"), 6) == (OLD, "kv")


@pytest.mark.parametrize(
    ("before", "after", "found"), [({2}, {2}, (2, True)), ({2}, {3}, (1, False)), ({2, 3}, {2, 3}, (1, False))]
)
def test_the_version_of_a_table_is_the_one_that_all_nodes_had(
    before: set[int], after: set[int], found: tuple[int, bool]
) -> None:
    """Another node may have reported a version that the nodes with the table's metadata do not know yet."""
    versions = iter([before, after])

    class Nodes(Server):
        def schema_version(self) -> UUID:
            return UUID(int=1)

        def schema_versions(self) -> set[UUID]:
            return {UUID(int=each) for each in next(versions)}

    server = cast("CassandraClient", Nodes((NEW, "kw"), (NEW, "kw"), 9))
    read = TableSchemaReader(server, "ks", "t").read_versioned()
    assert (read.version.int, read.is_agreed) == found
