"""Which records of a row count no more: those of an earlier life of its table, and those that a truncation or a drop
removed (docs/records.md). The topic still has them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from cdc.health.line_config import LineConfig
from cdc.health.reader_options import WRITTEN, reader_options
from cdc.trace.topic_places import DataRecord
from schemas.record_properties import TABLE_GENERATION, TABLE_ID, WRITETIME
from spark_bridge.rows.cleared import clears
from spark_bridge.topics.clearings import clearings_now
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.table_clearing import DROP, TableClearing

__all__ = ["Removals", "clearings_of"]

_OF_EARLIER: Final = "of an earlier table with this name, so it does not count"


def clearings_of(config: LineConfig, topic: str, schema_changes_topic: str | None) -> tuple[TableClearing, ...]:
    """The truncations and drops that the connector has published about a data topic.

    `schema_changes_topic`: the source's option; None if it has none. Raises ConfigError, PulsarUnreachableError.
    """
    named = {} if schema_changes_topic is None else {"schemaChangesTopic": schema_changes_topic}
    return clearings_now(BridgeOptions.from_mapping({**reader_options(config), "topic": topic, **named}, WRITTEN))


class Removals:
    """Tells of each record if it still counts.

    `table_id`: the table as Cassandra has it. `records`: all records about the row.
    """

    def __init__(self, table_id: UUID, records: Sequence[DataRecord], clearings: Sequence[TableClearing]) -> None:
        self._table_id: Final = str(table_id)
        self._clearings: Final = clearings
        own = (_generation(each) for each in records if self._is_of_table(each))
        self._generation: Final = max((each for each in own if each is not None), default=None)

    def reason(self, record: DataRecord) -> str:
        """Why the record does not count; empty for one that counts."""
        generation = _generation(record)
        if not self._is_of_table(record) or (
            None not in (generation, self._generation) and generation != self._generation
        ):
            return _OF_EARLIER
        for each in self._clearings:
            same = each.table_id == self._table_id and (
                None in (each.table_generation, self._generation) or each.table_generation == self._generation
            )
            if same and self._is_removed(record, each):
                what = "drop" if each.kind == DROP else "truncation"
                return (
                    f"removed by the {what} of {datetime.fromtimestamp(each.time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
                )
        return ""

    def _is_of_table(self, record: DataRecord) -> bool:
        """True also for a record that does not name its table, as those of DataStax's connector."""
        return record.properties.get(TABLE_ID, self._table_id) == self._table_id

    @staticmethod
    def _is_removed(record: DataRecord, clearing: TableClearing) -> bool:
        written = record.properties.get(WRITETIME)
        return clears(
            clearing,
            record.partition,
            record.position,
            None if written is None else int(written),
            is_deletion=record.value is None,
        )


def _generation(record: DataRecord) -> int | None:
    text = record.properties.get(TABLE_GENERATION, "")
    return int(text) if text.isdecimal() else None
