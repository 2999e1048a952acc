"""NodeConnection: the agent's CQL queries to its node.

In the agent, only it and `lean_imports` import cassandra-driver.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, Self
from uuid import UUID

from cassandra import AuthenticationFailed, Unauthorized
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.metadata import murmur3
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import dict_factory

from change_agent.configuration.connections import cassandra_tls
from change_agent.configuration.server_options import CassandraOptions
from change_agent.schema.schema_history import NodeSchema
from clients.driver_errors import NO_ANSWER, UNDECODABLE
from clients.node_errors import node_errors, one_line
from clients.tls import certificate_refusal
from schemas.errors import CdcError
from schemas.system_schema import SELECTS, plain_row
from schemas.truncation import Truncation, truncations_of

__all__ = ["CHECK_LOGIN", "LocalState", "Node", "NodeConnection", "NodeUnavailableError", "token_of"]

_TIMEOUT_S: Final = 10.0
CHECK_LOGIN: Final = "; check username and password"
"""The end of the text of a NodeUnavailableError whose node answers, and refuses the login."""
_FIRST_MAJOR_WITH_SETTINGS: Final = 4
# Maximum number of reads until the schema does not change during a read.
_READS: Final = 10
# By list: a column that every CREATE and ALTER statement writes again in its row.
_WRITTEN_WITH: Final = {"tables": "id", "views": "id", "types": "field_names"}
_OF_NODE: Final = "host_id, release_version, data_center, rpc_address"

token_of: Final[Callable[[bytes], int]] = murmur3
"""The Murmur3 token of a serialized partition key, signed 64 bits."""


class NodeUnavailableError(CdcError):
    """The node does not answer now, or its answer cannot be decoded. `is_refusal`: it answered that the role lacks a
    permission."""

    def __init__(self, text: str, *, is_refusal: bool = False) -> None:
        super().__init__(text)
        self.is_refusal: Final = is_refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the cluster, as this agent's node knows it."""

    host_id: UUID
    address: str
    version: str
    data_center: str


class LocalState(NamedTuple):
    """The schema version, the last truncation by table id, and the node itself, from `system.local`."""

    schema_version: UUID
    truncations: Mapping[UUID, Truncation]
    node: Node


# A row of a result: the driver returns each column as its own Python type.
_Answer = Mapping[str, Any]


class _OneHostPolicy(WhiteListRoundRobinPolicy):  # type: ignore[misc]  # the driver has no types
    """All queries go to the same contact point, and to the next one only while it does not answer.

    With an order that turns, `system.local` would be of one node and `system.peers` of another: one node would be
    missing, and another one would be there twice.
    """

    def make_query_plan(self, working_keyspace: str | None = None, query: object = None) -> Iterator[Any]:
        """The contact points that are up, always in the same order."""
        return iter(sorted(super().make_query_plan(working_keyspace, query), key=lambda host: str(host.endpoint)))


class _Session(Protocol):
    def execute(self, query: str, timeout: float) -> Iterable[_Answer]: ...


class NodeConnection:
    """A session with this agent's own node. Used by one thread; connects at the first query."""

    def __init__(
        self,
        *,
        contact_points: Sequence[str],
        port: int,
        username: str | None,
        password: str | None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._contact_points: Final = list(contact_points)
        self._port: Final = port
        self._auth: Final = None if username is None else PlainTextAuthProvider(username, password or "")
        self._tls: Final = tls
        self._cluster: Cluster | None = None
        self._session: _Session | None = None

    @classmethod
    def of(cls, options: CassandraOptions) -> Self:
        """A connection with the options of an agent or of a pipeline. Raises ConfigError."""
        return cls(
            contact_points=options.contact_points,
            port=options.port,
            username=options.username,
            password=None if options.password is None else options.password.get_secret_value(),
            tls=cassandra_tls(options),
        )

    def close(self) -> None:
        """Close the session. The next query opens another one."""
        if self._cluster is not None:
            self._cluster.shutdown()
        self._cluster = self._session = None

    def local(self) -> LocalState:
        """The node's present schema version, its truncations, and itself. Raises NodeUnavailableError."""
        [row] = self._ask(f"SELECT schema_version, truncated_at, {_OF_NODE} FROM system.local WHERE key = 'local'")
        return LocalState(row["schema_version"], truncations_of(row["truncated_at"]), _node(row))

    def others(self) -> list[Node]:
        """The other nodes of the cluster, as this node knows them. Raises NodeUnavailableError."""
        rows = self._ask(f"SELECT {_OF_NODE} FROM system.peers")
        return [_node(each) for each in rows if each["host_id"] is not None]  # null: a node that is joining

    def nodes(self) -> list[Node]:
        """This node and the others. Raises NodeUnavailableError."""
        [row] = self._ask(f"SELECT {_OF_NODE} FROM system.local WHERE key = 'local'")
        return [_node(row), *self.others()]

    def read_schema(self) -> NodeSchema:
        """Host id and all of `system_schema` as of one moment, as plain JSON values. Raises NodeUnavailableError."""
        [local] = self._ask("SELECT host_id FROM system.local WHERE key = 'local'")
        before = self._lists(_WRITTEN_WITH)
        for _ in range(_READS):
            others = self._lists(name for name in SELECTS if name not in _WRITTEN_WITH)
            behind = self._lists(_WRITTEN_WITH)
            # Every CREATE, ALTER and DROP changes one of these rows. During such a change, a table may be complete in
            # one list and missing in another.
            if behind == before:
                return NodeSchema(node_id=local["host_id"], schema={**before, **others})
            before = behind
        raise NodeUnavailableError(
            f"Cassandra at {', '.join(self._contact_points)} port {self._port}: its schema changed {_READS} times while it was"
            " read; trying again"
        )

    def clock_s(self) -> float:
        """The node's time, in seconds of the epoch. Raises NodeUnavailableError."""
        [local] = self._ask("SELECT toUnixTimestamp(now()) AS now FROM system.local WHERE key = 'local'")
        milliseconds: int = local["now"]
        return milliseconds / 1000

    def captured_tables(self) -> dict[str, bool]:
        """All tables as `keyspace.table`, with their option `cdc`. Raises NodeUnavailableError."""
        rows = self._ask("SELECT keyspace_name, table_name, cdc FROM system_schema.tables")
        return {f"{each['keyspace_name']}.{each['table_name']}": bool(each["cdc"]) for each in rows}

    def _lists(self, names: Iterable[str]) -> dict[str, list[dict[str, object]]]:
        return {name: [plain_row(row) for row in self._ask(_dated(name))] for name in names}

    def settings(self, names: tuple[str, ...]) -> dict[str, str]:
        """The node's present settings by name; empty before Cassandra 4.0. Raises NodeUnavailableError."""
        [local] = self._ask("SELECT release_version FROM system.local WHERE key = 'local'")
        if int(str(local["release_version"]).partition(".")[0]) < _FIRST_MAJOR_WITH_SETTINGS:
            return {}
        # One query for each name: the table has passwords, too.
        asked = [self._ask(f"SELECT name, value FROM system_views.settings WHERE name = '{name}'") for name in names]
        return {str(row["name"]): str(row["value"]) for rows in asked for row in rows}

    def execute(self, statement: str, timeout_s: float) -> None:
        """Execute a statement without a result. Raises NodeUnavailableError."""
        self._ask(statement, timeout_s)

    def _ask(self, query: str, timeout_s: float = _TIMEOUT_S) -> list[_Answer]:
        try:
            return list(self._connected().execute(query, timeout=timeout_s))
        except (*NO_ANSWER, *UNDECODABLE) as error:
            # A session whose node restarted under another address never recovers; a new one does.
            self.close()
            addresses = ", ".join(self._contact_points)
            text = f"Cassandra at {addresses} port {self._port}: {_reason(error)}"
            raise NodeUnavailableError(text, is_refusal=isinstance(error, Unauthorized)) from error

    def _connected(self) -> _Session:
        if self._session is None:
            profile = ExecutionProfile(
                # system.local must be this node's, so no other host is queried.
                load_balancing_policy=_OneHostPolicy(self._contact_points),
                row_factory=dict_factory,
                request_timeout=_TIMEOUT_S,
            )
            self._cluster = Cluster(
                self._contact_points,
                port=self._port,
                auth_provider=self._auth,
                ssl_context=self._tls,
                execution_profiles={EXEC_PROFILE_DEFAULT: profile},
                schema_metadata_enabled=False,
                token_metadata_enabled=False,
                connect_timeout=_TIMEOUT_S,
                control_connection_timeout=_TIMEOUT_S,
            )
            self._session = self._cluster.connect()
        return self._session


def _node(row: _Answer) -> Node:
    """From the columns `_OF_NODE`. Cassandra writes them one after the other; a text that is not known yet is empty."""
    return Node(
        host_id=row["host_id"],
        address=str(row["rpc_address"] or ""),
        version=str(row["release_version"] or ""),
        data_center=str(row["data_center"] or ""),
    )


def _dated(name: str) -> str:
    """The query for one list, with the write time of its rows as `written_us`."""
    column = _WRITTEN_WITH.get(name)
    if column is None:
        return SELECTS[name]
    return SELECTS[name].replace(" FROM ", f", writetime({column}) AS written_us FROM ", 1)


def _reason(error: Exception) -> str:
    """One line with the node's own message, without the driver's, and with the option to check if it is known."""
    cause = node_errors(error, NoHostAvailable)[0]
    text = one_line(cause)
    if isinstance(cause, UnicodeDecodeError) or not isinstance(cause, NO_ANSWER):
        return f"its answer cannot be decoded ({type(cause).__name__}: {text})"
    if isinstance(cause, UnicodeError):  # a name such as `a..b`, which is not even looked up
        return f"an address is no host name ({text}); check contactPoints"
    refusal = certificate_refusal(text)
    if refusal is not None:
        return f"{refusal}; check cassandraTrustCertsFilePath and cassandraHostnameVerification"
    return f"{text}{CHECK_LOGIN}" if isinstance(cause, AuthenticationFailed) else text
