"""The schema version of each record, for a reader that does not report it.

A topic with one version needs no look-up of entries: all records of a planned range have versions that the registry
had when the range was planned. With several versions, the entries are read a second time with Pulsar's own client.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from spark_bridge.errors import TopicReadError
from spark_bridge.reading.topic_reader import TopicRange, entry_versions
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import Position

__all__ = ["VersionLookup"]

_COLUMN: Final = "schema_version"
_PLACES: Final = ("topic", "partition", "ledger", "entry")


class VersionLookup:
    """Fills the column `schema_version` of record batches in one task. It holds options only, because it is pickled."""

    def __init__(self, options: BridgeOptions) -> None:
        self._options = options

    def completed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches with their versions and without `ledger` and `entry`.

        Raises TopicReadError, PulsarUnreachableError.
        """
        only: dict[str, int | None] = {}
        for batch in batches:
            places = list(
                zip(*[batch.column(batch.schema.get_field_index(each)).to_pylist() for each in _PLACES], strict=True)
            )
            versions: list[int] = []
            for (topic, partition), run in itertools.groupby(places, key=lambda each: each[:2]):
                entries = [Position(*each[2:]) for each in run]
                if topic not in only:
                    only[topic] = self._only_version(topic)
                version = only[topic]
                if version is None:
                    versions += self._looked_up(topic, partition, entries)
                else:
                    versions += [version] * len(entries)
            yield _replaced(batch, versions)

    def _only_version(self, topic: str) -> int | None:
        """The topic's version if the registry has only one; else None."""
        with PulsarAdmin(self._options, patience_s=self._options.operation_timeout_seconds) as admin:
            found = admin.schemas(topic)
        return found[0]["version"] if len(found) == 1 else None

    def _looked_up(self, topic: str, partition: int, entries: list[Position]) -> list[int]:
        name = topic if partition < 0 else f"{topic}-partition-{partition}"
        before = Position(entries[0].ledger, entries[0].entry - 1)
        known = entry_versions(self._options, TopicRange(topic, name, partition, before, max(entries)))
        try:
            return [known[each] for each in entries]
        except KeyError as error:
            reason = f"entry {error.args[0]} went away while its schema version was looked up; run the query again"
            raise TopicReadError(name, str(before), reason) from None


def _replaced(batch: pa.RecordBatch, versions: list[int]) -> pa.RecordBatch:
    names = [name for name in batch.schema.names if name not in ("ledger", "entry")]
    columns = [
        pa.array(versions, pa.int64()) if name == _COLUMN else batch.column(batch.schema.get_field_index(name))
        for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, names=names)
