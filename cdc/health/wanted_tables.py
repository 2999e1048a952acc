"""Finds tables that line.yaml wants to be captured (`tables`), and that are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from cdc.health.findings import Finding, failure
from change_agent.segments.segment_rotation import ROTATION_KEYSPACE
from schemas.cql_identifier import cql_identifier
from schemas.similar_tables import is_of_cluster

__all__ = ["NOT_CAPTURED", "cdc_statement", "is_of_system", "not_captured"]

NOT_CAPTURED: Final = "has cdc = false: its changes are not captured"


def not_captured(tables: Mapping[str, bool], wanted: Sequence[str]) -> Iterator[Finding]:
    """A failure for each table with `cdc = false` that a pattern of `wanted` matches, and for each pattern without a table.

    `tables`: all tables of the cluster by `keyspace.table`, with their option `cdc`; empty if they are not known.
    """
    if not tables:
        return
    users = {table: has_cdc for table, has_cdc in tables.items() if not is_of_system(table.partition(".")[0])}
    for table in sorted(users):
        if not users[table] and any(fnmatchcase(table, pattern) for pattern in wanted):
            yield failure(table, NOT_CAPTURED, cdc_statement(table))
    for pattern in wanted:
        if not any(fnmatchcase(table, pattern) for table in users):
            yield failure(pattern, "no table matches this pattern", "create it, or correct tables in line.yaml")


def is_of_system(keyspace: str) -> bool:
    """Return True for a keyspace that is Cassandra's own, or the agent's."""
    return is_of_cluster(keyspace) or keyspace == ROTATION_KEYSPACE


def cdc_statement(table: str) -> str:
    """The statement that enables CDC for `keyspace.table`."""
    return f"ALTER TABLE {'.'.join(map(cql_identifier, table.split('.', 1)))} WITH cdc = true;"
