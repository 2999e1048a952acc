"""How the driver gets the cluster's address and handles errors; the driver is real, and there is no server."""

from __future__ import annotations

import base64
import io
import logging
import struct
import time
import weakref
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from cassandra import AuthenticationFailed, ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.cqltypes import Int32Type
from cassandra.protocol import ExecuteMessage, ProtocolHandler, ServerError, SyntaxException
from cassandra.util import uuid_from_time

from source_connector.assembly import cassandra_options
from source_connector.configuration.config import SourceConfig
from source_connector.errors import DeploymentError, FetchError
from source_connector.rows.cassandra_client import CassandraClient, RawPage, _Connection
from source_connector.rows.raw_protocol import RawProtocolHandler, RawResultMessage
from source_connector.rows.timeouts import Timeouts

_LOGIN = {"auth.provider": "PLAIN", "auth.username": "u", "auth.password": "p"}


def client(**options: object) -> CassandraClient:
    given = {name.replace("__", "."): value for name, value in options.items()}
    place = {"keyspace": "ks", "table": "t", "pulsarServiceUrl": "pulsar://broker:6650"}
    return CassandraClient(cassandra_options(SourceConfig.from_mapping({**place, **_LOGIN, **given})[0], None))


def test_a_secure_connect_bundle_reaches_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver gets the bundle as a file with its content, and the login, but no other address of the cluster."""
    told: dict[str, object] = {}

    def note(cluster: Cluster, **options: object) -> None:
        cloud = options["cloud"]
        assert isinstance(cloud, dict)
        told.update(options, content=Path(cloud["secure_connect_bundle"]).read_bytes())
        raise ConnectionRefusedError("the service is away")

    monkeypatch.setattr(Cluster, "__init__", note)
    content = "base64:" + base64.b64encode(b"zip").decode()
    with pytest.raises(FetchError, match=r"the cluster of cloud\.secureConnectBundle: ConnectionRefusedError"):
        client(cloud__secureConnectBundle=content).connect()
    assert told["content"] == b"zip"
    assert isinstance(told["auth_provider"], PlainTextAuthProvider)
    assert not {"contact_points", "port", "ssl_context"} & told.keys()


def test_a_bundle_that_is_none_is_named(tmp_path: Path) -> None:
    """There is no file, no zip, or a zip of other things: waiting would not help."""
    text, other = tmp_path / "text", tmp_path / "other.zip"
    text.write_text("no zip")
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("x", "y")
    for path in (tmp_path / "nothing", text, other):
        with pytest.raises(DeploymentError, match=r"^cloud\.secureConnectBundle: cannot be used \("):
            client(cloud__secureConnectBundle=str(path)).connect()


def test_a_contact_point_that_no_name_server_knows_is_waited_for() -> None:
    """The error names the host, because a name may become known later."""
    with pytest.raises(FetchError, match=r"Cassandra at nosuch\.invalid port 9042: UnresolvableContactPoints"):
        client(contactPoints="nosuch.invalid", loadBalancing__localDc="dc1").connect()


def test_a_cancelled_timer_lets_go_of_what_it_would_have_called() -> None:
    """The driver keeps a timer until its time: otherwise all answers of half a minute would stay in memory."""

    class Read:
        """A request and its answer."""

        def is_late(self) -> None:
            raise AssertionError("it was answered")

    read = Read()
    seen = weakref.ref(read)
    Cluster.connection_class.initialize_reactor()
    timer = _Connection.create_timer(600, read.is_late)
    del read
    assert seen() is not None
    timer.cancel()
    assert seen() is None


def test_timeouts_end_together_in_their_time_and_one_that_fails_ends_no_other() -> None:
    """Timeouts that end within a quarter of a second share a timer of the driver; one below a second has its own."""
    created: list[tuple[float, Callable[[], None]]] = []
    ended: list[str] = []
    timeouts = Timeouts(lambda delay_s, callback: created.append((delay_s, callback)))

    def fail() -> None:
        raise ValueError("no such request")

    before = time.monotonic()
    timeouts.add(0.01, lambda: ended.append("short"))
    assert created[0][0] == 0.01
    timeouts.add(30, fail)
    for name in ("first", "second", "third"):
        last = timeouts.add(30, partial(ended.append, name))
    last.cancel()
    timers = created[1:]
    assert len(timers) <= 2  # Two timers if the test crosses the limit of a quarter of a second.
    assert all(delay_s + time.monotonic() - before >= 30 and delay_s <= 30.25 for delay_s, _ in timers)
    for _, callback in timers:
        callback()
    assert ended == ["first", "second"]
    timeouts.add(30, partial(ended.append, "fourth"))
    assert len(created) > len(timers) + 1


def test_a_timer_that_cannot_be_made_is_not_relied_on() -> None:
    """The next timeout of the same quarter of a second tries again: otherwise a statement might wait for ever."""
    asked: list[float] = []

    def refuse(delay_s: float, callback: Callable[[], None]) -> None:
        asked.append(delay_s)
        raise RuntimeError("no event loop")

    timeouts = Timeouts(refuse)
    for _ in range(5):
        with pytest.raises(RuntimeError, match="no event loop"):
            timeouts.add(30, lambda: None)
    assert len(asked) == 5


def test_an_error_for_which_the_driver_has_no_exception_of_its_own_is_told_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Syntax errors and internal errors of the server come as protocol messages, and must not end the connector."""

    class Refusing:
        def prepare(self, select: str) -> None:
            raise SyntaxException(0x2000, "no viable alternative", None)

        def execute(self, select: str, values: object, execution_profile: str) -> None:
            raise ServerError(0, "Unknown CF", None)

    refused = client(contactPoints="somewhere", loadBalancing__localDc="dc1")
    monkeypatch.setattr(refused, "_open_session", Refusing)
    with pytest.raises(FetchError, match=r"^cannot read SELECT: SyntaxException: .*no viable alternative") as prepared:
        refused.prepare("SELECT")
    assert prepared.value.refresh_schema
    with pytest.raises(FetchError, match=r"^cannot read system_schema: ServerError: .*Unknown CF"):
        refused.system_rows("SELECT")


def test_the_schema_versions_of_all_nodes_are_those_that_one_node_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the node's own version and those of its peers: another node's peers would lack that node's version."""
    own, other = UUID(int=1), UUID(int=2)
    asked: list[object] = []

    class Answer(list[dict[str, object]]):
        response_future = SimpleNamespace(coordinator_host="node 1")

    class Session:
        def execute(self, select: str, execution_profile: str, host: object = None) -> Answer:
            asked.append(host)
            if "local" in select:
                return Answer([{"schema_version": own}])
            return Answer([{"host_id": UUID(int=9), "schema_version": other}])

    asking = client(contactPoints="somewhere", loadBalancing__localDc="dc1")
    nobody = SimpleNamespace(metadata=SimpleNamespace(all_hosts=list))
    monkeypatch.setattr(asking, "_open_session", Session)
    monkeypatch.setattr(asking, "_cluster", nobody)
    assert (asking.schema_versions(), asked) == ({own, other}, [None, "node 1"])


@pytest.mark.parametrize("keyspace", ["shop", "systems", "system_orders", "system", "system_schema"])
def test_rows_of_a_users_keyspace_stay_bytes_whatever_its_name_begins_with(keyspace: str) -> None:
    """Only rows of Cassandra's own keyspaces are decoded by the driver."""
    no_metadata, columns, rows = 0x0004, 1, 1
    value = struct.pack(">ii", 4, 7)
    answer = RawResultMessage(2)
    content = io.BytesIO(struct.pack(">iii", no_metadata, columns, rows) + value)
    answer.recv_results_rows(content, 4, {}, [(keyspace, "t", "v", Int32Type)], None)
    if keyspace in ("system", "system_schema"):
        assert answer.parsed_rows == [(7,)]
    else:
        assert isinstance(answer.parsed_rows, RawPage)
        assert answer.parsed_rows.coordinator is None


def test_rows_are_asked_for_without_the_names_of_their_columns() -> None:
    """The request differs from the driver's in one flag. The number of columns is in the answer's head."""
    asked = ExecuteMessage(b"id", [b"k", None], ConsistencyLevel.ONE, fetch_size=9, paging_state=b"p", skip_meta=True)
    encoded = [
        handler.encode_message(asked, 5, 4, compressor=None, allow_beta_protocol_version=False)
        for handler in (ProtocolHandler, RawProtocolHandler)
    ]
    flags_at = 9 + len(b"\0\2id") + len(b"\0\1")
    assert encoded[0][flags_at] & 0x02 == 0
    expected = bytearray(encoded[0])
    expected[flags_at] |= 0x02
    assert encoded[1] == bytes(expected)
    answer = RawResultMessage(2)
    values = struct.pack(">iiiii", 4, 7, -1, 4, 8)
    answer.recv_results_rows(io.BytesIO(struct.pack(">iii", 0x0004, 3, 1) + values), 4, {}, None, None)
    assert answer.parsed_rows.rows() == [(b"\0\0\0\7", None, b"\0\0\0\x08")]


def test_the_schemas_version_is_asked_for_anew_unless_the_known_one_is_as_new_as_it_must_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables share an answer of the last second. A request for a later version asks again, and the other tables share
    that answer."""
    now, versions = [10.0], iter(map(UUID, map("{:032x}".format, range(9))))
    monkeypatch.setattr("source_connector.rows.cassandra_client.time.monotonic", lambda: now[0])
    asking = client(contactPoints="somewhere", loadBalancing__localDc="dc1")
    monkeypatch.setattr(asking, "_read_local", lambda: next(versions))
    assert (asking.schema_version().int, asking.schema_version().int) == (0, 0)
    now[0] = 10.5
    assert (asking.schema_version(10.0).int, asking.schema_version().int) == (0, 0)
    assert (asking.schema_version(10.2).int, asking.schema_version().int) == (1, 1)
    assert asking.schema_version(10.5).int == 1
    now[0] = 11.6
    assert asking.schema_version().int == 2


class _Line:
    """A cluster and its session. Without an answer, its nodes have other addresses by now."""

    def __init__(self, answer: Exception | None = None) -> None:
        self._answer = answer
        self.is_closed = False

    def execute(self, select: str, values: object, execution_profile: str) -> list[dict[str, object]]:
        if self._answer is not None:
            raise self._answer
        return [{"schema_version": UUID(int=7), "now": uuid_from_time(0.0)}]

    def shutdown(self) -> None:
        self.is_closed = True


class _RefusingCluster:
    """A cluster that refuses a new connection by this error."""

    metadata = SimpleNamespace(all_hosts=lambda: ())

    def __init__(self, error: Exception) -> None:
        self._error = error

    def connect(self) -> _Line:
        raise self._error

    def shutdown(self) -> None:
        pass


def test_nodes_that_all_came_back_under_other_addresses_are_reached_by_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As pods do after a stop of the whole cluster: the driver never asks for the addresses of its hosts again."""
    now, later = [100.0], [_Line(), _Line()]
    monkeypatch.setattr("source_connector.rows.cassandra_client.time.monotonic", lambda: now[0])
    asking = client(contactPoints="somewhere", loadBalancing__localDc="dc1")
    monkeypatch.setattr(asking, "_connected", lambda: (later[0], later[0]))
    asking.connect()
    gone = _Line(NoHostAvailable("none", {"10.0.0.1": ConnectionException("refused")}))
    monkeypatch.setattr(asking, "_cluster", gone)
    monkeypatch.setattr(asking, "_session", gone)
    for now[0] in (110.0, 129.0):
        with pytest.raises(FetchError, match="refused"):
            asking.schema_version()
        assert not gone.is_closed
    now[0] = 131.0
    with pytest.raises(FetchError, match="refused"):
        asking.schema_version()
    assert gone.is_closed
    assert asking.schema_version() == UUID(int=7)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (NoHostAvailable("none", {"10.0.0.1": ServerError(0, "no memory", None)}), None),
        (NoHostAvailable("none", {}), DeploymentError("auth.username, auth.password: refused")),
        (NoHostAvailable("none", {}), FetchError("Cassandra at somewhere port 9042", "away")),
    ],
    ids=["they answer", "they refuse a new connection", "they are down"],
)
def test_the_known_session_stays_if_a_new_one_would_not_help(
    monkeypatch: pytest.MonkeyPatch, error: Exception, again: Exception | None
) -> None:
    """Of nodes that are down, the driver finds out when they are back."""
    now = [100.0]
    monkeypatch.setattr("source_connector.rows.cassandra_client.time.monotonic", lambda: now[0])
    asking = client(contactPoints="somewhere", loadBalancing__localDc="dc1")
    known = _Line(error)
    monkeypatch.setattr(asking, "_cluster", known)
    monkeypatch.setattr(asking, "_session", known)

    def connected() -> tuple[_Line, _Line]:
        assert again is not None
        raise again

    monkeypatch.setattr(asking, "_connected", connected)
    for now[0] in (100.0, 105.0, 140.0):
        with pytest.raises(FetchError, match="cannot read system_schema"):
            asking.schema_version()
    assert not known.is_closed
    assert asking._session is known


def test_a_changed_password_is_reported_once_with_the_cluster_and_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The nodes were restarted, and the driver does not try again where its password was refused."""
    caplog.set_level(logging.INFO)
    now, wrong = [100.0], AuthenticationFailed("Bad credentials")
    monkeypatch.setattr("source_connector.rows.cassandra_client.time.monotonic", lambda: now[0])
    asking = client(contactPoints="somewhere", port=9043, loadBalancing__localDc="dc1")
    known = _Line(NoHostAvailable("Unable to complete the operation against any hosts", {}))
    monkeypatch.setattr(asking, "_cluster", known)
    monkeypatch.setattr(asking, "_session", known)
    monkeypatch.setattr(asking, "_reached_at", now[0])
    refusing = _RefusingCluster(NoHostAvailable("Unable to connect to any servers", {"10.0.0.1": wrong}))
    monkeypatch.setattr(asking, "_new_cluster", lambda: refusing)
    options = "auth.username, auth.password: Cassandra refused them; correct them or auth.provider"
    with pytest.raises(
        FetchError, match=r"^cannot read system_schema: NoHostAvailable: no node of the local .* is up$"
    ):
        asking.schema_version()
    for now[0] in (131.0, 140.0, 170.0):
        with pytest.raises(FetchError) as raised:
            asking.schema_version()
        assert str(raised.value) == f"cannot read system_schema: Cassandra at somewhere port 9043: {options}"
    assert [(each.levelname, each.message) for each in caplog.records] == [
        (
            "ERROR",
            "Cassandra at somewhere port 9043: no node has answered for 30 s, and a new connection is refused, so all tables "
            f"wait: {options}",
        )
    ]
    known._answer = None
    assert asking.schema_version() == UUID(int=7)
    known._answer = NoHostAvailable("none", {"10.0.0.1": ServerError(0, "no memory", None)})
    now[0] = 171.5
    with pytest.raises(FetchError, match="no memory"):
        asking.schema_version()


@pytest.mark.parametrize(
    "message",
    [
        "Unable to perform authentication: Cannot achieve consistency level LOCAL_ONE",
        "Error during authentication of user me : org.apache.cassandra.exceptions.UnavailableException: Cannot achieve",
    ],
)
def test_nodes_that_cannot_look_up_the_password_yet_do_not_refuse_it(
    message: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first nodes of a restarted cluster answer with the code of wrong credentials. The password is right."""
    asking = client(contactPoints="somewhere", loadBalancing__localDc="dc1")
    known = _Line(NoHostAvailable("Unable to complete the operation against any hosts", {}))
    monkeypatch.setattr(asking, "_cluster", known)
    monkeypatch.setattr(asking, "_session", known)
    monkeypatch.setattr(asking, "_reached_at", time.monotonic() - 31)
    undecided = AuthenticationFailed(
        f'Failed to authenticate to 10.0.0.1:9042: Error from server: code=0100 [Bad credentials] message="{message}"'
    )
    refusing = _RefusingCluster(NoHostAvailable("Unable to connect to any servers", {"10.0.0.1": undecided}))
    monkeypatch.setattr(asking, "_new_cluster", lambda: refusing)
    with pytest.raises(FetchError, match=f"Cassandra at somewhere port 9042: AuthenticationFailed: .*{message}"):
        asking.schema_version()
    assert caplog.records == []


def test_nodes_that_are_still_down_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver alone says that no node is up, but not which, and why."""
    asking = client(contactPoints="somewhere", loadBalancing__localDc="dc1")
    known = _Line(NoHostAvailable("Unable to complete the operation against any hosts", {}))
    monkeypatch.setattr(asking, "_cluster", known)
    monkeypatch.setattr(asking, "_session", known)
    monkeypatch.setattr(asking, "_reached_at", time.monotonic() - 31)
    away = NoHostAvailable("Unable to connect to any servers", {"10.0.0.1": ConnectionException("Connection refused")})
    monkeypatch.setattr(asking, "_new_cluster", lambda: _RefusingCluster(away))
    expected = "^cannot read system_schema: Cassandra at somewhere port 9042: ConnectionException: Connection refused"
    with pytest.raises(FetchError, match=expected):
        asking.schema_version()
