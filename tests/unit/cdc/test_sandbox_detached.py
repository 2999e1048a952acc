"""Concurrent `cdc sandbox start`, with a real supervisor, and small real processes instead of servers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import psutil
import pytest
from click.testing import CliRunner

from cdc.commands.sandbox import start
from cdc.sandbox.addresses import claim_block
from cdc.sandbox.detached import DetachedServer, detached_server
from cdc.sandbox.errors import SandboxError
from cdc.sandbox.options import SandboxOptions
from cdc.sandbox.sandbox import Sandbox
from cdc.sandbox.state import ProcessId, SandboxState, ServerState, read_state, write_state
from cdc.sandbox.supervision import SupervisorChannel
from schemas.errors import ConfigError
from tests.topics.events_topic import wait_until

_TURNS = 100


def _server(folder: Path, name: str, process: ProcessId) -> ServerState:
    log = str(folder / "logs" / f"{name}.log")
    return ServerState(
        name=name, version="5", address="127.0.0.1", ports={"native": 9}, details={}, log=log, process=process
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A detached sandbox with two servers that have ended."""
    (tmp_path / "logs").mkdir()
    channel = SupervisorChannel(tmp_path, held=[], remove_folder=False)
    supervisor = ProcessId.of(channel.pid)
    servers = []
    for name in ("one", "two"):
        command = ["sh", "-c", "[ -e ready ] && exec sleep 60"]
        pid = channel.spawn(name, command, dict(os.environ), tmp_path, tmp_path / "logs" / f"{name}.log")
        servers.append(_server(tmp_path, name, ProcessId(pid=pid, created=0.0)))
    state = SandboxState(
        cassandra="5.0",
        nodes=2,
        pulsar=False,
        address_prefix="127.41.7",
        supervisor=supervisor,
        servers=tuple(servers),
    )
    write_state(tmp_path, state)
    wait_until(lambda: None not in map(channel.returncode, ("one", "two")), "both have ended", 10)
    channel.detach()
    (tmp_path / "ready").touch()
    yield tmp_path
    channel._process.terminate()
    channel._process.wait()


def _pid_of(folder: Path, name: str) -> int | None:
    state = read_state(folder)
    assert state is not None
    process = {each.name: each.process for each in state.servers}[name]
    return None if process is None else process.pid


def test_starts_of_several_servers_at_once_are_all_recorded(folder: Path) -> None:
    """Each changes its own part of sandbox.json.

    A server with a lost change would be listed as stopped while it runs.
    """

    def record(name: str) -> None:
        with detached_server(folder, name) as server:
            for pid in range(1, _TURNS + 1):
                server._process = ProcessId(pid=pid, created=0.0)
                server.on_start()

    threads = [Thread(target=record, args=[name]) for name in ("one", "two")]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (_pid_of(folder, "one"), _pid_of(folder, "two")) == (_TURNS, _TURNS)


def test_one_of_two_starts_of_a_server_wins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other start reports it. Other servers can be started."""
    monkeypatch.setattr(DetachedServer, "_why_not_ready", lambda _server: None)
    with detached_server(folder, "one") as server, server.only_start():
        refused = CliRunner().invoke(start, ["one", "--dir", str(folder)])
        assert isinstance(refused.exception, SandboxError)
        assert re.match("another command starts one now; wait until `cdc sandbox status", str(refused.exception))
        other = CliRunner().invoke(start, ["two", "--dir", str(folder)])
        assert other.output == f"two runs, pid {_pid_of(folder, 'two')}\n"
        server.start()
    again = ["one", "--dir", str(folder)]
    assert CliRunner().invoke(start, again).output == "one runs already, and does not answer\n"
    assert json.loads(CliRunner().invoke(start, [*again, "--json"]).output)["state"] == "unresponsive"
    assert psutil.pid_exists(_pid_of(folder, "one") or 0)


def test_a_start_that_waited_knows_the_process_of_the_other_one(folder: Path) -> None:
    """It has read sandbox.json before the other start wrote it."""
    with detached_server(folder, "one") as late, detached_server(folder, "one") as server:
        server._process = ProcessId(pid=7, created=0.0)
        server.on_start()
        with late.only_start():
            assert late.pid == 7


def test_a_start_takes_the_addresses_of_one_that_was_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cassandra stores them with its data.

    The other start used the folder and left it while this one fetched files.
    """
    block, claim = claim_block()
    claim.close()
    state = SandboxState(
        cassandra="5.0",
        nodes=1,
        pulsar=False,
        address_prefix=block.prefix,
        supervisor=ProcessId(pid=1, created=0.0),
        servers=(),
    )
    monkeypatch.setattr(Sandbox, "_fetch_artifacts", lambda _sandbox: write_state(tmp_path, state))
    monkeypatch.setattr(Sandbox, "_start_servers", lambda _sandbox: None)
    options = SandboxOptions(nodes=1, pulsar=False)
    with Sandbox(options, base_dir=tmp_path) as servers:
        assert servers.node.address == block.node(1)
    monkeypatch.setattr(
        Sandbox, "_fetch_artifacts", lambda _sandbox: write_state(tmp_path, replace(state, cassandra="4.1"))
    )
    with pytest.raises(ConfigError, match=r"holds the data of Cassandra 4\.1"):
        Sandbox(options, base_dir=tmp_path).start()
