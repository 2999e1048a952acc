"""`cdc agent`: what a user sees after a mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cdc.main import cli
from change_agent.positions.stops import Stops
from tests.topics.events_topic import wait_until


def _agent(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cdc.main", "agent", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_every_mistake_is_one_line_and_the_exit_code_is_2(tmp_path: Path) -> None:
    """All mistakes are reported at once, each with its file and its option, and without a traceback."""
    config = tmp_path / "agent.yaml"
    config.write_text("cdcRawDir: /tmp\nport: nine\ncdcWorkingDir: work\n")
    done = _agent("--config", str(config))
    assert done.returncode == 2
    assert sorted(done.stderr.splitlines()) == [
        f"cdc: {config}: cdcRawDir: is no option of the agent; did you mean cdcRawDirectory?",
        f"cdc: {config}: cdcRawDirectory: is missing; set it to the node's cdc_raw_directory, or set cassandraYaml",
        f"cdc: {config}: port: must be a whole number",
    ]


def test_a_wrong_option_of_the_environment_is_not_looked_for_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file does not have the option, so the line does not name the file."""
    config = tmp_path / "agent.yaml"
    config.write_text(f"cdcRawDirectory: {tmp_path}\n")
    monkeypatch.setenv("CDC_PORT", "nine")
    done = _agent("--config", str(config))
    assert sorted(done.stderr.splitlines()) == [
        f"cdc: {config}: cdcWorkingDir: is missing; set it",
        "cdc: port: must be a whole number",
    ]


def test_a_node_without_cdc_is_told_before_anything_starts(tmp_path: Path) -> None:
    """The message names the file with cdc_enabled: false, and says what to do."""
    (tmp_path / "cassandra.yaml").write_text(f"cdc_enabled: false\ncdc_raw_directory: {tmp_path}\n")
    config = tmp_path / "agent.yaml"
    config.write_text(f"cassandraYaml: {tmp_path}/cassandra.yaml\ncdcWorkingDir: {tmp_path}/work\n")
    done = _agent("--config", str(config))
    assert done.returncode == 2
    assert done.stderr == (
        f"cdc: {config}: cassandraYaml: {tmp_path}/cassandra.yaml has cdc_enabled: false; set it to true and restart the node\n"
    )


@pytest.mark.parametrize("name", ["commitlog", "log"])
def test_the_nodes_commit_log_is_not_taken_for_cdc_raw(tmp_path: Path, name: str) -> None:
    """The agent deleted segments that Cassandra still needed. cassandra.yaml names the folder; else its name tells."""
    (tmp_path / name).mkdir()
    (tmp_path / "cassandra.yaml").write_text(f"cdc_enabled: true\ncommitlog_directory: {tmp_path}/log\n")
    config = tmp_path / "agent.yaml"
    yaml = f"cassandraYaml: {tmp_path}/cassandra.yaml\n" if name == "log" else ""
    config.write_text(f"{yaml}cdcRawDirectory: {tmp_path}/{name}\ncdcWorkingDir: {tmp_path}/work\n")
    done = _agent("--config", str(config))
    assert done.returncode == 2
    hint = "; if the node's cdc_raw_directory has this name, set cassandraYaml to the file that says so"
    hint = "" if name == "log" else hint
    assert done.stderr == (
        f"cdc: {config}: cdcRawDirectory: {tmp_path}/{name} is the node's commit log, whose segments the agent would delete;"
        f" set it to the node's cdc_raw_directory (see cassandra.yaml){hint}\n"
    )


@pytest.mark.parametrize("has_index", [False, True])
def test_a_folder_that_may_be_the_commit_log_is_read_when_the_node_has_answered(
    tmp_path: Path, has_index: bool
) -> None:
    """Only cdc_raw has indexes. Without one, the agent changes nothing until the node has named its commit log."""
    raw = tmp_path / "cdc_raw"
    raw.mkdir()
    (raw / "CommitLog-7-1.log").write_bytes(b"\0" * 100)
    if has_index:
        (raw / "CommitLog-7-1_cdc.idx").write_text("0")
    config = tmp_path / "agent.yaml"
    config.write_text(f"cdcRawDirectory: {raw}\ncdcWorkingDir: {tmp_path}/work\nport: 1\nhttpPort: off\n")
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "cdc.main", "agent", "--config", str(config)], stderr=output)
    try:
        said = (
            f"reading {raw}"
            if has_index
            else f"{raw} has segments and no index, as a commit log has: waiting for the node"
        )
        wait_until(lambda: said in log.read_text(), "the agent begins", 60)
        assert (tmp_path / "work").exists() == has_index
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_check_says_that_a_file_is_good_and_starts_nothing(tmp_path: Path) -> None:
    """Not even the working directory is created."""
    config = tmp_path / "agent.yaml"
    (tmp_path / "cdc_raw").mkdir()
    config.write_text(f"cdcRawDirectory: {tmp_path}/cdc_raw\ncdcWorkingDir: {tmp_path}/work\npulsarBatchDelayInMs: 5\n")
    done = _agent("--config", str(config), "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pulsarBatchDelayInMs has no effect" in done.stdout
    assert done.stdout.endswith(f"{config}: no problems found\n")
    assert not (tmp_path / "work").exists()


def test_damaged_positions_are_one_line(tmp_path: Path) -> None:
    """The exit code is 1, because the configuration is right and only the stored state is wrong."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "positions-a.json").write_text("damaged")
    config = tmp_path / "agent.yaml"
    (tmp_path / "cdc_raw").mkdir()
    config.write_text(f"cdcRawDirectory: {tmp_path}/cdc_raw\ncdcWorkingDir: {work}\n")
    done = _agent("--config", str(config))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "damaged" in done.stderr.splitlines()[-1]


def _stopped(tmp_path: Path, name: str) -> Path:
    """Write an agent.yaml. Its agent has one stopped table, which is named like the file."""
    work = tmp_path / name
    work.mkdir()
    Stops(work).note(f"ks.{name}", "why")
    config = tmp_path / f"{name}.yaml"
    (tmp_path / "cdc_raw").mkdir(exist_ok=True)
    config.write_text(f"cdcRawDirectory: {tmp_path}/cdc_raw\ncdcWorkingDir: {work}\n")
    return config


def test_the_configuration_of_the_group_is_that_of_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes precedence over the environment, and a command's own option over both."""
    first, second, third = (str(_stopped(tmp_path, name)) for name in ("a", "b", "c"))

    def listed(*arguments: str) -> str:
        return CliRunner().invoke(cli, ["agent", *arguments], catch_exceptions=False).stdout

    monkeypatch.setenv("CDC_CONFIG", first)
    command = ["resume-progress", "--list"]
    assert listed(*command) == "ks.a: why\n"
    assert listed("--config", second, *command) == "ks.b: why\n"
    assert listed("--config", second, *command, "--config", third) == "ks.c: why\n"
    monkeypatch.delenv("CDC_CONFIG")
    assert listed("--config", second, *command) == "ks.b: why\n"


@pytest.mark.parametrize("arguments", [["--connect"], ["--check", "status"], ["--connect", "status"]])
def test_what_would_be_ignored_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    """No agent starts."""
    done = _agent("--config", str(_stopped(tmp_path, "a")), *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("cdc agent: --c")


def test_reprocess_of_nothing_leaves_no_folder(tmp_path: Path) -> None:
    """The folder that was given may be no agent's."""
    done = CliRunner().invoke(cli, ["agent", "reprocess", "--working-dir", str(tmp_path), "nope.log"])
    assert done.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_does_not_stand_still_is_told(tmp_path: Path) -> None:
    """A mistyped name used to have the same answer as a table that was resumed before."""
    config = str(_stopped(tmp_path, "orders"))
    command = ["agent", "resume-progress", "--config", config]
    mistyped = CliRunner().invoke(cli, [*command, "ks.ordres"])
    assert mistyped.output == "ks.ordres has no stop of its own; --list shows all stops\n"
    assert str(CliRunner().invoke(cli, [*command, "orders"]).exception) == "TABLE: 'orders' is not KEYSPACE.TABLE"
    assert CliRunner().invoke(cli, [*command, "ks.orders"]).output == "ks.orders: why\n"
