"""The features that are counted in mutations of the commit log: subsets of an update's static columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from change_agent.commitlog.entry import CommitLogEntry
from change_agent.db.mutation import decode_mutation
from change_agent.events.decode_format import mutation_json
from schemas.cql_type import NativeType
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from tests.golden.segments import GOLDEN_SEGMENTS
from tests.oracle.features import FeatureCounts, count_features

_SEGMENT = GOLDEN_SEGMENTS[-1]
# The header with one static column and no other; then a static row that has all of them.
_ALL = b"\1\1s\0\xa0\1"
# The header with another static column, and a static row that does not have it: its bitmap names the missing column.
_SUBSET = b"\2\1s\1z\0\x80\1\2"


def _counted(payload: bytes, tables: Mapping[UUID, TableMetadata]) -> Mapping[str, int]:
    counts = FeatureCounts(_SEGMENT.line, _SEGMENT.version, 0)
    line = mutation_json("", CommitLogEntry(0, payload), decode_mutation(payload, _SEGMENT.version, tables))
    count_features(counts, "golden", [(line, payload)], tables)
    return counts.counts


def test_a_static_row_without_some_static_columns_of_its_update_is_counted() -> None:
    """The header has the columns of the whole statement: a batch may write others in another partition."""
    (payload,) = [each.payload for each in _SEGMENT.entries() if _ALL in each.payload]
    other = ColumnMetadata(name="z", kind=ColumnKind.STATIC, type=NativeType("int"))
    tables = {
        table_id: replace(table, static_columns=(*table.static_columns, other))
        for table_id, table in _SEGMENT.tables().items()
    }
    whole, subset = (_counted(each, tables) for each in (payload, payload.replace(_ALL, _SUBSET)))
    assert (whole["static row alone"], whole["column subset: bitmap"]) == (1, 0)
    assert (subset["static row alone"], subset["column subset: bitmap"]) == (1, 1)
