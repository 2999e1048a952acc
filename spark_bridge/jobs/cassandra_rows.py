"""Rows of a Cassandra table in Spark, read by token range on the executors and written as the connector writes them.

Key and value are Avro with the table's own schema, so they have the same decoder as the topic's records.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import pyarrow as pa
from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    InvalidRequest,
    UnresolvableContactPoints,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.policies import DCAwareRoundRobinPolicy, RoundRobinPolicy
from cassandra.protocol import ProtocolHandler, ResultMessage, SyntaxException, read_int, read_value
from cassandra.query import PreparedStatement, dict_factory
from pyspark.sql import DataFrame, SparkSession

from clients.driver_errors import DRIVER_ERRORS, NO_ANSWER
from clients.node_errors import node_errors, one_line
from clients.tls import certificate_refusal
from schemas.avro_names import avro_names
from schemas.cql_identifier import quoted
from schemas.cql_type import is_multi_cell
from schemas.cql_value import AvroValue, CqlValueError, column_reader
from schemas.errors import ConfigError
from schemas.hidden_columns import PublishedTable
from schemas.row_record import data_key_schema, data_value_schema, record_writer
from schemas.similar_tables import missing_table_text
from schemas.system_schema import SELECTS, plain_row, tables_of
from schemas.table_metadata import ColumnMetadata, TableMetadata
from spark_bridge.errors import CassandraReadError
from spark_bridge.jobs.cassandra_tls import CassandraTls
from spark_bridge.jobs.time_spans import TimeSpan, is_within

__all__ = [
    "ALL_TOKENS",
    "CassandraAccess",
    "RangeReader",
    "TokenRange",
    "check_predicate",
    "find_table",
    "host_ids",
    "read_rows",
    "table_metadata",
    "token_ranges",
]

_MIN_TOKEN: Final = -(1 << 63)
_ROWS_PER_BATCH: Final = 5_000
_SCHEMA: Final = (
    "key binary, value binary, has_row boolean, writetime_us bigint, key_parts array<binary>, token bigint, "
    "row_writetime_us bigint"
)
_ARROW: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("has_row", pa.bool_()),
        ("writetime_us", pa.int64()),
        ("key_parts", pa.list_(pa.binary())),
        ("token", pa.int64()),
        ("row_writetime_us", pa.int64()),
    ]
)
# The exceptions of fastavro for a value that does not fit its schema.
_AVRO_ERRORS: Final = (ValueError, TypeError, KeyError, OverflowError, AttributeError)
RawRow = tuple[bytes, bytes | None, bool, int | None, list[bytes | None], int, int | None]
"""The columns of `_ARROW`."""

TokenRange = tuple[int, int]
"""Tokens (start, end] of Murmur3Partitioner."""

ALL_TOKENS: Final[TokenRange] = (_MIN_TOKEN, (1 << 63) - 1)
"""The whole ring: no partition has the smallest token, so it may be left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CassandraAccess:
    """How to reach a cluster. The password is not shown."""

    contact_points: tuple[str, ...]
    port: int = 9042
    local_dc: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: CassandraTls | None = None
    consistency: str = "LOCAL_QUORUM"
    fetch_size: int = 1_000

    @contextmanager
    def session(self, *, as_bytes: bool = False) -> Iterator[Session]:
        """A new connection; `as_bytes` leaves rows as CQL bytes. Raises ConfigError, CassandraReadError."""
        if self.consistency not in ConsistencyLevel.name_to_value:
            levels = ", ".join(ConsistencyLevel.name_to_value)
            raise ConfigError.of("consistency", f"{self.consistency!r} is no consistency level; they are {levels}")
        with self._cluster(as_bytes=as_bytes) as cluster:
            try:
                session = cluster.connect()
            except NO_ANSWER as error:
                raise CassandraReadError(self.address, self._refusal(cluster, error)) from None
            if as_bytes:
                session.client_protocol_handler = _RawProtocolHandler
            session.default_fetch_size = self.fetch_size
            yield session

    def _cluster(self, *, as_bytes: bool) -> Cluster:
        policy = DCAwareRoundRobinPolicy(self.local_dc) if self.local_dc else RoundRobinPolicy()
        profile = ExecutionProfile(
            load_balancing_policy=policy,
            consistency_level=ConsistencyLevel.name_to_value[self.consistency],
            row_factory=_rows_only if as_bytes else dict_factory,
            request_timeout=60,
        )
        encryption = None if self.tls is None else self.tls.context()
        login = PlainTextAuthProvider(self.username, self.password) if self.username else None
        try:
            return Cluster(
                list(self.contact_points),
                port=self.port,
                auth_provider=login,
                ssl_context=encryption,
                connect_timeout=20,
                control_connection_timeout=20,
                execution_profiles={EXEC_PROFILE_DEFAULT: profile},
                schema_metadata_enabled=False,
                token_metadata_enabled=False,
                # Every supported Cassandra has version 4, and it has no checksum per frame to compute in Python.
                protocol_version=4,
            )
        except UnresolvableContactPoints:
            reason = f"no address is known for {' or '.join(self.contact_points)}; check the contact points"
            raise CassandraReadError(self.address, reason) from None

    def _refusal(self, cluster: Cluster, error: Exception) -> str:
        """Why no connection was made. The driver may know the nodes, and connect to those of the data center only."""
        centers = {host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter}
        if self.local_dc and centers and self.local_dc not in centers and isinstance(error, NoHostAvailable):
            return f"the cluster has no data center {self.local_dc!r}; it has {', '.join(sorted(centers))}"
        return _refusal(error)

    @property
    def address(self) -> str:
        """The contact points and the port, for messages."""
        return f"{','.join(self.contact_points)}:{self.port}"


def table_metadata(access: CassandraAccess, keyspace: str, table: str) -> TableMetadata:
    """A table as the server describes it. Raises ConfigError when it does not exist, CassandraReadError."""
    found = find_table(access, keyspace, table)
    if found is None:
        reason = missing_table_text(f"{keyspace}.{table}", f"at {access.address}", _table_names(access))
        raise ConfigError.of("table", reason)
    return found


def find_table(access: CassandraAccess, keyspace: str, table: str) -> TableMetadata | None:
    """As `table_metadata`; None when the table does not exist. Raises ConfigError, CassandraReadError."""
    try:
        with access.session() as session:
            schema = {
                name: [
                    plain_row(row) for row in session.execute(SELECTS[name] + " WHERE keyspace_name = %s", (keyspace,))
                ]
                for name in ("tables", "columns", "types", "dropped_columns")
            }
    except DRIVER_ERRORS as error:
        raise CassandraReadError(access.address, f"the schema cannot be read ({one_line(error)})") from None
    return next((each for each in tables_of(schema).values() if each.name == table), None)


def _table_names(access: CassandraAccess) -> list[str]:
    """Full names of all tables. Raises ConfigError, CassandraReadError."""
    try:
        with access.session() as session:
            rows = session.execute("SELECT keyspace_name, table_name FROM system_schema.tables")
            return [f"{row['keyspace_name']}.{row['table_name']}" for row in rows]
    except DRIVER_ERRORS as error:
        raise CassandraReadError(access.address, f"the schema cannot be read ({one_line(error)})") from None


def host_ids(access: CassandraAccess) -> frozenset[UUID]:
    """Host ids of all nodes of the cluster. Raises ConfigError, CassandraReadError."""
    try:
        with access.session() as session:
            rows = [row for each in ("local", "peers") for row in session.execute(f"SELECT host_id FROM system.{each}")]
    except DRIVER_ERRORS as error:
        raise CassandraReadError(access.address, f"does not name its nodes ({one_line(error)})") from None
    return frozenset(row["host_id"] for row in rows if row["host_id"] is not None)


def token_ranges(count: int, tokens: TokenRange = ALL_TOKENS) -> list[TokenRange]:
    """Split a range of tokens, by default the whole ring, into at most `count` ranges of equal width.

    Raises ConfigError.
    """
    low, high = tokens
    if not _MIN_TOKEN <= low < high < -_MIN_TOKEN:
        raise ConfigError.of("tokens", f"{low} to {high} is no range of tokens: start and end lie in -2^63 to 2^63 - 1")
    edges = [low + (high - low) * at // count for at in range(count + 1)]
    return list(itertools.pairwise(sorted(set(edges))))


def read_rows(
    spark: SparkSession,
    access: CassandraAccess,
    table: TableMetadata,
    ranges: Sequence[TokenRange],
    published: PublishedTable | None = None,
) -> DataFrame:
    """Every row in the ranges: `key`, `value`, `has_row` (false: static columns only), the newest `writetime_us`,
    `key_parts` (CQL bytes of the primary key), the partition's `token`, and the newest `row_writetime_us` without those
    of static columns.

    Key and value are as the connector publishes them; `published` is for a connector that hides columns. `key_parts`
    are not hidden. Each range is one task. A failed task raises CassandraReadError with the range.
    """
    plan = spark.createDataFrame(list(ranges), "low bigint, high bigint").repartition(len(ranges))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = [(each["low"], each["high"]) for batch in batches for each in batch.to_pylist()]
        if wanted:
            yield from RangeReader(access, table, published=published).read(wanted)

    return plan.mapInArrow(read, _SCHEMA)


def check_predicate(access: CassandraAccess, table: TableMetadata, where: str) -> None:
    """Raises ConfigError if Cassandra refuses this CQL predicate, CassandraReadError if it does not answer."""
    try:
        with access.session() as session:
            session.prepare(RangeReader(access, table, keys_only=True, where=where).statement)
    except (InvalidRequest, SyntaxException) as error:
        raise ConfigError.of("where", f"{where!r} is refused by Cassandra ({one_line(error)})") from None
    except DRIVER_ERRORS as error:
        raise CassandraReadError(
            access.address, f"cannot be asked about {table.full_name} ({one_line(error)})"
        ) from None


class RangeReader:
    """Reads token ranges in one task: whole rows, or their keys and the write times of their regular columns.

    `where` is a CQL predicate that is added to the one of the range. `written`: only rows whose newest regular cell, or
    newest static cell, was written in one of these spans.
    """

    def __init__(
        self,
        access: CassandraAccess,
        table: TableMetadata,
        *,
        keys_only: bool = False,
        where: str | None = None,
        written: Sequence[TimeSpan] | None = None,
        published: PublishedTable | None = None,
    ) -> None:
        self._access = access
        self._table = table
        self._where = where
        self._keys_only = keys_only
        self._published = published
        shown = table if published is None else published.table
        names = {each.name for each in shown.value_columns}
        wanted = tuple(each for each in table.value_columns if each.name in names)
        self._values = () if keys_only else wanted or table.primary_key
        self._written = written
        regular = [each.name for each in table.regular_columns if not is_multi_cell(each.type)]
        static = [each.name for each in table.static_columns if not is_multi_cell(each.type)]
        self._regulars = len(regular)
        self._timed = regular if keys_only and written is None else regular + static
        self._write_key = record_writer(data_key_schema(shown))
        self._write_value = record_writer(data_value_schema(shown))
        self._readers = {each.name: column_reader(each) for each in shown.primary_key + shown.value_columns}

    def read(self, ranges: Sequence[TokenRange]) -> Iterator[pa.RecordBatch]:
        """Record batches of at most 5,000 rows, by the columns of `read_rows`. Raises CassandraReadError."""
        with self._access.session(as_bytes=True) as session:
            statement = session.prepare(self.statement)
            for low, high in ranges:
                yield from self._read_range(session, statement, low, high)

    @property
    def statement(self) -> str:
        """The CQL for one range, with bind markers for its start and end."""
        table = self._table
        names = [quoted(each.name) for each in (*table.primary_key, *self._values)]
        names += [f"WRITETIME({quoted(each)})" for each in self._timed]
        token = f"token({', '.join(quoted(each.name) for each in table.partition_key)})"
        further = f" AND {self._where} ALLOW FILTERING" if self._where else ""
        place = f"{quoted(table.keyspace)}.{quoted(table.name)}"
        return f"SELECT {', '.join(names)}, {token} FROM {place} WHERE {token} > ? AND {token} <= ?{further}"

    def _read_range(
        self, session: Session, statement: PreparedStatement, low: int, high: int
    ) -> Iterator[pa.RecordBatch]:
        rows: list[RawRow] = []
        try:
            for raw in session.execute(statement, (low, high)):
                row = self._converted(raw)
                if row is None:
                    continue
                rows.append(row)
                if len(rows) == _ROWS_PER_BATCH:
                    yield _batch(rows)
                    rows = []
        except DRIVER_ERRORS as error:
            place = f"{self._access.address}, {self._table.full_name}, tokens ({low}, {high}]"
            raise CassandraReadError(place, f"cannot be read ({one_line(error)})") from None
        if rows:
            yield _batch(rows)

    def _converted(self, raw: Sequence[bytes | None]) -> RawRow | None:
        """As `_row`. Raises CassandraReadError, which names the row, if a value has no form in the table's Avro schema."""
        try:
            return self._row(raw)
        except (CqlValueError, *_AVRO_ERRORS) as error:
            key = "(hidden)"
            if self._published is None or not self._published.hides_key:
                key = " ".join(
                    "null" if each is None else f"0x{each.hex()}" for each in raw[: len(self._table.primary_key)]
                )
            reason = f"the row with the key {key} cannot be converted ({one_line(error)}); correct it in Cassandra"
            raise CassandraReadError(f"{self._access.address}, {self._table.full_name}", reason) from None

    def _row(self, raw: Sequence[bytes | None]) -> RawRow | None:
        """The row by `_ARROW`; None if its write times are outside of `written`."""
        table = self._table
        keys, values = len(table.primary_key), len(self._values)
        *times, token = [
            None if each is None else int.from_bytes(each, "big", signed=True) for each in raw[keys + values :]
        ]
        assert token is not None
        newest, newest_static = _newest(times[: self._regulars]), _newest(times[self._regulars :])
        if self._written is not None and not (
            is_within(self._written, newest) or is_within(self._written, newest_static)
        ):
            return None
        key = self._record(table.primary_key, raw[:keys])
        value = None if self._keys_only else self._write_value(self._record(self._values, raw[keys : keys + values]))
        has_row = not table.clustering_key or raw[len(table.partition_key)] is not None
        written = newest if self._keys_only else _newest([newest, newest_static])
        return self._write_key(key), value, has_row, written, list(raw[:keys]), token, newest

    def _record(self, columns: Sequence[ColumnMetadata], data: Sequence[bytes | None]) -> dict[str, AvroValue]:
        shown = data if self._published is None else self._published.shown(columns, data)
        values = [
            None if each is None else self._readers[column.name](each)
            for column, each in zip(columns, shown, strict=True)
        ]
        return dict(zip(avro_names([column.name for column in columns]), values, strict=True))


class _RawResultMessage(ResultMessage):  # type: ignore[misc]  # the driver has no types
    """Leaves rows as CQL bytes, from which their Avro form is made: the driver's values would lose precision."""

    def recv_results_rows(
        self,
        f: object,
        protocol_version: int,
        user_type_map: object,
        result_metadata: Sequence[tuple[object, ...]],
        policy: object,
    ) -> None:
        self.recv_results_metadata(f, user_type_map)
        columns: Sequence[tuple[object, ...]] = self.column_metadata or result_metadata
        self.column_names = [each[2] for each in columns]
        self.column_types = [each[3] for each in columns]
        self.parsed_rows = [tuple(read_value(f) for _ in columns) for _ in range(read_int(f))]


class _RawProtocolHandler(ProtocolHandler):  # type: ignore[misc]  # the driver has no types
    message_types_by_opcode: Final = {
        **ProtocolHandler.message_types_by_opcode,
        ResultMessage.opcode: _RawResultMessage,
    }


def _newest(times: Sequence[int | None]) -> int | None:
    return max((each for each in times if each is not None), default=None)


def _rows_only(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> Sequence[tuple[object, ...]]:
    return rows


def _batch(rows: Sequence[RawRow]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(each, kind.type) for each, kind in zip(columns, _ARROW, strict=True)], schema=_ARROW
    )


def _refusal(error: Exception) -> str:
    """The nodes' messages, and the options to check if they are known."""
    cause = node_errors(error, NoHostAvailable)[0]
    if isinstance(cause, AuthenticationFailed):
        return f"refuses the login ({one_line(cause)}); check the username and its password"
    refusal = certificate_refusal(str(cause))
    if refusal:
        return f"is not trusted ({refusal}); check the address and the trusted certificates of TLS"
    return f"does not answer ({one_line(cause)})"
