"""Agents on this machine: `cdc status` names all agents of a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from cdc.health.agent_status import NoStatusError
from cdc.health.findings import Level
from cdc.health.line_config import LineConfig
from cdc.health.local_agents import _runs_agent, local_agents, unknown_agents
from cdc.health.nodes import agents
from cdc.main import cli
from change_agent.standby import FolderLock
from tests.servers.other_user import as_another_user
from tests.topics.events_topic import wait_until

# A process with the command line of an agent, which replaces a real one.
_SLEEPS = "import time; time.sleep(60)"
_PULSAR = "http://127.0.0.1:9"
_OTHER_PULSAR = "http://127.0.0.3:9"


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[list[Path]]:
    """Paths of agent.yaml of two running agents with one cdc_raw, which is locked by a third one."""
    (tmp_path / "cdc_raw").mkdir()
    lock = FolderLock(tmp_path / "cdc_raw")
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
    """A waiting agent has no status, and must not be started. Agents of another Pulsar do not belong to this line."""
    wait_until(lambda: set(waiting) <= {each.config for each in local_agents()}, "both processes are there", 60)
    line = LineConfig.from_mapping({"agents": [str(waiting[0])], "pulsarAdminUrl": _PULSAR})
    [silent, shared], _ = agents(line, time.time())
    assert (silent.level, shared.level) == (Level.WARNING, Level.WARNING)
    assert "runs and has written no status: it starts, or waits for its node or for another agent of it" in silent.text
    assert "2 agents run for its node; one publishes, the others wait" in shared.text
    assert all(str(path) in shared.text for path in waiting)
    asked = CliRunner().invoke(cli, ["agent", "status", "--config", str(waiting[0])])
    assert isinstance(asked.exception, NoStatusError)  # it said that no agent ever ran there
    assert "runs and has written no status: it starts, or waits for its node or for another agent" in str(
        asked.exception
    )
    elsewhere = LineConfig.from_mapping({"agents": [str(waiting[0])], "pulsarAdminUrl": "http://127.0.0.2:9"})
    assert len(agents(elsewhere, time.time())[0]) == 1
    # It has run before. Its last status is that of a process which is gone; it said that the agent does not run.
    work = waiting[0].parent / "first"
    work.mkdir()
    old = json.loads((Path(__file__).parents[2] / "golden" / "health" / "agent-status.json").read_text())
    (work / "status.json").write_text(json.dumps({**old, "pid": 2**22 + 1}))
    [silent, _], _ = agents(line, time.time())
    assert (silent.level, "has written no status: it starts, or waits" in silent.text) == (Level.WARNING, True)
    asked = CliRunner().invoke(cli, ["agent", "status", "--working-dir", str(work)])
    assert "runs and has written no status: it starts, or waits for its node" in str(asked.exception)


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
    """An option in both forms, or the environment, names the file. Subcommands are not agents."""
    (tmp_path / "a.yaml").touch()
    environment = {**os.environ, "CDC_CONFIG": "a.yaml"}
    with subprocess.Popen([sys.executable, "-c", _SLEEPS, *words], cwd=tmp_path, env=environment) as process:
        try:
            wait_until(lambda: words[-1] in psutil.Process(process.pid).cmdline(), "the process has its words", 10)
            found = {each.pid: each.config for each in local_agents()}
        finally:
            process.kill()
    assert found.get(process.pid) == (tmp_path / "a.yaml" if is_running else None)


@pytest.mark.parametrize("program", ["python3.13t", "python3.13d", "python3.14td", "python3", "pypy3.11", "cdc"])
def test_an_agent_is_known_under_every_name_of_python(program: str) -> None:
    """Builds of Python without the global lock, or for debugging, have a letter after their version."""
    assert _runs_agent([program, "-m", "cdc.main", "agent", "--config", "a.yaml"])
    assert not _runs_agent([f"{program}-config", "cdc", "agent"])


def test_a_program_that_runs_an_agent_is_not_a_second_agent(tmp_path: Path) -> None:
    """`sudo cdc agent` and `timeout 60 cdc agent` have the agent's words, too; the status named a second agent."""
    (tmp_path / "a.yaml").touch()
    words = ["cdc", "agent", "--config", "a.yaml"]
    with subprocess.Popen(["timeout", "60", sys.executable, "-c", _SLEEPS, *words], cwd=tmp_path) as process:
        try:
            wait_until(lambda: bool(psutil.Process(process.pid).children()), "the agent has begun", 10)
            [child] = psutil.Process(process.pid).children()
            wait_until(lambda: child.cmdline()[1:2] == ["-c"], "the agent has its words", 10)
            found = [each.pid for each in local_agents() if each.config == tmp_path / "a.yaml"]
        finally:
            process.terminate()  # timeout ends its child as well
    assert found == [child.pid]


def _environment(folder: Path, **options: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("CDC_")}
    (folder / "cdc_raw").mkdir(exist_ok=True)
    servers = {"CDC_PULSAR_ADMIN_URL": _PULSAR, "CDC_RAW_DIRECTORY": "cdc_raw", "CDC_WORKING_DIR": "work"}
    return own | servers | options


@contextmanager
def _process(folder: Path, environment: Mapping[str, str], *words: str) -> Iterator[int]:
    command = [sys.executable, "-c", _SLEEPS, "cdc", "agent", *words]
    with subprocess.Popen(command, cwd=folder, env=environment) as process:
        try:
            wait_until(lambda: "agent" in psutil.Process(process.pid).cmdline(), "the process has its words", 10)
            yield process.pid
        finally:
            process.kill()


def _line_of_this_machine() -> LineConfig:
    line = LineConfig.from_mapping({"pulsarAdminUrl": _OTHER_PULSAR})
    here = [each.place for each in local_agents() if each.place and each.admin_url == line.pulsar_admin_url]
    return line.model_copy(update={"agents": tuple(here)})


def test_an_agent_without_a_file_is_found_by_its_environment(tmp_path: Path) -> None:
    """Its working directory is relative to the folder in which it was started."""
    with _process(tmp_path, _environment(tmp_path, CDC_PULSAR_ADMIN_URL=_OTHER_PULSAR)) as pid:
        assert _line_of_this_machine().agents == (str(tmp_path / "work"),)
        [silent], _ = agents(_line_of_this_machine(), time.time())
        [found] = [each for each in local_agents() if each.pid == pid]
    assert (found.config, found.working_dir, found.admin_url) == (None, tmp_path / "work", _OTHER_PULSAR)
    assert silent.text.startswith(f"process {pid} runs and has written no status")


def test_options_of_a_file_and_of_the_environment_are_those_of_the_agent(tmp_path: Path) -> None:
    """The environment of the caller does not count. A file without a working directory is not a place to ask."""
    (tmp_path / "a.yaml").write_text("topicPrefix: other-\n")
    with _process(tmp_path, _environment(tmp_path), "--config", "a.yaml") as pid:
        [found] = [each for each in local_agents() if each.pid == pid]
    assert (found.config, found.place, found.admin_url) == (tmp_path / "a.yaml", str(tmp_path / "work"), _PULSAR)


def test_an_agent_whose_environment_may_not_be_read_is_named(tmp_path: Path) -> None:
    """The agent belongs to another user. It is named only if its status is not known."""
    if os.geteuid():
        pytest.skip("only root has processes that another user of this test may not read")

    def found(known: set[int]) -> list[tuple[str, str]]:
        return [(each.subject, each.text) for each in unknown_agents(local_agents(), known)]

    with _process(tmp_path, _environment(tmp_path)) as pid:
        text = "is an agent, and was not asked: this user may not read which options it has"
        assert str((f"process {pid}", text)) in as_another_user(lambda: found(set()))
        assert f"process {pid}" not in as_another_user(lambda: found({pid}))
