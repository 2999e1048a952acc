"""EntryEncoder: encodes the entries of a segment with the native core. The interpreter processes refused entries.

A published table is given to the core only if the core can write the table's keys. The core refuses entries of tables
that it does not have. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from change_agent.db.serialization_header import ColumnLayout, KnownColumns, TableLayout
from change_agent.errors import NativeCoreError
from change_agent.native_core import EncodedEntries, KeyForm, NativeColumn, NativeCore, NativeTable
from schemas.avro_forms import (
    AS_BOOLEAN,
    AS_BYTES,
    AS_DATE,
    AS_FLOATING,
    AS_SIGNED,
    AS_TEXT,
    AS_UUID,
    avro_form,
)
from schemas.cql_type import CqlType
from schemas.table_metadata import TableMetadata

__all__ = ["EntryEncoder"]

_COPIED: Final = (AS_BOOLEAN, AS_BYTES, AS_DATE, AS_SIGNED, AS_TEXT, AS_UUID)
# Limits of a batch: large enough to make accounting cheap, small enough to fit when the limits in flight are nearly
# reached.
_MAX_EVENTS: Final = 250
_MAX_BYTES: Final = 1024 * 1024


class EntryEncoder:
    """Encodes entries with one state of the schema. Used by the reader's thread.

    `tables` are the tables whose definition needs no choice; those in `left_out` have no events. An entry with one
    update, of a `skipped` table, is not decoded.
    """

    def __init__(
        self,
        core: NativeCore,
        tables: Sequence[TableMetadata],
        *,
        left_out: Collection[bytes],
        skipped: Collection[bytes],
    ) -> None:
        self._core: Final = core
        topics: dict[str, int] = {}
        self.tables: Final[list[TableMetadata]] = []
        """The core's tables, by their index in `EncodedEntries.runs`."""
        natives: list[NativeTable] = []
        for table in tables:
            topic = topics.setdefault(table.full_name, len(topics))
            native = _native_table(core, table, topic, is_published=table.table_id.bytes not in left_out)
            if native is not None:
                self.tables.append(table)
                natives.append(native)
        self._encoder: Final = core.Encoder(natives, list(skipped))

    def take(
        self, window: bytes, offset: int, position: int, end: int, *, unsigned_times: bool
    ) -> EncodedEntries | None:
        """See NativeEncoder.encode. Raises NativeCoreError."""
        try:
            return self._encoder.encode(
                window,
                offset=offset,
                position=position,
                end=end,
                unsigned_times=unsigned_times,
                max_events=_MAX_EVENTS,
                max_bytes=_MAX_BYTES,
            )
        except self._core.CoreError as error:
            raise NativeCoreError(str(error), position=position) from error


def _native_table(core: NativeCore, table: TableMetadata, topic: int, *, is_published: bool) -> NativeTable | None:
    """The table in the core's form; None if it is published and the core cannot write its keys."""
    partition = [_form(column.type) for column in table.partition_key]
    layout = TableLayout(table)
    clustering = [
        (length, _form(column.type))
        for length, column in zip(layout.clustering_lengths, table.clustering_key, strict=True)
    ]
    forms = [each for each in partition if each is not None]
    if is_published and (len(forms) < len(partition) or any(form is None for _, form in clustering)):
        return None
    names: dict[bytes, int] = {}
    return core.Table(
        table_id=table.table_id.bytes,
        topic=topic,
        is_published=is_published,
        partition=forms if is_published else [],
        clustering=clustering,
        static_columns=_columns(layout.static_columns, names),
        regular_columns=_columns(layout.regular_columns, names),
        names=list(names),
    )


def _form(cql_type: CqlType) -> KeyForm | None:
    form = avro_form(cql_type)
    return form if form[0] in _COPIED or form == (AS_FLOATING, 8) else None


def _columns(known: KnownColumns, names: dict[bytes, int]) -> list[NativeColumn]:
    return [_column(name, layout, names.setdefault(name, len(names))) for name, layout in known.layouts().items()]


def _column(name: bytes, layout: ColumnLayout, name_id: int) -> NativeColumn:
    return name, name_id, layout.is_complex, layout.is_counter, layout.fixed_length, layout.dropped_time_us
