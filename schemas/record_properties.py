"""Names and forms of the properties of a data topic's record. All values are text.

`writetime` is DataStax's and in microseconds; a reader that knows no other property reads their topics as well.

    kind             on every record: `row`, `row_deletion`, `static_row`, `partition_deletion`, `range_deletion`
    table_id         uuid of the table that the change belonged to
    table_generation microseconds, Cassandra's write time of the table's CREATE. If a table was dropped and created
                     again, the later one has the greater generation, with any id. Absent on records of earlier versions
    node, segpos     host id of the node, and `<segment id>:<position>` of the change in its commit log
    expires_at       seconds since the epoch when the whole row of the record expires. Absent: it stays, or may stay
    columns_expire_at   JSON object, seconds by column, named as in the value: the column is null from then on
    cells_expire_at  seconds when the last of the row's values expires. Without `expires_at` the row itself may stay
    row_marker       `expires`: no row marker of an earlier INSERT keeps the row beyond `expires_at`. Absent: not known
    deletion_time    microseconds, on partition_deletion and range_deletion
    static_columns   on static_row: JSON list of the table's static columns, named as in the value, whose schema does
                     not show them
    range_start      on range_deletion: base64 of an Avro key, in which the clustering columns after the bound's prefix
                     are null. Absent: open
    range_end        the same for the end of the range. Start and end are in clustering order, as in the commit log
    range_start_inclusive, range_end_inclusive    `true` or `false`
    range_reversed   JSON list of the clustering columns with descending order, named as in the key. Absent: none
    range_types      JSON object of the clustering columns of type `inet` and `uuid`, named as in the key, with their
                     type: the key's schema does not show their order. Absent: none, or a record of an earlier version
    snapshot         `true` on backfilled rows
    expiry           `true` on records without a change: a part of the row has expired
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "CELLS_EXPIRE_AT",
    "COLUMNS_EXPIRE_AT",
    "DELETION_TIME",
    "EXPIRES_AT",
    "EXPIRY",
    "KIND",
    "NODE",
    "RANGE_END",
    "RANGE_END_INCLUSIVE",
    "RANGE_REVERSED",
    "RANGE_START",
    "RANGE_START_INCLUSIVE",
    "RANGE_TYPES",
    "ROW_MARKER",
    "SEGPOS",
    "SNAPSHOT",
    "STATIC_COLUMNS",
    "TABLE_GENERATION",
    "TABLE_ID",
    "WRITETIME",
]

WRITETIME: Final = "writetime"
KIND: Final = "kind"
TABLE_ID: Final = "table_id"
TABLE_GENERATION: Final = "table_generation"
NODE: Final = "node"
SEGPOS: Final = "segpos"
EXPIRES_AT: Final = "expires_at"
COLUMNS_EXPIRE_AT: Final = "columns_expire_at"
CELLS_EXPIRE_AT: Final = "cells_expire_at"
ROW_MARKER: Final = "row_marker"
DELETION_TIME: Final = "deletion_time"
STATIC_COLUMNS: Final = "static_columns"
RANGE_START: Final = "range_start"
RANGE_END: Final = "range_end"
RANGE_START_INCLUSIVE: Final = "range_start_inclusive"
RANGE_END_INCLUSIVE: Final = "range_end_inclusive"
RANGE_REVERSED: Final = "range_reversed"
RANGE_TYPES: Final = "range_types"
SNAPSHOT: Final = "snapshot"
EXPIRY: Final = "expiry"
