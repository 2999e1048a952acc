"""The servers of a command without a line.yaml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.health.findings import Section, failure, ok
from cdc.health.this_line import line_of, unnamed_line, with_hint
from cdc.sandbox.state import ProcessId, SandboxState, ServerState, write_state


@pytest.fixture
def ended() -> ProcessId:
    """A process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        return ProcessId.of(process.pid)


def _servers(folder: Path) -> str:
    """Which servers the warning names."""
    found = unnamed_line(None, folder)
    assert found is not None
    assert found.remedy.startswith("give a file by --config or CDC_LINE")
    return found.text.partition(" are used")[0]


def _admin_url(folder: Path, supervisor: ProcessId, server: ProcessId | None) -> str:
    pulsar = ServerState(
        name="pulsar",
        version="4.0.0",
        address="127.9.9.9",
        ports={"broker": 6651, "web": 8081},
        details={},
        log="",
        process=server,
    )
    state = SandboxState(
        cassandra="5.0", nodes=1, pulsar=True, address_prefix="127.9.9", supervisor=supervisor, servers=(pulsar,)
    )
    write_state(folder, state)
    return line_of(None, folder).pulsar_admin_url


def test_a_sandbox_that_has_ended_is_not_meant(tmp_path: Path, ended: ProcessId) -> None:
    """Its file stays in the folder. The servers are then those on localhost."""
    assert _admin_url(tmp_path, ended, ended) == "http://localhost:8080"
    assert _admin_url(tmp_path, ended, None) == "http://localhost:8080"
    assert _servers(tmp_path) == "none was given: the servers on localhost"
    assert unnamed_line(tmp_path / "line.yaml", tmp_path) is None


def test_a_sandbox_is_meant_while_one_of_its_processes_runs(tmp_path: Path, ended: ProcessId) -> None:
    """Either its servers or its supervisor were killed."""
    here = ProcessId.of(os.getpid())
    assert _admin_url(tmp_path, here, ended) == "http://127.9.9.9:8081"
    assert _admin_url(tmp_path, ended, here) == "http://127.9.9.9:8081"
    assert _servers(tmp_path) == "none was given: the servers of the running sandbox"


def test_a_failure_without_a_file_is_told_with_the_servers_that_were_looked_for(tmp_path: Path) -> None:
    """A sandbox in another folder is not looked for; the screen said to correct line.yaml, which nobody had given."""
    failed = [Section(title="servers", findings=[failure("Pulsar", "does not answer", "start it")])]
    [hint, *others] = with_hint(failed, None)
    assert (hint.title, others) == ("line.yaml", failed)
    assert with_hint(failed, tmp_path / "line.yaml") == failed
    good = [Section(title="servers", findings=[ok("Pulsar", "answers")])]
    assert with_hint(good, None) == good
