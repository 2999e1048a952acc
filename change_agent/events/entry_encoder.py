"""EntryEncoder: encodes the entries of a segment with the native core. The interpreter processes those that it refuses.

A table is handed to the core where it can write the keys of its events; entries of all others are refused. Pure.
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
# A batch: enough to make its accounts cheap, few enough to find room when most of what may be in flight is taken.
_MAX_EVENTS: Final = 250
_MAX_BYTES: Final = 1024 * 1024


class EntryEncoder:
    """Encodes by one state of the schema. Used by the reader's thread.

    `tables` are those whose entries fit their one definition; of them, `left_out` have no events. Entries of one update of a
    `skipped` table are not even decoded.
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
        """By their index in a batch's runs."""
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
                window, offset=offset, position=position, end=end, unsigned_times=unsigned_times, max_events=_MAX_EVENTS,
                max_bytes=_MAX_BYTES,
            )  # fmt: skip
        except self._core.CoreError as error:
            raise NativeCoreError(str(error), position=position) from error


def _native_table(core: NativeCore, table: TableMetadata, topic: int, *, is_published: bool) -> NativeTable | None:
    """None for one whose keys the core does not write."""
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
