"""The progress of a topic of the job `publish`: a state file below the mirror's folder."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

from pyspark.sql import SparkSession

from spark_bridge.jobs.state_file import StateFile, understood

__all__ = ["Kind", "Published", "PublishedFile", "published_in"]

_WITHOUT_STATE: Final = "run the version that wrote it, or publish the whole table anew with --rebuild"

Kind = Literal["rows", "changes"]
"""The content of a topic: rows by key, or every change with both images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The progress of one topic. A life of the job begins with its first run, and with each rebuild.

    `producer`: the producers' names begin with it. Each life has another one, because its numbers begin anew.
    `epoch`: the topic has all changes of the mirror up to this epoch.
    `whole_epoch`: all rows of this epoch are being published, instead of changes (None: changes are published).
    `creations`: when Pulsar made each of the topic's partitions (None: it had no records, or Pulsar does not tell).
    `schemas`: how many of the data topic's schema versions the topic has.
    `before`: the last position of each partition when this life began. Records up to it may be of any producer.
    `sent_until`: the last epoch whose changes a run has begun to send (None: stored before this was noted).
    """

    topic: str
    producer: str
    epoch: int = -1
    whole_epoch: int | None = None
    creations: Mapping[str, str | None] = field(default_factory=dict)
    schemas: int = 0
    before: Mapping[str, str] = field(default_factory=dict)
    sent_until: int | None = None

    @classmethod
    def anew(cls, topic: str, whole_epoch: int | None) -> Published:
        """The state of a new life: nothing is published yet."""
        producer = f"cassandra-cdc-publish-{uuid.uuid4().hex[:12]}"
        return cls(topic=topic, producer=producer, whole_epoch=whole_epoch, sent_until=-1)

    def is_of_later_run(self, epoch: int) -> bool:
        """Return True if a run that this state does not know has sent `epoch`, the newest one that the broker has."""
        return self.sent_until is not None and epoch > self.sent_until

    def has_other_writer(self, partition: str, writer: str | None, last_position: Callable[[str], str]) -> bool:
        """Return True if another producer has written to a partition since this life began.

        `writer`: the producer of the partition's last record; None: there is no record. In a partition without records
        of this life, the last record may be one of the life before, so its position decides. The position is read after
        the writer, so that a record that another producer adds in between is noticed.
        """
        if writer is None or writer.startswith(self.producer):
            return False
        return self.before.get(partition) != last_position(partition)


class PublishedFile:
    """The state file of one topic, below a mirror's folder. Raises StateFileError."""

    def __init__(self, spark: SparkSession, target: str, kind: Kind) -> None:
        self._folder = f"{target.rstrip('/')}/published/{kind}"
        self._file = StateFile(spark, self._folder)

    def read(self) -> Published | None:
        """The stored state; None before the first run. Raises DamagedStateError."""
        stored = self._file.read()
        return None if stored is None else published_in(self._folder, stored)

    def write(self, published: Published) -> None:
        """Store the state: before the first record of a life, and before and after each micro-batch."""
        self._file.write(json.dumps(asdict(published)))


def published_in(folder: str, stored: str) -> Published:
    """The state in a folder. Raises DamagedStateError."""
    return understood(folder, stored, lambda text: Published(**json.loads(text)), _WITHOUT_STATE)
