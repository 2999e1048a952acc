"""The tables of a mirror, and its progress.

    <target>/rows      the table's rows, with the columns `_cdc_id`, `_cdc_owner`, `_cdc_writetime`, `_cdc_expires_at`
    <target>/kept      the newest record of each key, and markers of deletions of many rows
                       (spark_bridge.jobs.kept_records)
    <target>/applied   a state file: the epoch (counts micro-batches), its clock, the table id, the position of each
                       topic partition, which runs of `kept` count
    <target>/changes   the change log (optional)
    <target>/history   every version of every row (optional)

`applied` is written last. After a failure, the next run repeats the micro-batch from the same state, with the same
result. Expired rows and truncations are not records, so no micro-batch repeats them: `applied` notes them first.

It is one module above 500 lines because the state, the tables and the forms that earlier versions stored change together.
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
from spark_bridge.jobs.arguments import refuse_home
from spark_bridge.jobs.delta_tables import DeltaTable
from spark_bridge.jobs.iceberg_tables import IcebergTable, has_iceberg
from spark_bridge.jobs.kept_records import NOTHING_FORGOTTEN, Forgotten, KeptRecords, ReplacedRun, Run
from spark_bridge.jobs.lake_table import LakeTable, TableFormat
from spark_bridge.jobs.state_file import StateFile, newest_state, understood
from spark_bridge.jobs.unfinished_epoch import Unfinished, take_back
from spark_bridge.reading.folders import FsspecFolder, HadoopFolder
from spark_bridge.reading.planning import is_of_topic, last_of, refuse_gap
from spark_bridge.rows.key_columns import OWNER_TIME_ZONE
from spark_bridge.rows.record_places import RECORD_POSITION
from spark_bridge.rows.sql_columns import literal, struct
from spark_bridge.rows.table_lives import TableLife
from spark_bridge.spark_line import iceberg_jar
from spark_bridge.topics.admin import PATIENCE_S, PulsarAdmin
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
    "lack_of",
    "no_mirror_reason",
    "not_applied",
    "refuse_lost_records",
    "refuse_other_topic",
]

_log: Final = logging.getLogger(__name__)
_FORGET_EVERY_S: Final = 3_600
_COMPACT_EPOCHS: Final = 50
_LAYERS_OF_EARLIER: Final = 10
"""`Applied.layers` for a state of an earlier version, which did not store it. Such a version wrote the first million
rows with ten tasks, each of which had keys from the whole range."""
_WITHOUT_STATE: Final = (
    "run the version that wrote it, or mirror the topic into a new target; the tables are as they were"
)
_READ_FOR_S: Final = 3_600
"""How long a reader may take while the mirror is written: replaced runs are kept for this time."""

RecordPosition = tuple[int, int, int]
"""Ledger, entry, index in the batch (-1 if the message has no batch)."""


@dataclass(frozen=True, slots=True)
class BegunEpoch:
    """The content of the next epoch: the records up to these positions.

    It is noted before change log or history get any of it. `without`: names of the truncations and drops whose rows are
    left out. Only a run with the same content may finish the epoch. Change log and history take an epoch once, so other
    changes under its number would be skipped.
    """

    positions: Mapping[str, RecordPosition]
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The progress of a mirror, which is the content of `applied`. Times are seconds since 1970.

    `epoch`: the last one that is applied.
    `clock_s`: the time at which the next epoch judges what has expired.
    `table_id`, `table_generation`: the life of the table that the rows belong to (None: no record has named it).
    `next_expiry_s`: no row expires before this time (None: no row will expire).
    `static_columns`: those that records of the table have named.
    `forgot_s`: when markers were last dropped.
    `schema_version`: the version of the topic's schema that the rows follow (None: stored before this was kept).
    `is_expiring`: the next epoch removes the rows that have expired at `clock_s`. A failed run may have begun it.
    `creations`: when Pulsar made the topic partitions of `positions`, as far as it is known.
    `begins_anew`: the next records are those of an empty table.
    `is_to_begin_anew`: a rebuild was asked for, and no run has begun it yet.
    `resolved_ms`: the tables have every write that Cassandra acknowledged before this time (milliseconds; None:
    unknown).
    `runs`: the runs of kept records, the oldest first (None: an earlier version keeps these records in a table).
    `forgotten`: the markers in `runs` that no longer count.
    `replaced_runs`: no longer count, but a reader may still use them.
    `cleared`: names of the truncations and drops that were applied.
    `clearing`: those that the next epoch applies. A failed run may have begun it.
    `begun`: the records that the next epoch applies. A failed run may have begun it.
    `repeated_until`: rows, change log and history already have the records up to these positions, although `positions`
    are before them (empty: the positions are not known, and the records of the next epoch are the repeated ones).
    `time_zone`: the zone of timestamps in the tables' owners. `is_zone_known` is false for an earlier version, which
    used the zone of its session and did not store it.
    `compacted`: the epoch after which the small files were last compacted.
    `layers`: how many files of `rows` may have a key, by their ranges of keys.
    `numbers`: the type of varint and decimal in the tables (None: stored before this was kept).
    `gone_until`: value columns that were dropped, with the last epoch for which the change log may have values that
    Cassandra no longer shows. A column stays here when one of its name is added again. Also names of key columns that
    another key column had before, with the last epoch for which the change log may have values of that one.
    `may_lack`: why the tables may lack records of the topic (None: they lack none). It stays until the mirror begins
    anew.
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
    may_lack: str | None = None

    @property
    def is_new(self) -> bool:
        """True before the first run has applied anything: `startingOffsets` then counts."""
        return not (self.positions or self.begins_anew or self.epoch)

    @property
    def life(self) -> TableLife | None:
        """The life of the table that the rows belong to; None before a record has named its table."""
        return None if self.table_id is None else TableLife(self.table_id, self.table_generation)

    def may_expire(self, now_s: int) -> bool:
        """Return True if a row may have expired at `now_s`, or if a failed run has begun to remove expired rows.

        False for a mirror that begins anew.
        """
        is_passed = self.next_expiry_s is not None and self.next_expiry_s <= now_s
        return (self.is_expiring or is_passed) and not self.begins_anew

    def still_repeated(self, positions: Mapping[str, RecordPosition]) -> Mapping[str, RecordPosition] | None:
        """The next `repeated_until`, after records up to `positions` were applied; None when all of it is reached."""
        behind = {
            topic: at
            for topic, at in (self.repeated_until or {}).items()
            if topic not in positions or positions[topic] < at
        }
        return behind or None

    def replaced_without(self, runs: Sequence[Run]) -> tuple[ReplacedRun, ...]:
        """The replaced runs that a reader may still use, when only `runs` count from now on."""
        now_s = int(time.time())
        still = [each for each in self.replaced_runs if each.at_s > now_s - _READ_FOR_S]
        return (*still, *[ReplacedRun(each.name, now_s) for each in self.runs or () if each not in runs])


class MirrorTables:
    """The tables below one folder. `table_format` None: the format of the existing tables, else Delta Lake."""

    def __init__(self, spark: SparkSession, target: str, table_format: TableFormat | None = None) -> None:
        """Raises ConfigError when the existing tables have another format, or one that the session cannot read, and for
        a target that begins with `~/`;
        StateFileError when Spark has no such file system.
        """
        refuse_home(target)
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
        # an earlier version keeps in this table what is now in `kept`
        self._records: LakeTable = made(spark, f"{folder}/records")
        self.changes: LakeTable = made(spark, f"{folder}/changes")
        self.history: LakeTable = made(spark, f"{folder}/history")

    def load(self) -> None:
        """Load the log of the rows, if they are a Delta table: Iceberg keeps nothing that it has read (`IcebergTable`).

        A micro-batch does not need all of the log of changes and history.
        """
        if self.table_format == "delta":
            self.rows.size_bytes()

    def compact(self) -> None:
        """Compact the small files of every existing table."""
        for each in (self.rows, self.changes, self.history):
            if each.read() is not None:
                each.compact()

    def compact_in_turn(self) -> None:
        """Compact the tables every 50 epochs, counted over all runs.

        A failure is logged, and the next epoch tries again.
        """
        applied = self.applied()
        if applied.epoch - applied.compacted < _COMPACT_EPOCHS:
            return
        try:
            self.compact()
        except (PySparkException, Py4JError) as error:
            # Py4JError: PySpark does not convert every Java error, for example a format's conflict with another writer.
            reason = reason_of_spark(str(getattr(error, "java_exception", error)))
            _log.warning("%s: small files are not compacted yet: %s", self.target, reason)
            return
        self.save_applied(replace(applied, compacted=applied.epoch))

    def applied(self) -> Applied:
        """The mirror's progress; a new mirror starts at epoch 0. Raises StateFileError."""
        stored = self._applied.read()
        if stored is None:
            return Applied()
        session_zone = str(self._spark.conf.get("spark.sql.session.timeZone"))
        return applied_in(f"{self.target}/applied", stored, session_zone)

    def refuse_none(self) -> None:
        """Raise ConfigError if no mirror has run with this target: it would count as an empty one."""
        if self._applied.read() is None:
            raise ConfigError.of("mirror", no_mirror_reason(self.target))

    def refuse_foreign_tables(self) -> None:
        """Raise ConfigError if no mirror has run with this target, and it is, has, or is in a table of something else.

        A mirror stores its state before it makes its tables.
        """
        if self._applied.read() is not None:
            return
        table = self._delta_table_around()
        if table is not None:
            raise ConfigError.of(
                "target", f"{self.target} is in the Delta table {table}; give the mirror a folder of its own"
            )
        found = [each.path for each in (self.rows, self.changes, self.history) if each.read() is not None]
        if found:
            reason = f"{', '.join(found)} is there, and no mirror has made it; give the mirror a folder of its own"
            raise ConfigError.of("target", reason)

    def _delta_table_around(self) -> str | None:
        """The Delta table that the target is, or is in; None: there is none. Delta refuses a table in another one."""
        scheme, colon, rest = self.target.rpartition("://")
        parts = rest.split("/")
        for number in range(len(parts), 1, -1):
            folder = f"{scheme}{colon}{'/'.join(parts[:number])}"
            try:
                if HadoopFolder(self._spark, f"{folder}/_delta_log").names():
                    return folder
            except OSError:  # no rights to look there: if it is a table, Delta says so
                return None
        return None

    def refuse_other_topic(self, topic: str, option: str = "target") -> None:
        """See the function `refuse_other_topic`."""
        refuse_other_topic(self.applied(), topic, self.target, option)

    def save_applied(self, applied: Applied) -> None:
        """Store the progress. This is the last step of a micro-batch."""
        self._applied.write(json.dumps(asdict(replace(applied, table_format=self.table_format))))

    def keep_format(self, numbers: Numbers) -> None:
        """Store the tables' format and numbers before a table is made: a first run that fails may have made some."""
        applied = self.applied()
        if self._applied.read() is None or (applied.numbers != numbers and not self._are_made()):
            self.save_applied(replace(applied, numbers=numbers))

    def with_numbers(self, options: BridgeOptions) -> BridgeOptions:
        """The options of a job on these tables, with the tables' `numbers`.

        Raises ConfigError if the options ask for others.
        """
        kept = self.applied().numbers
        if kept in (None, options.numbers) or not self._are_made():
            return options
        return fit_numbers(options, kept, self.target)

    def note_lack(self, options: BridgeOptions) -> str | None:
        """Store why the tables may lack records after a run with these options. Return it. See `lack_of`."""
        applied = self.applied()
        lack = lack_of(applied, options)
        if lack != applied.may_lack:
            self.save_applied(replace(applied, may_lack=lack))
        return lack

    def ask_for_rebuild(self) -> None:
        """Store that a rebuild is due. The next run begins anew, even if it is not told to."""
        self.save_applied(replace(self.applied(), is_to_begin_anew=True))

    def begin_anew(self) -> None:
        """Store that the next records are those of an empty table. The rows stay until these records come.

        If a failed run has begun an epoch, its changes are taken back, unless the rows have all of them.
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
        """Store the content of the next epoch, as `begun`. Return the state. See BegunEpoch.

        If a failed run has begun an epoch with other content, that epoch is given up first. No run has the same content
        again after a change of the micro-batches' limit, with an older copy of the checkpoint, without a checkpoint, or
        when a truncation has become known since.
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
        """Give up the epoch that a failed run may have begun, because no run reads the same records again.

        An epoch of expired rows or truncations is not given up: these do not depend on records.
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
        # a new number in any case: Delta may know the number of an epoch that changed nothing
        self.save_applied(replace(known, epoch=known.epoch + 1, begun=None, repeated_until=repeated))

    def _are_made(self) -> bool:
        """Return True if any of the tables exists."""
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
        # always: a run that was killed may have stored the runs and left the table
        HadoopFolder(self._spark, self._records.path).delete_all()

    def merge_kept(self) -> None:
        """Merge the last runs of kept records when there are many."""
        applied = self.applied()
        assert applied.runs is not None
        runs = self.kept.merged(applied.runs, applied.forgotten)
        if runs != applied.runs:
            replaced = applied.replaced_without(runs)
            self.save_applied(replace(applied, runs=runs, replaced_runs=replaced))
            self.kept.delete_others([*runs, *replaced])

    def forget(self, retention_s: float) -> None:
        """Drop the markers of deletions of many rows whose Cassandra partition no record has touched for `retention_s`.

        Does nothing if the last call that dropped markers was less than an hour, or `retention_s`, ago.
        """
        applied, now_s = self.applied(), int(time.time())
        if not applied.runs or now_s - applied.forgot_s < min(_FORGET_EVERY_S, retention_s):
            return
        forgotten = Forgotten(applied.runs[-1].number, int(now_s - retention_s))
        self.save_applied(replace(applied, forgot_s=now_s, forgotten=forgotten))


def _absolute(spark: SparkSession, folder: str) -> str:
    """The absolute path of a folder: in SQL, Delta takes a table's path only if it is absolute.

    Raises StateFileError.
    """
    try:
        return HadoopFolder(spark, folder).absolute()
    except OSError as error:
        raise StateFileError(folder, str(error)) from None


def known_format(target: str) -> TableFormat | None:
    """The format of the tables below a folder, without a Spark session; None: there are no tables.

    Raises OSError when this Python cannot read the folder.
    """
    stored = newest_state(FsspecFolder(f"{target.rstrip('/')}/applied"))
    if stored is None:
        return None
    found: TableFormat = json.loads(stored).get("table_format") or "delta"
    return found


def no_mirror_reason(target: str) -> str:
    """Why a folder cannot be used as a mirror's, if no mirror has run with it."""
    return f"there is no mirror below {target}; give the --target of `cdc spark mirror`"


def lack_of(applied: Applied, options: BridgeOptions) -> str | None:
    """Why the tables may lack records after a run with these options, or after an earlier one; None: they lack none."""
    if applied.may_lack is not None:
        return applied.may_lack
    if not options.fail_on_data_loss:
        return "a run of this mirror had failOnDataLoss=false"
    if applied.is_new and options.starting_offsets != "earliest":
        return f"the first run of this mirror had startingOffsets={options.starting_offsets}"
    return None


def applied_from_state(stored: str, session_zone: str = OWNER_TIME_ZONE) -> Applied:
    """Parse the state that this version or an earlier one has stored.

    `session_zone`: for a state without a time zone.
    """
    found = json.loads(stored)
    found.setdefault("is_zone_known", "time_zone" in found)
    found.setdefault("time_zone", session_zone)
    found.setdefault("layers", _LAYERS_OF_EARLIER)
    statics = tuple(found.pop("static_columns"))
    runs, forgotten = found.pop("runs", None), found.pop("forgotten", NOTHING_FORGOTTEN)
    begun, repeated = found.pop("begun", None), found.pop("repeated_until", None)
    if found.pop("repeats_records", False):  # an earlier version stored this instead of positions
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
    """As `applied_from_state`, for the state of a folder. Raises DamagedStateError."""
    return understood(folder, stored, lambda text: applied_from_state(text, session_zone), _WITHOUT_STATE)


def fit_numbers(options: BridgeOptions, kept: Numbers, folder: str) -> BridgeOptions:
    """Options for tables whose numbers are `kept`. Raises ConfigError if the options name others."""
    if "numbers" in options.model_fields_set and options.numbers != kept:
        reason = (
            f"{options.numbers!r} is given, but the tables below {folder} have {kept!r}: leave the option out, or mirror the topic "
            "into a new target"
        )
        raise ConfigError.of("numbers", reason)
    return options.model_copy(update={"numbers": kept})


def _positions(stored: Mapping[str, Sequence[int]]) -> dict[str, RecordPosition]:
    return {topic: (at[0], at[1], at[2]) for topic, at in stored.items()}


def refuse_other_topic(applied: Applied, topic: str, folder: str, option: str) -> None:
    """Raise ConfigError if the tables below a folder have the records of other topics only.

    Records of another table would count as those of the table's next life, which begins empty. A rebuild may change the
    topic. `option`: the argument that gives the folder.
    """
    topics = {topic_of(each)[0] for each in applied.positions}
    asked = topic_of(topic)[0]
    if not topics or asked in topics or applied.is_to_begin_anew:
        return
    reason = (
        f"the tables below {folder} are a mirror of {', '.join(sorted(topics))}, not of {asked}; each topic needs a target of its "
        "own (if the same table has a new topic, run cdc spark mirror with --rebuild once)"
    )
    raise ConfigError.of(option, reason)


def not_applied(applied: Applied) -> Column:
    """True for raw rows that the mirror has not applied: they are behind its position in their topic partition."""
    conditions = []
    for name, (ledger, entry, index) in applied.positions.items():
        topic, partition = topic_of(name)
        last = struct({"ledger": f"{ledger}L", "entry": f"{entry}L", "index": str(index)})
        is_here = f"topic = {literal(topic)} AND `partition` = {partition}"
        conditions.append(f"(NOT ({is_here}) OR {RECORD_POSITION} > {last})")
    return F.expr(" AND ".join(conditions) or "true")


def known_creations(applied: Applied, options: BridgeOptions, *, patience_s: float = PATIENCE_S) -> dict[str, str]:
    """When Pulsar made the topic partitions that exist now, as far as Pulsar returns this. `patience_s`: see PulsarAdmin.

    Raises OtherTopicError if a position of the mirror belongs to a topic that existed before under this name: records
    of the new topic would be skipped, or lose against those that the mirror knows. Raises TopicError,
    PulsarUnreachableError.
    """
    found: dict[str, str] = {}
    with PulsarAdmin(options, patience_s=patience_s) as admin:
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
    """Check for a mirror whose checkpoint is lost that no records behind its positions were deleted.

    With a checkpoint, the query checks this. Raises DataLossError, PulsarUnreachableError, TopicError.
    """
    if not options.fail_on_data_loss:
        return
    with PulsarAdmin(options) as admin:
        for topic in admin.topic_partitions():
            if topic in applied.positions:
                ledgers, cursors = admin.storage(topic)
                read = Position(*applied.positions[topic][:2])
                refuse_gap(topic, read, last_of(ledgers), ledgers, cursors.get(options.subscription or ""))
