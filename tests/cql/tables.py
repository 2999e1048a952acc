"""Tables for tests, as the metadata that the schema of a node has of them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final
from uuid import UUID

from schemas.cql_type import CqlType, parse_cql_type
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata

__all__ = ["Types", "table_of"]

Types = Mapping[str, str | CqlType]
"""CQL types, also as texts, by column name."""
_NONE: Final[Types] = {}
_ID: Final = UUID(int=1)


def table_of(
    partition_key: Types,
    clustering_key: Types = _NONE,
    *,
    static: Types = _NONE,
    regular: Types = _NONE,
    name: str = "ks.t",
    table_id: UUID = _ID,
    descending: Container[str] = (),
    **others: Any,
) -> TableMetadata:
    """A table `keyspace.table`. `descending`: clustering columns in this order; `others`: of TableMetadata."""

    def columns(kind: ColumnKind, types: Types) -> tuple[ColumnMetadata, ...]:
        is_key = kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING)
        return tuple(
            ColumnMetadata(
                name=name,
                kind=kind,
                type=parse_cql_type(each, {}) if isinstance(each, str) else each,
                position=at if is_key else -1,
                reversed=name in descending,
            )
            for at, (name, each) in enumerate(types.items())
        )

    keyspace, _, table = name.partition(".")
    return TableMetadata(
        keyspace=keyspace,
        name=table,
        table_id=table_id,
        partition_key=columns(ColumnKind.PARTITION_KEY, partition_key),
        clustering_key=columns(ColumnKind.CLUSTERING, clustering_key),
        static_columns=columns(ColumnKind.STATIC, static),
        regular_columns=columns(ColumnKind.REGULAR, regular),
        **others,
    )
