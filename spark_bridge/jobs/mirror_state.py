"""The tables of a mirror, and its progress.

    <target>/rows      the table, and `_cdc_id`, `_cdc_owner`, `_cdc_writetime`, `_cdc_expires_at`
    <target>/kept      the newest record of each key, and markers of deletions of many rows (spark_bridge.jobs.kept_records)
    <target>/applied   a state file: the epoch (counts micro-batches), its clock, the table id, the position of each topic partition,
                       what of `kept` counts
    <target>/changes   the change log, by option
    <target>/history   every version of every row, by option

`applied` is written last: a step that failed before it is repeated from the same state, with the same result.
Expiring rows are not records, so nothing would repeat them. So their expiry is noted in `applied` first, and so is a truncation.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.errors import ConfigError
from spark_bridge.errors import OtherTopicError, StateFileError, reason_of_spark
from spark_bridge.jobs.delta_tables import DeltaTable
from spark_bridge.jobs.iceberg_tables import IcebergTable, has_iceberg
from spark_bridge.jobs.kept_records import NOTHING_FORGOTTEN, Forgotten, KeptRecords, ReplacedRun, Run
from spark_bridge.jobs.lake_table import LakeTable, TableFormat
from spark_bridge.jobs.state_file import StateFile, newest_state, understood
from spark_bridge.jobs.unfinished_epoch import Unfinished, take_back
from spark_bridge.reading.folders import FsspecFolder, HadoopFolder
from spark_bridge.reading.planning import is_of_topic, last_of, refuse_gap
from spark_bridge.rows.key_columns import OWNER_TIME_ZONE
from spark_bridge.rows.record_places import record_place
from spark_bridge.rows.table_lives import TableLife
from spark_bridge.spark_line import iceberg_jar
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions, Numbers
from spark_bridge.topics.positions import Position, topic_of
from spark_bridge.topics.table_clearing import TableClearing, clearing_from_state

__all__ = [
    "Applied",
    "BegunEpoch",
    "MirrorTables",
    "RecordPosition",
    "applied_from_state",
    "applied_in",
    "fit_numbers",
    "known_creations",
    "known_format",
    "not_applied",
    "refuse_lost_records",
]

_log: Final = logging.getLogger(__name__)
_FORGET_EVERY_S: Final = 3_600
_COMPACT_EPOCHS: Final = 50
_LAYERS_OF_EARLIER: Final = 10
"""An earlier version wrote a first run of a million rows so: each of its ten tasks had keys from everywhere."""
_WITHOUT_STATE: Final = (
    "run the version that wrote it, or mirror the topic into a new target; the tables are as they were"
)
_READ_FOR_S: Final = 3_600
"""So long may a reader of a mirror take that is written at the same time."""

RecordPosition = tuple[int, int, int]
"""Ledger, entry, batch index (-1 without one)."""


@dataclass(frozen=True, slots=True)
class BegunEpoch:
    """The content of an epoch whose change log and history may be written: the records up to these positions.

    `without`: names of the truncations and drops whose rows are left out of it. Only a run with the same content may finish the
    epoch: other changes under its number would be taken for those that are written already.
    """

    positions: Mapping[str, RecordPosition]
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """How far a mirror has come. Times are seconds since the epoch.

    `clock_s` is the time to which rows have expired; no row expires before `next_expiry_s` (None: none will).
    `static_columns` are those that records of the table have named. `forgot_s`: when markers were last dropped.
    `schema_version` is that of the topic's schema which the rows follow (None: stored before this was kept). `is_expiring`: the
    next epoch takes away what is over at `clock_s`, and part of that may be written. `creations`: when Pulsar made the topic
    partitions that the positions are of, as far as it is known. `begins_anew`: the next records are those of an empty table;
    `is_to_begin_anew`: a rebuild was asked for, and no run has begun it yet.
    `table_generation`: with the table id, which life of the table it is (None: no record has named it). `resolved_ms`: the tables
    have every write that Cassandra acknowledged before (None: not known). `runs`: what is kept of the records, the oldest first
    (None: an earlier version keeps it in a table), and `forgotten`, which of that counts no more; `replaced_runs` may still
    be read. `cleared`: names of the truncations and drops that were applied. `clearing`: those that the next epoch applies, and part of
    that may be written. `begun`: the records that the next epoch applies, and part of that may be written. `repeated_until`: rows,
    change log and history have the records up to these positions already (empty: those of the next epoch). `time_zone`: in which
    the tables' owners have timestamps. An earlier version wrote them in that of its session, and did not store it: `is_zone_known` is
    false. `compacted`: the epoch behind which small files became few. `layers`: how many files of `rows` a key may be in, by their
    ranges of keys. `numbers`: the type that varint and decimal have in the tables (None: stored before this was kept).
    `gone_until`: value columns that were dropped, with the last epoch under which the change log may have values that Cassandra no
    longer shows, also if a column of that name was added again.
    """

    epoch: int = 0
    clock_s: int = 0
    table_id: str | None = None
    positions: Mapping[str, RecordPosition] = field(default_factory=dict)
    next_expiry_s: int | None = None
    static_columns: tuple[str, ...] = ()
    forgot_s: int = 0
    schema_version: int | None = None
    table_format: TableFormat | None = None
    is_expiring: bool = False
    creations: Mapping[str, str] = field(default_factory=dict)
    begins_anew: bool = False
    is_to_begin_anew: bool = False
    table_generation: int | None = None
    resolved_ms: int | None = None
    runs: tuple[Run, ...] | None = ()
    forgotten: Forgotten = NOTHING_FORGOTTEN
    replaced_runs: tuple[ReplacedRun, ...] = ()
    cleared: tuple[str, ...] = ()
    clearing: tuple[TableClearing, ...] = ()
    begun: BegunEpoch | None = None
    repeated_until: Mapping[str, RecordPosition] | None = None
    time_zone: str = OWNER_TIME_ZONE
    is_zone_known: bool = True
    compacted: int = 0
    layers: int = 1
    numbers: Numbers | None = None
    gone_until: Mapping[str, int] = field(default_factory=dict)

    @property
    def life(self) -> TableLife | None:
        """The life of the table that the rows are of; None while no record has named its table."""
        return None if self.table_id is None else TableLife(self.table_id, self.table_generation)

    def may_expire(self, now_s: int) -> bool:
        """Whether rows are over at that time, or a failed run has begun to take away what was."""
        is_passed = self.next_expiry_s is not None and self.next_expiry_s <= now_s
        return (self.is_expiring or is_passed) and not self.begins_anew

    def still_repeated(self, positions: Mapping[str, RecordPosition]) -> Mapping[str, RecordPosition] | None:
        """`repeated_until` of a mirror that has come to these positions by records."""
        behind = {
            topic: at
            for topic, at in (self.repeated_until or {}).items()
            if topic not in positions or positions[topic] < at
        }
        return behind or None

    def replaced_without(self, runs: Sequence[Run]) -> tuple[ReplacedRun, ...]:
        """The runs that may still be read besides these, which count from now on."""
        now_s = int(time.time())
        still = [each for each in self.replaced_runs if each.at_s > now_s - _READ_FOR_S]
        return (*still, *[ReplacedRun(each.name, now_s) for each in self.runs or () if each not in runs])


class MirrorTables:
    """The tables below one folder; `table_format` None: that of the tables that are there, else Delta Lake."""

    def __init__(self, spark: SparkSession, target: str, table_format: TableFormat | None = None) -> None:
        """Raises ConfigError when the tables that are there have another format, or one that the session cannot read;
        StateFileError when Spark has no such file system.
        """
        folder = _absolute(spark, target.rstrip("/"))
        self._spark = spark
        self.target = folder
        self._applied = StateFile(spark, f"{folder}/applied")
        kept = self.applied().table_format
        if table_format is not None and kept not in (None, table_format):
            raise ConfigError.of("format", f"{table_format!r} is given, but the tables below {folder} are {kept!r}")
        self.table_format: TableFormat = table_format or kept or "delta"
        if self.table_format == "iceberg" and not has_iceberg(spark):
            raise ConfigError.of(
                "format",
                f"the tables below {folder} are Iceberg's, and this session has no Iceberg: give it "
                f"{iceberg_jar()} (--jars with the file, spark-submit --packages, session_builder(iceberg=True))",
            )
        made = IcebergTable if self.table_format == "iceberg" else DeltaTable
        self.rows: LakeTable = made(spark, f"{folder}/rows")
        self.kept = KeptRecords(spark, f"{folder}/kept")
        self.is_local = HadoopFolder(spark, folder).is_local()
        # where earlier versions keep what is now in `kept`
        self._records: LakeTable = made(spark, f"{folder}/records")
        self.changes: LakeTable = made(spark, f"{folder}/changes")
        self.history: LakeTable = made(spark, f"{folder}/history")

    def compact(self) -> None:
        """Many small files become few, in every table that there is."""
        for each in (self.rows, self.changes, self.history):
            if each.read() is not None:
                each.compact()

    def compact_in_turn(self) -> None:
        """Compact the tables each 50 epochs, whichever runs wrote them. A failure is logged, and the next epoch tries again."""
        applied = self.applied()
        if applied.epoch - applied.compacted < _COMPACT_EPOCHS:
            return
        try:
            self.compact()
        except (PySparkException, Py4JError) as error:
            # PySpark passes on what it does not know, such as a format's conflict with another writer.
            reason = reason_of_spark(str(getattr(error, "java_exception", error)))
            _log.warning("%s: small files are not compacted yet: %s", self.target, reason)
            return
        self.save_applied(replace(applied, compacted=applied.epoch))

    def applied(self) -> Applied:
        """How far the mirror has come; a new one starts at epoch 0. Raises StateFileError."""
        stored = self._applied.read()
        if stored is None:
            return Applied()
        session_zone = str(self._spark.conf.get("spark.sql.session.timeZone"))
        return applied_in(f"{self.target}/applied", stored, session_zone)

    def save_applied(self, applied: Applied) -> None:
        """The last step of a micro-batch."""
        self._applied.write(json.dumps(asdict(replace(applied, table_format=self.table_format))))

    def keep_format(self, numbers: Numbers) -> None:
        """Note the tables' format and numbers before the first of them is made: a first run that fails may have made some."""
        applied = self.applied()
        if self._applied.read() is None or (applied.numbers != numbers and not self._are_made()):
            self.save_applied(replace(applied, numbers=numbers))

    def with_numbers(self, options: BridgeOptions) -> BridgeOptions:
        """The options of a job on these tables, with the numbers that they have. Raises ConfigError where others are asked for."""
        kept = self.applied().numbers
        if kept in (None, options.numbers) or not self._are_made():
            return options
        return fit_numbers(options, kept, self.target)

    def ask_for_rebuild(self) -> None:
        """From now on, a run begins anew first, also one that is not told to."""
        self.save_applied(replace(self.applied(), is_to_begin_anew=True))

    def begin_anew(self) -> None:
        """The next records are those of an empty table, whatever was applied before; until they come the rows stay.

        Of an epoch that a failed run has begun nothing stays that the rows do not have.
        """
        known = self.applied()
        self._take_back(known.epoch + 1)
        self.save_applied(
            Applied(
                epoch=known.epoch + 1,
                clock_s=known.clock_s,
                next_expiry_s=known.next_expiry_s,
                static_columns=known.static_columns,
                forgot_s=known.forgot_s,
                begins_anew=True,
                runs=known.runs,
                replaced_runs=known.replaced_runs,
                time_zone=known.time_zone,
                is_zone_known=known.is_zone_known,
                compacted=known.compacted,
                layers=known.layers,
                numbers=known.numbers,
                gone_until=known.gone_until,
            )
        )

    def begin_epoch(self, positions: Mapping[str, RecordPosition], without: Sequence[str]) -> Applied:
        """Note what the next epoch has, before change log or history get any of it; see BegunEpoch. The state is returned.

        An epoch that a failed run has begun with something else is given up: no run has the same records again after another
        limit, with an older copy of the checkpoint or without one, or where a truncation is known by now.
        """
        begun = BegunEpoch(positions, tuple(without))
        known = self.applied()
        if known.begun == begun:
            return known
        if known.begun is not None:
            self.give_up_epoch()
            known = self.applied()
        noted = replace(known, begun=begun)
        self.save_applied(noted)
        return noted

    def give_up_epoch(self) -> None:
        """The next epoch is not the one that a failed run may have begun: nothing reads the same records again.

        Expired rows and truncations that were noted go on under their number, for they do not depend on what is read.
        """
        known = self.applied()
        if known.is_expiring or known.clearing:
            return
        if not self._are_made():
            self.save_applied(replace(known, begun=None))
            return
        found = self._take_back(known.epoch + 1)
        repeated = known.repeated_until
        if found is Unfinished.ALL:
            ends = {} if known.begun is None else known.begun.positions
            repeated = {topic: max(ends.get(topic, at), at) for topic, at in {**ends, **(repeated or {})}.items()}
        # whatever was found: Delta may know the number of an epoch that changed nothing
        self.save_applied(replace(known, epoch=known.epoch + 1, begun=None, repeated_until=repeated))

    def _are_made(self) -> bool:
        """Whether any table is there."""
        return any(each.read() is not None for each in (self.rows, self.changes, self.history))

    def _take_back(self, epoch: int) -> Unfinished:
        found = take_back(self.rows, self.changes, self.history, epoch)
        if found is Unfinished.TAKEN_BACK:
            _log.info("%s: changes of the epoch that was interrupted are taken back", self.target)
        return found

    def read_kept(self, applied: Applied, owners: Collection[str] | None = None) -> DataFrame | None:
        """The kept records; None: there are none. See `KeptRecords.read`."""
        if applied.runs is not None:
            return self.kept.read(applied.runs, applied.forgotten, owners)
        of_earlier_version = self._records.read()
        return None if of_earlier_version is None else of_earlier_version.withColumn("run", F.lit(0).cast("bigint"))

    def take_over(self) -> None:
        """Bring the tables of an earlier version up to date. Its records become the first run; their table is deleted."""
        for each in (self.rows, self.changes, self.history):
            each.bring_up_to_date()
        applied = self.applied()
        if applied.runs is None:
            records = self._records.read()
            runs = () if records is None else (self.kept.taken_over(records),)
            self.save_applied(replace(applied, runs=runs))
        # also after a run that was killed in between
        HadoopFolder(self._spark, self._records.path).delete_all()

    def merge_kept(self) -> None:
        """Many runs of what is kept become few."""
        applied = self.applied()
        assert applied.runs is not None
        runs = self.kept.merged(applied.runs, applied.forgotten)
        if runs != applied.runs:
            replaced = applied.replaced_without(runs)
            self.save_applied(replace(applied, runs=runs, replaced_runs=replaced))
            self.kept.delete_others([*runs, *replaced])

    def forget(self, retention_s: float) -> None:
        """Drop markers of deletions of many rows that were last met so long ago; checks at most once an hour."""
        applied, now_s = self.applied(), int(time.time())
        if not applied.runs or now_s - applied.forgot_s < min(_FORGET_EVERY_S, retention_s):
            return
        forgotten = Forgotten(applied.runs[-1].number, int(now_s - retention_s))
        self.save_applied(replace(applied, forgot_s=now_s, forgotten=forgotten))


def _absolute(spark: SparkSession, folder: str) -> str:
    """Delta takes the path of a table in SQL only if it is absolute."""
    try:
        return HadoopFolder(spark, folder).absolute()
    except OSError as error:
        raise StateFileError(folder, str(error)) from None


def known_format(target: str) -> TableFormat | None:
    """The format of the tables below a folder, known before there is a session; None: there are none.

    Raises OSError when this Python cannot look there.
    """
    stored = newest_state(FsspecFolder(f"{target.rstrip('/')}/applied"))
    if stored is None:
        return None
    found: TableFormat = json.loads(stored).get("table_format") or "delta"
    return found


def applied_from_state(stored: str, session_zone: str = OWNER_TIME_ZONE) -> Applied:
    """The state that this version or an earlier one has stored as JSON. `session_zone`: for one that has no time zone."""
    found = json.loads(stored)
    found.setdefault("is_zone_known", "time_zone" in found)
    found.setdefault("time_zone", session_zone)
    found.setdefault("layers", _LAYERS_OF_EARLIER)
    statics = tuple(found.pop("static_columns"))
    runs, forgotten = found.pop("runs", None), found.pop("forgotten", NOTHING_FORGOTTEN)
    begun, repeated = found.pop("begun", None), found.pop("repeated_until", None)
    if found.pop("repeats_records", False):  # of an earlier version
        repeated = {}
    return Applied(
        positions=_positions(found.pop("positions")),
        begun=None if begun is None else BegunEpoch(_positions(begun["positions"]), tuple(begun["without"])),
        repeated_until=None if repeated is None else _positions(repeated),
        static_columns=statics,
        runs=None if runs is None else tuple(Run(*each) for each in runs),
        forgotten=Forgotten(*forgotten),
        replaced_runs=tuple(ReplacedRun(*each) for each in found.pop("replaced_runs", ())),
        cleared=tuple(found.pop("cleared", ())),
        clearing=tuple(clearing_from_state(each) for each in found.pop("clearing", ())),
        **found,
    )


def applied_in(folder: str, stored: str, session_zone: str) -> Applied:
    """The same of the state in a folder. Raises DamagedStateError."""
    return understood(folder, stored, lambda text: applied_from_state(text, session_zone), _WITHOUT_STATE)


def fit_numbers(options: BridgeOptions, kept: Numbers, folder: str) -> BridgeOptions:
    """Options for tables whose numbers are `kept`. Raises ConfigError where the options name others."""
    if "numbers" in options.model_fields_set and options.numbers != kept:
        reason = (
            f"{options.numbers!r} is given, but the tables below {folder} have {kept!r}: leave the option out, or mirror the topic "
            "into a new target"
        )
        raise ConfigError.of("numbers", reason)
    return options.model_copy(update={"numbers": kept})


def _positions(stored: Mapping[str, Sequence[int]]) -> dict[str, RecordPosition]:
    return {topic: (at[0], at[1], at[2]) for topic, at in stored.items()}


def not_applied(applied: Applied) -> Column:
    """True for raw rows that a mirror has not seen: everything behind its position in the topic partition."""
    is_new = F.lit(True)
    for name, (ledger, entry, index) in applied.positions.items():
        topic, partition = topic_of(name)
        last = F.struct(
            F.lit(ledger).cast("bigint").alias("ledger"),
            F.lit(entry).cast("bigint").alias("entry"),
            F.lit(index).cast("int").alias("index"),
        )
        is_here = (F.col("topic") == topic) & (F.col("partition") == partition)
        is_new &= ~is_here | (record_place().getField("position") > last)
    return is_new


def known_creations(applied: Applied, options: BridgeOptions) -> dict[str, str]:
    """When Pulsar made the topic partitions that exist now, as far as it returns this.

    Raises OtherTopicError where a position of the mirror is of another one: its records would be skipped, or lose against those
    that the mirror knows. TopicError, PulsarUnreachableError.
    """
    found: dict[str, str] = {}
    with PulsarAdmin(options) as admin:
        for topic in admin.topic_partitions():
            now, before = admin.creation(topic), applied.creations.get(topic)
            if now is not None:
                found[topic] = now
            if topic not in applied.positions:
                continue
            read = Position(*applied.positions[topic][:2])
            ledgers = admin.ledgers(topic)
            if not is_of_topic(read, ledgers, [each for each in (now, before) if each is not None]):
                raise OtherTopicError(topic, str(read), str(last_of(ledgers)))
    return found


def refuse_lost_records(applied: Applied, options: BridgeOptions) -> None:
    """Notice for a mirror whose checkpoint is lost what its query would have noticed: records behind its position were deleted.

    Raises DataLossError, PulsarUnreachableError, TopicError.
    """
    if not options.fail_on_data_loss:
        return
    with PulsarAdmin(options) as admin:
        for topic in admin.topic_partitions():
            if topic in applied.positions:
                ledgers, cursors = admin.storage(topic)
                read = Position(*applied.positions[topic][:2])
                refuse_gap(topic, read, last_of(ledgers), ledgers, cursors.get(options.subscription or ""))
