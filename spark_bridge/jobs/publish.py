"""The job `publish`: from a mirror's change log to topics that any keyed sink can trust.

`rows-<keyspace>.<table>`: the row of a key, or null, with the data topic's schemas. `changes-<keyspace>.<table>`: every
change with both images. A topic has each change once, in order per key, even if processes are killed: records are
numbered by the mirror's epoch and their place in it, the broker knows the highest number that it has accepted, and the
change log does not change.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.errors import ConfigError
from schemas.topics import full_topic_name
from spark_bridge.errors import PublishError
from spark_bridge.jobs.arguments import refuse_interval
from spark_bridge.jobs.batch_session import own_session, pin_session
from spark_bridge.jobs.lake_table import name_key_of
from spark_bridge.jobs.log_columns import LogColumns
from spark_bridge.jobs.mirror_state import MirrorTables, refuse_other_topic
from spark_bridge.jobs.publish_envelope import envelope_schema
from spark_bridge.jobs.publish_records import ChangeRecords
from spark_bridge.jobs.publish_sender import RecordSender, epoch_of, producer_name
from spark_bridge.jobs.publish_state import Kind, Published, PublishedFile
from spark_bridge.reading.readers import raw_batch
from spark_bridge.rows.conformed import struct_type
from spark_bridge.rows.record_places import RECORD_POSITION, RECORD_SOURCE
from spark_bridge.rows.sql_columns import quoted
from spark_bridge.topics.admin import PATIENCE_S
from spark_bridge.topics.keyed_producer import KeyedProducer, KeyValueSchema, register_schema
from spark_bridge.topics.options import BridgeOptions, batch_options
from spark_bridge.topics.publish_admin import PublishAdmin
from spark_bridge.topics.topic_schemas import SchemaVersion, TopicSchemas

__all__ = ["PublishSummary", "publish", "topic_beside"]

_log: Final = logging.getLogger(__name__)
OnBatch = Callable[[str, int, int], None]
_LEAST_WAIT_S: Final = 1.0
"""The shortest wait between two checks for changes: each check reads from the lake's file system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSummary:
    """The result of a run: records by topic, the mirror's epoch up to which all is published, and the duration."""

    records: Mapping[str, int]
    epoch: int
    seconds: float


def publish(
    spark: SparkSession,
    options: Mapping[str, str | int | bool],
    target: str,
    topics: Mapping[Kind, str | None],
    *,
    rebuild: bool = False,
    follow_interval_s: float | None = None,
    stopping: threading.Event | None = None,
    on_batch: OnBatch = lambda topic, records, epoch: None,
    on_note: Callable[[str], None] = _log.warning,
) -> PublishSummary:
    """Publish the mirror's changes below `target` since the last run; with `follow_interval_s` until `stopping` is set.

    `options` name the mirror's data topic, and may be the mirror's options. `topics`: the topics to publish to (None:
    the data topic's name with `rows-` or `changes-` instead of `data-`). `rebuild`: publish the whole table again
    first. `follow_interval_s`: seconds between two checks for changes. When `stopping` is set, the current micro-batch
    is finished. `on_batch` gets the topic, the number of records, and the epoch that is reached. `on_note` gets a
    message of one line for the user. Raises ConfigError, PublishError, TopicError, PulsarUnreachableError,
    StateFileError, and Spark's errors with these.
    """
    refuse_interval("follow_interval_s", follow_interval_s)
    parsed = BridgeOptions.from_mapping(batch_options(options))
    started = time.monotonic()
    with own_session(spark) as own:
        pin_session(own)
        # A run that somebody waits for ends soon when Pulsar is away. One that follows survives a restart of the broker.
        patience_s = PATIENCE_S if follow_interval_s is None else parsed.operation_timeout_seconds
        works = [_Topic(own, parsed, target, kind, topic, on_note, patience_s) for kind, topic in topics.items()]
        sent = dict.fromkeys([each.topic for each in works], 0)
        stopping = stopping or threading.Event()
        while True:
            reached = []
            for each in works:
                records, epoch = each.run(rebuild=rebuild)
                sent[each.topic] += records
                reached.append(epoch)
                on_batch(each.topic, records, epoch)
            rebuild = False
            if follow_interval_s is None or stopping.wait(max(_LEAST_WAIT_S, follow_interval_s)):
                # A mirror that runs meanwhile may have reached a later epoch for the last topic only.
                epoch = min(reached, default=-1)
                return PublishSummary(records=sent, epoch=epoch, seconds=time.monotonic() - started)


def topic_beside(data_topic: str, kind: Kind) -> str:
    """The topic `<kind>-<keyspace>.<table>` for `data-<keyspace>.<table>`.

    Raises ConfigError for another data topic's name.
    """
    namespace, _, name = data_topic.rpartition("/")
    if not name.startswith("data-"):
        raise ConfigError.of(
            "topic", f"{data_topic} has no name data-<keyspace>.<table>: name the topic (--{kind}-topic)"
        )
    return f"{namespace}/{kind}-{name.removeprefix('data-')}"


class _Topic:
    """One topic to publish to."""

    def __init__(
        self,
        spark: SparkSession,
        options: BridgeOptions,
        target: str,
        kind: Kind,
        topic: str | None,
        on_note: Callable[[str], None],
        patience_s: float,
    ) -> None:
        """`patience_s`: see PulsarAdmin."""
        self.kind: Kind = kind
        data_topic = options.only_topic
        self.topic = full_topic_name(topic or topic_beside(data_topic, kind))
        self._options = options.of_whole_topic(self.topic)
        self._data_options = options
        if self.topic == data_topic:
            raise ConfigError.of(f"{kind}-topic", f"{topic} is the data topic, to which the connector writes")
        self._spark = spark
        self._target = target
        self._on_note = on_note
        self._patience_s = patience_s
        self._file = PublishedFile(spark, target, kind)
        self._is_begun = False
        self._is_checked = False
        self._reached: int | None = None

    def run(self, *, rebuild: bool) -> tuple[int, int]:
        """Publish the new changes. Return the number of records that were sent, and the epoch that is reached."""
        tables = MirrorTables(self._spark, self._target)
        # Read before the log: meanwhile a mirror may write a later epoch, and the log may have only a part of it.
        applied = tables.applied()
        epoch = applied.epoch
        if epoch == self._reached and not rebuild:
            return 0, epoch
        refuse_other_topic(applied, self._data_options.only_topic, self._target, "target")
        log = tables.changes.read()
        if log is None:
            raise ConfigError.of(
                "target",
                f"the mirror below {self._target} keeps no change log, from which publish reads; run "
                f"cdc spark changelog --target {self._target} with the mirror's other options once: it is kept from then on",
            )
        log = _with_source(log)
        schemas = TopicSchemas.fetch(self._data_options, patience_s=self._patience_s)
        with self._admin(self._data_options) as admin:
            count = len(admin.topic_partitions())
        with self._admin(self._options) as admin:
            partitions = admin.make(self.topic, count)
            published = self._begun(admin, partitions, epoch, rebuild=rebuild)
        self._check_epoch(published, epoch)
        published = self._with_schemas(published, schemas, partitions[0])
        if published.whole_epoch is None and published.epoch >= epoch:
            self._reached = epoch
            return 0, epoch
        reached = epoch if published.whole_epoch is None else published.whole_epoch
        self._check_numbers(published, partitions, self._schema(schemas.newest))
        published = replace(published, sent_until=reached)
        self._file.write(published)
        names = LogColumns.of(schemas, applied, name_key_of(self._spark))
        made = ChangeRecords(names, len(partitions))
        whole = None if published.whole_epoch is None else _state(log, reached, names)
        records = self._records(log, published, reached, whole, made)
        if whole is not None and self.kind == "rows":
            self._publish_nulls(published.producer, partitions, made, whole)
        sent = self._sender(published.producer, partitions, schemas.newest).run(records)
        with self._admin(self._options) as admin:
            found = admin.creations(partitions)
        creations = {each: found[each] or published.creations.get(each) for each in partitions}
        self._file.write(replace(published, epoch=reached, whole_epoch=None, creations=creations))
        self._reached = reached
        if reached < epoch:
            more, reached = self.run(rebuild=False)
            sent += more
        return sent, reached

    def _admin(self, options: BridgeOptions) -> PublishAdmin:
        return PublishAdmin(options, patience_s=self._patience_s)

    def _begun(self, admin: PublishAdmin, partitions: list[str], epoch: int, *, rebuild: bool) -> Published:
        """The state to continue with. For a new topic, and for a rebuild, a new state is stored first."""
        if not self._is_begun:
            why = admin.deduplicate(self.topic, partitions)
            if why is not None:
                self._on_note(
                    f"topic {self.topic}: its de-duplication is not on ({why}), so a run that is killed may publish records twice: "
                    "at least once; switch it on (pulsar-admin topics set-deduplication-status --enable), or give this job the right"
                )
        self._is_begun = True
        if rebuild:
            before = {each: str(admin.last_position(each)) for each in partitions}
            begun = replace(Published.anew(self.topic, epoch), creations=dict.fromkeys(partitions), before=before)
            self._file.write(begun)
            return begun
        known = self._file.read()  # not read for a rebuild, which also helps if the file is damaged
        writers = {each: admin.last_writer(each) for each in partitions}
        if known is None or known.topic != self.topic:
            self._check_empty(writers)
            begun = replace(Published.anew(self.topic, None), creations=dict.fromkeys(partitions))
            self._file.write(begun)
            return begun
        # Also of partitions whose records were all trimmed: these are empty again when the broker has restarted.
        creations = {each: admin.creation(each) for each in partitions if known.creations.get(each) is not None}
        self._check_ours(known, creations, writers, lambda partition: str(admin.last_position(partition)))
        return known

    def _check_empty(self, writers: Mapping[str, str | None]) -> None:
        found = [f"{partition} by {name}" for partition, name in writers.items() if name is not None]
        if found:
            raise PublishError(
                self.topic,
                f"it has records that this mirror's publish did not write ({found[0]}): publish the whole table anew over them with "
                f"--rebuild, or delete the topic, or name another one (--{self.kind}-topic)",
            )

    def _check_ours(
        self,
        known: Published,
        creations: Mapping[str, str | None],
        writers: Mapping[str, str | None],
        last_position: Callable[[str], str],
    ) -> None:
        if len(known.creations) != len(writers):
            raise PublishError(
                self.topic,
                f"it has {len(writers)} partitions, and had {len(known.creations)}, so keys would change their partition: publish the "
                "whole table anew with --rebuild",
            )
        for partition, writer in writers.items():
            before = known.creations.get(partition)
            if before is not None and creations[partition] != before:
                raise PublishError(
                    self.topic,
                    "it was deleted and made again since the last run: publish the whole table anew with --rebuild",
                )
            if known.has_other_writer(partition, writer, last_position):
                raise PublishError(
                    self.topic,
                    f"somebody else writes to it: the last record of {partition} is of the producer {writer}; stop that one, then "
                    "publish the whole table anew with --rebuild; or name another topic for this job "
                    f"(--{self.kind}-topic)",
                )

    def _check_epoch(self, published: Published, epoch: int) -> None:
        if published.epoch > epoch:
            raise PublishError(
                self.topic,
                f"it has all changes up to epoch {published.epoch}, but the mirror below {self._target} is at {epoch}: the mirror was "
                "made anew; publish the whole table anew with --rebuild",
            )

    def _check_numbers(self, published: Published, partitions: Sequence[str], schema: KeyValueSchema) -> None:
        """Check once a job that the broker has no numbers of later epochs than this state. Raises PublishError.

        If the mirror was restored from a copy, other records would get numbers that the broker has accepted already,
        and the broker would drop them.
        """
        if self._is_checked:
            return
        self._is_checked = True
        for part, partition in enumerate(partitions):
            with KeyedProducer(self._options, partition, producer_name(published.producer, part), schema) as producer:
                epoch = epoch_of(producer.last_number)
            if published.is_of_later_run(epoch):
                raise PublishError(
                    self.topic,
                    f"it has changes of epoch {epoch}, but by its own state the mirror below {self._target} has sent none behind epoch "
                    f"{published.sent_until}: the mirror was restored from a copy; publish the whole table anew with --rebuild",
                )

    def _with_schemas(self, published: Published, schemas: TopicSchemas, partition: str) -> Published:
        """Register the versions of the data topic's schema that the topic lacks, in order. Return the new state."""
        if published.schemas >= len(schemas.versions):
            return published
        for version in schemas.versions[published.schemas :]:
            register_schema(self._options, partition, producer_name(published.producer, 0), self._schema(version))
        done = replace(published, schemas=len(schemas.versions))
        self._file.write(done)
        return done

    def _schema(self, version: SchemaVersion) -> KeyValueSchema:
        return KeyValueSchema.of(version.key, version.value if self.kind == "rows" else envelope_schema(version))

    def _sender(self, producer: str, partitions: Sequence[str], version: SchemaVersion) -> RecordSender:
        return RecordSender(self._options, partitions, producer, self._schema(version))

    def _records(
        self, log: DataFrame, published: Published, epoch: int, whole: DataFrame | None, made: ChangeRecords
    ) -> DataFrame:
        build = made.rows if self.kind == "rows" else made.changes
        if whole is not None:
            return build(whole)
        waiting = log.where((F.col("epoch") > published.epoch) & (F.col("epoch") <= epoch))
        there = _epoch_of_first_rows(log) if published.epoch < 0 else None
        is_there = F.lit(False) if there is None else F.col("epoch") == there
        return build(waiting.withColumns({"is_there": is_there, "log_epoch": F.col("epoch")}))

    def _publish_nulls(self, producer: str, partitions: Sequence[str], made: ChangeRecords, state: DataFrame) -> None:
        """Publish a null for each key whose last record in the topic is a row, and that has no row now.

        Repeated nulls do no harm.
        """
        known = made.rows(state).select("key", "part")
        newest = Window.partitionBy("key", "partition").orderBy(F.expr(RECORD_POSITION).desc())
        last = raw_batch(self._spark, self._options.as_texts()).withColumn("at", F.row_number().over(newest))
        there = last.where("at = 1 AND value IS NOT NULL").select(
            "key", F.greatest("partition", F.lit(0)).alias("part")
        )
        gone = there.join(known, ["key", "part"], "left_anti").select(
            "key",
            "part",
            F.lit(0).cast("bigint").alias("epoch"),
            F.lit(0).alias("step"),
            F.hex("key").alias("id"),
            F.lit(None).cast("binary").alias("value"),
            F.lit(None).cast("bigint").alias("writetime"),
            F.lit("d").alias("op"),
        )
        self._sender(f"{producer}-{uuid.uuid4().hex[:8]}", partitions, made.schemas.newest).run(gone)


def _with_source(log: DataFrame) -> DataFrame:
    """The change log with a column `source`: one of an earlier version has none until the mirror runs again."""
    return log if "source" in log.columns else log.withColumn("source", F.lit(None).cast(RECORD_SOURCE))


def _state(log: DataFrame, epoch: int, names: LogColumns) -> DataFrame:
    """The rows that exist at the end of an epoch by the change log, as inserts of that epoch.

    Values from before their column was dropped are null. A repeated call gives the same rows.
    """
    newest = Window.partitionBy("_cdc_id").orderBy(F.col("epoch").desc(), F.col("step").desc())
    last = log.where(F.col("epoch") <= epoch).withColumn("at", F.row_number().over(newest))
    there = last.where("at = 1 AND after IS NOT NULL").drop("at")
    for name, until in names.gone(struct_type(log, "after").names).items():
        shown = F.when(F.col("epoch") > until, F.col("after").getField(name))
        there = there.withColumn("after", F.col("after").withField(quoted(name), shown))
    of_insert = {
        "epoch": F.lit(epoch).cast("bigint"),
        "log_epoch": F.col("epoch"),
        "op": F.lit("insert"),
        "before": F.lit(None).cast(log.schema["before"].dataType),
        "is_there": F.lit(True),
    }
    return there.withColumns(of_insert)


def _epoch_of_first_rows(log: DataFrame) -> int | None:
    """The epoch of a change log that has the rows from before it; None: it began with its mirror.

    Only these rows have step 1: the steps of a micro-batch begin at 2 (FIRST_STEP).
    """
    first = log.groupBy("epoch").agg(F.max("step").alias("last")).orderBy("epoch").limit(1).collect()
    return first[0].epoch if first and first[0]["last"] == 1 else None
