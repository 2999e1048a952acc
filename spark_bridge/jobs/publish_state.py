"""How far a topic of the job `publish` has come: a state file below the mirror's folder."""

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
"""What a topic has: rows by key, or every change with both images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """`epoch`: all changes of the mirror up to it are stored in the topic. `producer`: the name by which the broker knows this
    life of the job; one that begins anew has another, for its numbers begin anew.

    `whole_epoch`: the rows that there were in this epoch are published now, as such (None: changes are). `creations`: of each of the
    topic's partitions, when Pulsar made it (None: it had no records, or Pulsar does not tell). `schemas`: how many of the data topic's schema versions the topic has.
    `before`: the last position of each partition when this life began: records up to it may be of any producer. `sent_until`: the
    last epoch of which a run has begun to send changes (None: stored before this was noted).
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
        """Nothing is published."""
        producer = f"cassandra-cdc-publish-{uuid.uuid4().hex[:12]}"
        return cls(topic=topic, producer=producer, whole_epoch=whole_epoch, sent_until=-1)

    def is_of_later_run(self, epoch: int) -> bool:
        """Whether changes of this epoch, which the broker has of this life, were sent by a run that this state does not know."""
        return self.sent_until is not None and epoch > self.sent_until

    def has_other_writer(self, partition: str, writer: str | None, last_position: Callable[[str], str]) -> bool:
        """Whether another producer has written to a partition since this life began.

        `writer`: the producer of the partition's last record, None without one. A partition that gets no record of this life
        ends with one of the life before. So the position decides. It is read after the writer: a record that another
        producer adds in between moves it.
        """
        if writer is None or writer.startswith(self.producer):
            return False
        return self.before.get(partition) != last_position(partition)


class PublishedFile:
    """Of one topic below a mirror's folder. Raises StateFileError."""

    def __init__(self, spark: SparkSession, target: str, kind: Kind) -> None:
        self._folder = f"{target.rstrip('/')}/published/{kind}"
        self._file = StateFile(spark, self._folder)

    def read(self) -> Published | None:
        """None before the first run."""
        stored = self._file.read()
        return None if stored is None else published_in(self._folder, stored)

    def write(self, published: Published) -> None:
        """Before the first record of a life, and before and after each micro-batch."""
        self._file.write(json.dumps(asdict(published)))


def published_in(folder: str, stored: str) -> Published:
    """The state in a folder. Raises DamagedStateError."""
    return understood(folder, stored, lambda text: Published(**json.loads(text)), _WITHOUT_STATE)
