"""The connection to Cassandra: one session, rows as the raw bytes of their columns, the event's node as coordinator.

This module and those that it serves (`row_fetcher`, `table_schema`) are the home of cassandra-driver.
"""

from __future__ import annotations

import logging
import ssl
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from cassandra import AuthenticationFailed, ConsistencyLevel, InvalidRequest, OperationTimedOut
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, ResponseFuture, Session
from cassandra.policies import (
    ConstantSpeculativeExecutionPolicy,
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
)
from cassandra.pool import Host
from cassandra.protocol import ErrorMessage
from cassandra.query import BoundStatement, PreparedStatement, dict_factory

from clients.driver_errors import NO_ANSWER
from clients.node_errors import node_errors
from clients.tls import certificate_refusal
from runtime.notices import Notices
from schemas.truncation import Truncation, truncations_of
from source_connector.configuration.private_files import as_file
from source_connector.errors import DeploymentError, FetchError
from source_connector.rows.cluster_clock import ClusterClock
from source_connector.rows.raw_page import RawPage
from source_connector.rows.raw_protocol import RawProtocolHandler
from source_connector.rows.silent_nodes import SILENT_AFTER_S, SilentNodes
from source_connector.rows.timeouts import Timeout, Timeouts

__all__ = ["CassandraClient", "CassandraOptions", "RawPage", "RowRead", "reason_of"]

_log = logging.getLogger(__name__)

# Version 4 is spoken by every Cassandra from 2.2 on. Version 5 would cost a checksum per frame in Python, and its
# gain, metadata that follows an ALTER, is not needed: every statement names its columns.
_PROTOCOL_VERSION: Final = 4
_SYSTEM_PROFILE: Final = "system"
# The connector waits for these few small queries, so a node that hangs must not delay them for long.
_SYSTEM_TIMEOUT_S: Final = 5.0
# All tables of a source ask for the schema's version; one answer serves them all.
_VERSION_FOR_S: Final = 1.0
# After so long without any answer, the nodes may all have other addresses: the driver keeps those that it found at the
# start, and never resolves the names again.
_CONNECT_AGAIN_S: Final = 30.0
# Also those of a secure connect bundle.
_UNUSABLE: Final[tuple[type[Exception], ...]] = (*NO_ANSWER, ValueError, KeyError)
# Parts of a node's message when it could not look up the password. The second one is of older versions.
_UNDECIDED: Final = ("Unable to perform authentication", "Error during authentication of user")


@dataclass(frozen=True, slots=True, kw_only=True)
class CassandraOptions:
    """Where the cluster is, and the credentials; `ssl_context` is None for plain text.

    A secure connect bundle (a path, or `base64:` and its content) replaces contact points, port and `ssl_context`.
    """

    contact_points: Sequence[str]
    port: int
    local_dc: str
    read_timeout_s: float
    username: str | None = None
    password: str | None = None
    ssl_context: ssl.SSLContext | None = None
    secure_connect_bundle: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRead:
    """One execution of a prepared SELECT. `values` are the CQL bytes for its markers."""

    statement: PreparedStatement
    values: Sequence[bytes | None]
    consistency: str
    event_node: UUID | None
    paging_state: bytes | None = None
    page_size: int | None = None
    may_be_asked_twice: bool = False
    """True when a second node may be asked if the first one does not answer."""


class _EventNodeFirst(DCAwareRoundRobinPolicy):  # type: ignore[misc]  # the driver has no types
    """Nodes of the local data center; first the one whose commit log held the event, if it is up; silent ones last."""

    def __init__(self, local_dc: str, silent: SilentNodes) -> None:
        super().__init__(local_dc)
        self._silent = silent

    def make_query_plan(self, working_keyspace: str | None = None, query: object = None) -> Iterator[object]:
        plan = list(super().make_query_plan(working_keyspace, query))
        node = getattr(query, "event_node", None)
        plan.sort(key=lambda host: (self._silent.comes_last(host), node is not None and host.host_id != node))
        if plan and hasattr(query, "event_node"):  # a read of rows: its answer is reported to `SilentNodes`
            self._silent.asked(plan[0])
        return iter(plan)


class _Connection(Cluster.connection_class):  # type: ignore[misc]  # the driver has no types
    """Reads 64 KiB at a time, not 4 KiB like the driver: 20 rows of a wide table have a hundred KiB and more."""

    in_buffer_size = 1 << 16
    _timeouts: Final = Timeouts(Cluster.connection_class.create_timer)

    @classmethod
    def create_timer(cls, timeout: float, callback: Callable[[], None]) -> Timeout:
        return cls._timeouts.add(timeout, callback)


class _NextHostOnError(FallthroughRetryPolicy):  # type: ignore[misc]  # the driver has no types
    """Tries the next node after a broken connection. Errors that the cluster answers are left to the caller."""

    def on_request_error(self, *args: object, **kwargs: object) -> tuple[int, None]:
        return self.RETRY_NEXT_HOST, None


class CassandraClient:
    """Owns the driver's cluster and session: `connect`, then reads, then `close`."""

    def __init__(self, options: CassandraOptions) -> None:
        self._options = options
        self._cluster: Cluster | None = None
        self._session: Session | None = None
        self._version: tuple[float, UUID] | None = None
        self._silent = SilentNodes()
        self._reached_at = 0.0
        """When Cassandra last answered a query of `system_rows`, or the last attempt to connect again was made."""
        self._connect_failure = ""
        """Why the last attempt to connect again failed; empty if none has failed since the last answer."""
        self._notices = Notices(_log, again_after_s=None)
        self.clock: Final = ClusterClock()

    def connect(self) -> None:
        """Try once to connect. Raises FetchError if no node answers, DeploymentError if another attempt cannot help."""
        self._cluster, self._session = self._connected()
        self._reached_at = time.monotonic()
        try:
            self._read_local()
        except FetchError:
            self._cluster.shutdown()
            raise

    def _connected(self) -> tuple[Cluster, Session]:
        """A new session. Raises as `connect`."""
        try:
            cluster = self._new_cluster()
        except _UNUSABLE as error:
            raise self._new_cluster_error(error) from error
        try:
            session = cluster.connect()
        except NO_ANSWER as error:
            known = {host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter}
            cluster.shutdown()
            if known and self._options.local_dc and self._options.local_dc not in known:
                raise DeploymentError(
                    f"loadBalancing.localDc: no node is in {self._options.local_dc!r}; the cluster has "
                    + ", ".join(sorted(map(repr, known)))
                ) from error
            raise self._connect_error(error) from error
        session.client_protocol_handler = RawProtocolHandler
        session.use_client_timestamp = False
        return cluster, session

    def _connect_again(self, error: NoHostAvailable) -> str:
        """Connect by the names of the nodes again if no node has answered for a while. Nothing changes if that fails.

        Return why no node has answered.
        """
        now = time.monotonic()
        before, reason = self._cluster, reason_of(error)
        if before is None or any(isinstance(each, ErrorMessage) for each in node_errors(error, NoHostAvailable)):
            return reason
        if now - self._reached_at < _CONNECT_AGAIN_S:
            return self._connect_failure or reason
        self._reached_at = now
        try:
            self._cluster, self._session = self._connected()
        except FetchError as again:
            self._connect_failure = f"{again.table}: {again.reason}"
            return self._connect_failure
        except DeploymentError as again:
            self._connect_failure = f"{self._place_text}: {again}"
            self._say_refused(again)
            return self._connect_failure
        _log.info("Cassandra did not answer for %.0f s; the connector has connected to it again", _CONNECT_AGAIN_S)
        self._connect_failure = ""
        before.shutdown()
        return reason

    def _say_refused(self, error: DeploymentError) -> None:
        """Log once that the cluster refuses a new connection, until it answers again."""
        text = (
            f"{self._place_text}: no node has answered for {_CONNECT_AGAIN_S:.0f} s, and a new connection is refused, so all "
            f"tables wait: {error}"
        )
        self._notices.say("refused", text, level=logging.ERROR)

    def close(self) -> None:
        """Close all connections."""
        if self._cluster is not None:
            self._cluster.shutdown()

    def system_rows(self, select: str, values: Sequence[object] = ()) -> list[Mapping[str, Any]]:
        """Rows of a SELECT from a system keyspace, decoded, by column name. Raises FetchError."""
        try:
            rows = list(self._open_session().execute(select, values, execution_profile=_SYSTEM_PROFILE))
        except NO_ANSWER as error:
            reason = self._connect_again(error) if isinstance(error, NoHostAvailable) else reason_of(error)
            raise FetchError("system_schema", reason) from error
        self._reached_at, self._connect_failure = time.monotonic(), ""
        self._notices.clear("refused")
        return rows

    def schema_version(self, asked_after: float | None = None) -> UUID:
        """A value that changes with every change of the cluster's schema, at most a second old. Raises FetchError.

        With `asked_after`, a value of `time.monotonic`, Cassandra was asked for it at that time or later.
        """
        now = time.monotonic()
        oldest = now - _VERSION_FOR_S if asked_after is None else asked_after
        if self._version is None or self._version[0] < oldest:
            self._version = now, self._read_local()
        return self._version[1]

    def _read_local(self) -> UUID:
        """Return the schema version of a node, and set `clock` by its time. Raises FetchError."""
        (row,) = self.system_rows("SELECT schema_version, now() AS now FROM system.local WHERE key = 'local'")
        version, now = row["schema_version"], row["now"]
        assert isinstance(version, UUID)
        assert isinstance(now, UUID)
        self.clock.observe(now, time.monotonic())
        return version

    def schema_versions(self) -> set[UUID]:
        """The schema versions of all nodes that are not known to be down; one if they agree. Raises FetchError.

        Both queries go to the same node, because a node is not among its own peers.
        """
        assert self._cluster is not None
        down = {host.host_id for host in self._cluster.metadata.all_hosts() if host.is_up is False}
        try:
            asked = self._open_session().execute(
                "SELECT schema_version FROM system.local WHERE key = 'local'", execution_profile=_SYSTEM_PROFILE
            )
            others = self._open_session().execute(
                "SELECT host_id, schema_version FROM system.peers",
                execution_profile=_SYSTEM_PROFILE,
                host=asked.response_future.coordinator_host,
            )
            local, peers = list(asked), list(others)
        except NO_ANSWER as error:
            raise FetchError("system.peers", reason_of(error)) from error
        found = [row["schema_version"] for row in (*local, *(each for each in peers if each["host_id"] not in down))]
        return {version for version in found if isinstance(version, UUID)}

    def truncations(self, table_id: UUID) -> dict[UUID, Truncation | None]:
        """The last truncation of the table on each node, by host id. None: it has noted none, or does not answer in time.

        Nodes without a connection are left out, as those of other data centers. Raises FetchError if no node answers.
        """
        assert self._cluster is not None
        select = "SELECT host_id, truncated_at FROM system.local WHERE key = 'local'"
        found: dict[UUID, Truncation | None] = {}
        silent: dict[UUID, Truncation | None] = {}
        failure: Exception | None = None
        hosts = [host for host in self._cluster.metadata.all_hosts() if host.is_up]
        for host in hosts:
            try:
                (row,) = self._open_session().execute(select, execution_profile=_SYSTEM_PROFILE, host=host)
            except OperationTimedOut as error:
                # Such a node may not have truncated the table yet, and may answer reads before it does.
                failure, silent[host.host_id] = error, None
                continue
            except NO_ANSWER as error:
                failure = error
                continue
            found[row["host_id"]] = truncations_of(row["truncated_at"]).get(table_id)
        if not found:
            raise FetchError("system.local", reason_of(failure) if failure else "no node is up")
        return silent | found

    def tables(self) -> list[tuple[str, str, bool]]:
        """Keyspace, table and whether it has CDC, of all tables. Raises FetchError."""
        rows = self.system_rows("SELECT keyspace_name, table_name, cdc FROM system_schema.tables")
        return [(str(row["keyspace_name"]), str(row["table_name"]), bool(row["cdc"])) for row in rows]

    def prepare(self, select: str) -> PreparedStatement:
        """Prepare a statement. Raises FetchError with `refresh_schema`, because the table may have changed."""
        try:
            return self._open_session().prepare(select)
        except NO_ANSWER as error:
            invalid = isinstance(error, InvalidRequest)
            raise FetchError(select, reason_of(error), refresh_schema=True, is_invalid=invalid) from error

    def read(self, read: RowRead, on_page: Callable[[RawPage], None], on_error: Callable[[Exception], None]) -> None:
        """Start a read. One of the callbacks is called in a thread of the driver. It must only hand over the result."""
        statement = BoundStatement(read.statement, consistency_level=ConsistencyLevel.name_to_value[read.consistency])
        statement.values = list(read.values)
        statement.event_node = read.event_node
        statement.fetch_size = read.page_size
        statement.is_idempotent = read.may_be_asked_twice
        future: ResponseFuture = self._open_session().execute_async(statement, paging_state=read.paging_state)
        # The future holds its callbacks. If they held the future, only the garbage collector would free it and its
        # answer.
        asked = weakref.ref(future)

        def who_answered() -> Host | None:
            answering = asked()
            host: Host | None = None if answering is None else answering.coordinator_host
            if host is not None:
                self._silent.heard(host)
            return host

        def answered(page: RawPage) -> None:
            host = who_answered()
            page.coordinator = None if host is None else host.host_id
            on_page(page)

        def failed(error: Exception) -> None:
            if not isinstance(error, OperationTimedOut):
                who_answered()
            on_error(error)

        future.add_callbacks(answered, failed)

    def knows(self, node: UUID) -> bool:
        """True when the node with this host id is part of the cluster."""
        assert self._cluster is not None
        return any(host.host_id == node for host in self._cluster.metadata.all_hosts())

    def _open_session(self) -> Session:
        if self._session is None:
            raise AssertionError("connect() comes first")
        return self._session

    def _new_cluster(self) -> Cluster:
        options = self._options
        policy = _EventNodeFirst(options.local_dc, self._silent)  # for a bundle, the data center of the first node
        raw = ExecutionProfile(
            load_balancing_policy=policy,
            retry_policy=_NextHostOnError(),
            request_timeout=options.read_timeout_s,
            row_factory=lambda names, rows: rows,
            # Only for statements that `may_be_asked_twice`.
            speculative_execution_policy=ConstantSpeculativeExecutionPolicy(SILENT_AFTER_S, 1),
        )
        system = ExecutionProfile(
            load_balancing_policy=policy, request_timeout=_SYSTEM_TIMEOUT_S, row_factory=dict_factory
        )
        auth = None
        if options.username is not None:
            auth = PlainTextAuthProvider(options.username, options.password)
        with as_file(options.secure_connect_bundle, ".zip") as bundle:
            return Cluster(
                **self._place(bundle),
                protocol_version=_PROTOCOL_VERSION,
                connection_class=_Connection,
                execution_profiles={EXEC_PROFILE_DEFAULT: raw, _SYSTEM_PROFILE: system},
                auth_provider=auth,
                # The connector reads the schema of its tables itself. The driver's copy of all tables would only cost
                # memory.
                schema_metadata_enabled=False,
                token_metadata_enabled=False,
                compression=False,
                # The driver's default pause grows to ten minutes, which would prolong every outage of Cassandra.
                reconnection_policy=ExponentialReconnectionPolicy(0.5, 5.0, max_attempts=None),
                application_name="cassandra-cdc-source",
            )

    def _place(self, bundle: str) -> dict[str, object]:
        if bundle:
            return {"cloud": {"secure_connect_bundle": bundle}}
        options = self._options
        return {
            "contact_points": list(options.contact_points),
            "port": options.port,
            "ssl_context": options.ssl_context,
        }

    def _new_cluster_error(self, error: Exception) -> Exception:
        """The error for an unusable bundle, a silent service, or contact points that cannot be resolved."""
        if not self._options.secure_connect_bundle:
            return self._connect_error(error)
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | ValueError | KeyError):
            return DeploymentError(
                f"cloud.secureConnectBundle: cannot be used ({reason_of(error)}); give the zip file as it was downloaded"
            )
        return FetchError(self._place_text, reason_of(error))

    def _connect_error(self, error: Exception) -> Exception:
        causes = node_errors(error, NoHostAvailable)
        if any(isinstance(cause, AuthenticationFailed) and not _is_undecided(cause) for cause in causes):
            return DeploymentError(
                "auth.username, auth.password: Cassandra refused them; correct them or auth.provider"
            )
        refusal = certificate_refusal(str(causes[0]))
        hint = f"{refusal}; check ssl.truststore.path and ssl.hostnameValidation" if refusal else ""
        return FetchError(self._place_text, hint or reason_of(error))

    @property
    def _place_text(self) -> str:
        """The cluster, in a message."""
        options = self._options
        if options.secure_connect_bundle:
            return "the cluster of cloud.secureConnectBundle"
        return f"Cassandra at {', '.join(options.contact_points)} port {options.port}"


def _is_undecided(error: AuthenticationFailed) -> bool:
    """True when the node could not look up the password, because too few other nodes are up after their restart."""
    return any(each in str(error) for each in _UNDECIDED)


def reason_of(error: Exception) -> str:
    """One line of an exception's text."""
    if isinstance(error, NoHostAvailable) and not error.errors:
        return "NoHostAvailable: no node of the local data center is up"
    error = node_errors(error, NoHostAvailable)[0]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
