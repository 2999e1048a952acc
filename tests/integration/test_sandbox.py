"""The sandbox with real servers: each Cassandra line, two nodes, its ends, and two sandboxes at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
from cassandra import ConsistencyLevel, OperationTimedOut, ReadTimeout, Unavailable
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import WhiteListRoundRobinPolicy

from cdc.sandbox import CassandraNode, Sandbox, SandboxOptions, ServerStartError
from tests.servers.cassandra_session import make_keyspace

_REPOSITORY = Path(__file__).parents[2]


@contextmanager
def _session(nodes: tuple[CassandraNode, ...], consistency: int = ConsistencyLevel.ALL) -> Iterator[Session]:
    addresses = [node.address for node in nodes]
    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy(addresses), consistency_level=consistency, request_timeout=60
    )
    with Cluster(
        addresses,
        port=nodes[0].native_port,
        protocol_version=4,
        connect_timeout=60,
        control_connection_timeout=60,
        max_schema_agreement_wait=60,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    ) as cluster:
        yield cluster.connect()


def _eventually(holds: Callable[[], bool], timeout_s: float = 180) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _is_synced(node: CassandraNode, value: bytes) -> bool:
    """Return whether `cdc_raw` has the value before the offset up to which the commit log is synced."""
    for index in node.cdc_raw.glob("*_cdc.idx"):
        segment = index.with_name(index.name.replace("_cdc.idx", ".log"))
        position = segment.read_bytes().find(value)
        lines = index.read_text().split()
        if position >= 0 and lines and int(lines[0]) > position:
            return True
    return False


def _reads_one(session: Session) -> bool:
    try:
        return bool(session.execute("SELECT b FROM k.t WHERE a = 1").one().b == "one")
    except (ReadTimeout, Unavailable, OperationTimedOut):  # asked the dead replica before its death was noticed
        return False


def _processes_of(folder: Path) -> list[str]:
    """Names of the processes that belong to a folder; a process may end while this function looks."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.cmdline()) and process.pid != os.getpid():
                found.append(process.name())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _listeners(pid: int) -> set[str]:
    connections = psutil.Process(pid).net_connections("tcp")
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


def test_the_shared_servers_listen_on_their_loopback_addresses_only(sandbox: Sandbox) -> None:
    """The servers cannot be reached from the network."""
    assert _listeners(sandbox.node.pid) == {sandbox.node.address}
    assert _listeners(sandbox.pulsar.pid) == {sandbox.pulsar.address}
    assert sandbox.node.address.startswith("127.")


@pytest.mark.parametrize("line", ["4.1", "4.0", "3.11"])
def test_each_older_line_takes_cql_and_leaves_changes_in_cdc_raw(line: str) -> None:
    """CQL works on 4.1, 4.0 and 3.11 (all other tests run on 5.0). 3.11 moves segments to `cdc_raw` only when it
    discards them."""
    with Sandbox(SandboxOptions(cassandra=line, pulsar=False, commitlog_sync_ms=50)) as sandbox:
        node = sandbox.node
        with _session(sandbox.nodes) as session:
            release = session.execute("SELECT release_version FROM system.local").one().release_version
            assert release == node.version
            make_keyspace(session, "k")
            session.execute("CREATE TABLE k.t (a int PRIMARY KEY, b text) WITH cdc = true")
            session.execute("INSERT INTO k.t (a, b) VALUES (1, 'one')")
        if line == "3.11":
            node.flush("k", "t")
            node.drain()
            assert any(b"one" in file.read_bytes() for file in node.cdc_raw.glob("CommitLog-*.log"))
            assert list(node.cdc_raw.glob("*_cdc.idx")) == []
        else:
            assert _eventually(lambda: _is_synced(node, b"one"))
        node.stop()
        assert not node.running


@pytest.mark.extended
def test_two_nodes_keep_a_copy_each_and_one_lives_without_the_other() -> None:
    """With RF 2, a write at ALL reaches both nodes. A killed node starts again with its data, even with a half-created
    table, with which Cassandra alone does not start."""
    # On a busy machine a write may take longer than Cassandra's default of 2 s.
    timeouts = {"write_request_timeout_in_ms": 20_000, "request_timeout_in_ms": 20_000}
    options = SandboxOptions(nodes=2, pulsar=False, commitlog_sync_ms=50, cassandra_settings=timeouts)
    with Sandbox(options) as sandbox:
        first, second = sandbox.nodes
        both = {first.address, second.address}
        assert _eventually(lambda: first.live_nodes() == second.live_nodes() == both)
        with _session(sandbox.nodes) as session:
            make_keyspace(session, "k", 2)
            session.execute("CREATE TABLE k.t (a int PRIMARY KEY, b text) WITH cdc = true")
            session.execute("INSERT INTO k.t (a, b) VALUES (1, 'one')")
        for node in sandbox.nodes:
            assert _eventually(partial(_is_synced, node, b"one"))
        with _session((second,), ConsistencyLevel.ONE) as session:
            session.execute("CREATE TABLE k.half (a int PRIMARY KEY)")
            session.execute("DELETE FROM system_schema.columns WHERE keyspace_name = 'k' AND table_name = 'half'")
        second.flush("system_schema")
        second.kill()
        assert not second.running
        with _session((first,), ConsistencyLevel.ONE) as session:
            assert _eventually(lambda: _reads_one(session))
        second.start()
        with _session((second,), ConsistencyLevel.ONE) as session:
            assert _eventually(lambda: _reads_one(session))


def test_a_server_that_does_not_start_is_told_with_the_tail_of_its_own_log() -> None:
    """The error has the tail of the server's log, and no process or folder of the sandbox remains."""
    options = SandboxOptions(pulsar=False, cassandra_settings={"no_such_setting": 1})
    sandbox = Sandbox(options)
    with pytest.raises(ServerStartError) as error:
        sandbox.start()
    lines = str(error.value).splitlines()
    assert lines[0].startswith("cassandra-1 did not start: it ended with exit code ")
    assert any("Please remove properties [no_such_setting]" in line for line in lines[1:])
    assert not sandbox.dir.exists()
    assert _processes_of(sandbox.dir) == []


def test_the_command_line_starts_lists_and_ends_a_sandbox_beside_another(sandbox: Sandbox, tmp_path: Path) -> None:
    """`up` returns and the servers keep running, a server is killed and started again, `down` leaves no process, and
    the shared sandbox keeps running."""
    folder = tmp_path / "own"
    up = json.loads(_cdc("up", "--json", "--dir", folder).stdout)
    assert [(server["name"], server["state"]) for server in up["servers"]] == [
        ("cassandra-1", "ready"),
        ("pulsar", "ready"),
    ]
    assert up["servers"][0]["address"] != sandbox.node.address
    again = _cdc("up", "--dir", folder)
    assert again.returncode == 2
    assert again.stderr.splitlines()[-1].startswith(f"cdc: sandbox folder: a sandbox runs in {folder}; end it by")
    assert _eventually(lambda: _cdc("status", "--dir", folder).returncode == 0)
    assert _cdc("kill", "cassandra-1", "--dir", folder).stdout == "cassandra-1 killed\n"
    assert _cdc("stop", "cassandra-1", "--dir", folder).stdout == "cassandra-1 did not run\n"
    assert "cassandra-1 5.0.9: stopped" in _cdc("status", "--dir", folder).stdout
    wrong = _cdc("start", "cassandra-2", "--dir", folder)
    assert wrong.returncode == 2
    assert "'cassandra-2' is no server of this sandbox; it has cassandra-1, pulsar" in wrong.stderr
    started = json.loads(_cdc("start", "cassandra-1", "--json", "--dir", folder).stdout)
    assert started["pid"] != up["servers"][0]["pid"]
    assert _eventually(lambda: _cdc("status", "--dir", folder).returncode == 0)
    down = _cdc("down", "--json", "--dir", folder)
    assert json.loads(down.stdout) == {"dir": str(folder), "ended": 2}
    assert _processes_of(folder) == []
    assert sandbox.node.running
    assert sandbox.pulsar.running
    assert (folder / "cassandra-1" / "cdc_raw").is_dir()
    assert _cdc("down", "--remove", "--dir", folder).returncode == 0
    assert not folder.exists()


def test_nothing_is_left_of_an_up_that_is_killed_while_servers_start(tmp_path: Path) -> None:
    """An `up` that is killed while its servers start leaves no process, although it has not reported them yet."""
    command = [sys.executable, "-m", "cdc.main", "sandbox", "up", "--dir", str(tmp_path / "own")]
    with subprocess.Popen(command, cwd=_REPOSITORY) as process:
        try:
            assert _eventually(lambda: _processes_of(tmp_path).count("java") == 2)
        finally:
            process.send_signal(signal.SIGKILL)
    assert _eventually(lambda: _processes_of(tmp_path) == [])


def _cdc(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cdc.main", "sandbox", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=_REPOSITORY, timeout=300)
