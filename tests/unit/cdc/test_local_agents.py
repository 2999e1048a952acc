"""Two agents of one node on this machine: `cdc status` names both."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cdc.health.findings import Level
from cdc.health.line_config import LineConfig
from cdc.health.local_agents import local_agents
from cdc.health.nodes import agents
from change_agent.cdc_raw.folder_lock import FolderLock
from tests.topics.events_topic import wait_until

# In place of an agent: a process with its command line.
_SLEEPS = "import time; time.sleep(60)"
_PULSAR = "http://127.0.0.1:9"


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[list[Path]]:
    """Two agents with one cdc_raw, which a third one has; their agent.yaml."""
    lock = FolderLock(tmp_path)
    (tmp_path / "cdc_raw").mkdir()
    assert lock.take()
    paths, processes = [], []
    for name in ("first", "second"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(
            f"cdcRawDirectory: {tmp_path}/cdc_raw\ncdcWorkingDir: {tmp_path}/{name}\nhttpPort: 0\npulsarAdminUrl: {_PULSAR}\n"
        )
        paths.append(path)
        with (tmp_path / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", "cdc.main", "agent", "--config", str(path)]
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
    yield paths
    for process in processes:
        process.kill()
        process.wait()
    lock.release()


def test_agents_of_one_node_are_named_also_those_that_wait(waiting: list[Path]) -> None:
    """A waiting agent has no status: that is no reason to start it. Agents of another Pulsar are not this line's."""
    wait_until(lambda: set(waiting) <= {each.config for each in local_agents()}, "both processes are there", 60)
    line = LineConfig.from_mapping({"agents": [str(waiting[0])], "pulsarAdminUrl": _PULSAR})
    [silent, shared], _ = agents(line, time.time())
    assert (silent.level, shared.level) == (Level.WARNING, Level.WARNING)
    assert "runs and has written no status: it starts, or waits for another agent of its node" in silent.text
    assert "2 agents run for its node; one publishes, the others wait" in shared.text
    assert all(str(path) in shared.text for path in waiting)
    elsewhere = LineConfig.from_mapping({"agents": [str(waiting[0])], "pulsarAdminUrl": "http://127.0.0.2:9"})
    assert len(agents(elsewhere, time.time())[0]) == 1


@pytest.mark.parametrize(
    ("words", "is_running"),
    [
        (["cdc", "agent", "--config", "a.yaml"], True),
        (["cdc", "agent", "--config=a.yaml"], True),
        (["cdc", "--debug", "agent", "--parent", "1", "--config=a.yaml"], True),
        (["cdc", "agent"], True),  # by CDC_CONFIG
        (["grep", "agent"], False),
        (["cdc", "agent", "--config", "a.yaml", "--check"], False),
        (["cdc", "agent", "--config", "a.yaml", "status"], False),
        (["cdc", "agent", "reprocess", "--config", "a.yaml"], False),
        (["cdc", "agent", "--config=a.yaml", "resume-progress"], False),
    ],
)
def test_an_agent_is_known_by_its_command_line(words: list[str], is_running: bool, tmp_path: Path) -> None:
    """Its file is named by an option, in both forms, or by the environment. Its subcommands are no agents."""
    (tmp_path / "a.yaml").touch()
    environment = {**os.environ, "CDC_CONFIG": "a.yaml"}
    with subprocess.Popen([sys.executable, "-c", _SLEEPS, *words], cwd=tmp_path, env=environment) as process:
        try:
            wait_until(lambda: words[-1] in psutil.Process(process.pid).cmdline(), "the process has its words", 10)
            found = {each.pid: each.config for each in local_agents()}
        finally:
            process.kill()
    assert found.get(process.pid) == (tmp_path / "a.yaml" if is_running else None)
