"""The rows that Cassandra returns to SELECT, in the forms of `values`, to be compared with the topics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cassandra import ConsistencyLevel, DriverException
from cassandra.cluster import EXEC_PROFILE_DEFAULT, ExecutionProfile, NoHostAvailable
from cassandra.query import SimpleStatement, dict_factory
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from tests.fault_kit.oracle.folding import Key, TableShape
from tests.fault_kit.oracle.values import Form, form_of_driver, is_multi_cell

if TYPE_CHECKING:
    from cassandra.cluster import Session

__all__ = ["Stored", "select_all", "table_shape"]

_PAGE_ROWS = 500


class Stored:
    """A table's rows by partition and clustering, and the static columns of each partition that has any row."""

    def __init__(self) -> None:
        self.rows: dict[Key, dict[Key, Mapping[str, Form]]] = {}
        self.statics: dict[Key, Mapping[str, Form]] = {}
        self.expiries_s: dict[tuple[Key, Key], Mapping[str, float]] = {}
        """By row and column: the second since the epoch when the value expires. Only single-cell columns with a TTL are
        here."""


def table_shape(session: Session, keyspace: str, table: str) -> TableShape:
    """The table's columns as they are now, from the system tables."""
    (found,) = session.execute(
        "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s", (keyspace, table)
    )
    columns = session.execute(
        "SELECT column_name, kind, position, type FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s",
        (keyspace, table),
    )
    ordered = sorted(columns, key=lambda column: (column.position, column.column_name))

    def of(kind: str) -> dict[str, str]:
        return {column.column_name: column.type for column in ordered if column.kind == kind}

    return TableShape(
        name=table,
        table_id=str(found.id),
        partition=of("partition_key"),
        clustering=of("clustering"),
        static=of("static"),
        regular=of("regular"),
    )


def select_all(session: Session, keyspace: str, shape: TableShape) -> Stored:
    """All rows and their TTLs, read from all replicas."""
    columns = [*shape.partition, *shape.clustering, *shape.static, *shape.regular]
    one_cell = [name for name, cql_type in shape.regular.items() if not is_multi_cell(cql_type)]
    selected = [f'"{name}"' for name in columns]
    selected += [f'TTL("{name}") AS ttl_{at}' for at, name in enumerate(one_cell)]
    statement = SimpleStatement(
        f'SELECT {", ".join(selected)} FROM {keyspace}."{shape.name}"',
        consistency_level=ConsistencyLevel.ALL,
        fetch_size=_PAGE_ROWS,
    )
    profile = session.execution_profile_clone_update(EXEC_PROFILE_DEFAULT, row_factory=dict_factory)
    stored = Stored()
    for row, read_s in _read(session, statement, profile):
        pk = _forms(shape.partition, row)
        stored.rows.setdefault(pk, {})
        if shape.static:
            stored.statics[pk] = dict(zip(shape.static, _forms(shape.static, row), strict=True))
        ck = _forms(shape.clustering, row)
        if shape.clustering and None in ck:
            continue  # a partition of static columns only
        stored.rows[pk][ck] = dict(zip(shape.regular, _forms(shape.regular, row), strict=True))
        ttls = {name: row[f"ttl_{at}"] for at, name in enumerate(one_cell)}
        stored.expiries_s[pk, ck] = {name: read_s + ttl for name, ttl in ttls.items() if isinstance(ttl, int)}
    return stored


def _forms(columns: Mapping[str, str], row: Mapping[str, object]) -> Key:
    return tuple(form_of_driver(cql_type, row[name]) for name, cql_type in columns.items())


@retry(
    retry=retry_if_exception_type((DriverException, NoHostAvailable)),
    wait=wait_fixed(2),
    stop=stop_after_attempt(10),
    reraise=True,
)
def _read(
    session: Session, statement: SimpleStatement, profile: ExecutionProfile
) -> list[tuple[dict[str, object], float]]:
    """Return the rows, each with the second when it was read. It retries: on a busy machine Cassandra may time out on a
    page."""
    result = session.execute(statement, timeout=120, execution_profile=profile)
    found: list[tuple[dict[str, object], float]] = []
    while True:
        now_s = time.time()
        found += [(row, now_s) for row in result.current_rows]
        if not result.has_more_pages:
            return found
        result.fetch_next_page()
