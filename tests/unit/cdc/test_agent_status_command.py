"""`cdc agent status`: a screen, or the content of the status file."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from cdc.agent_process import AgentProcess
from cdc.main import cli
from tests.topics.events_topic import wait_until

_STATUS: dict[str, object] = {
    "pid": 4711,
    "started": "2026-01-02T03:04:05.678Z",
    "node_id": "00000000-0000-0000-0000-000000000001",
    "cassandra_problem": None,
    "http": "127.0.0.1:9465",
    "segments": {"1795219249195": 94628, "1795219249196": 0},
    "progress": {"lag_bytes": 5_242_880, "lag_s": 130.0, "stuck_s": 0.0, "events_per_s": 1234.5, "bytes_per_s": 2048.0},
    "topics": {
        "shop.orders": {"is_usable": True, "problem": None, "waiting_events": 0, "held_bytes": 0},
        "shop.log": {
            "is_usable": False,
            "problem": "no producer for cdc-events-shop.log: IncompatibleSchema" + " refused" * 20,
            "waiting_events": 12_345,
            "held_bytes": 2048,
        },
    },
    "metrics": {
        "events_acknowledged": 1_000_000,
        "parked": 3,
        "corrupt_entries": 0,
        "cdc_raw_bytes": 1_048_576,
        "cdc_raw_limit_bytes": 4_194_304,
        "cdc_raw_seconds_to_full": 240,
        "spilled_bytes": 0,
    },
}


def _run(directory: Path, *arguments: str, age_s: float = 0.0, **changed: object) -> Result:
    moment = datetime.fromtimestamp(time.time() - age_s, UTC).isoformat()
    (directory / "status.json").write_text(json.dumps(_STATUS | {"time": moment} | changed))
    return CliRunner().invoke(cli, ["agent", "status", "--working-dir", str(directory), *arguments])


def _utc(age_s: float) -> str:
    return datetime.fromtimestamp(time.time() - age_s, UTC).strftime("%Y-%m-%d %H:%M")


def _metrics(**changed: int) -> dict[str, object]:
    found = _STATUS["metrics"]
    assert isinstance(found, dict)
    return {**found, **changed}


def test_the_screen_says_what_an_operator_asks(tmp_path: Path) -> None:
    """It shows position, lag, rates, disk and topics, and a remedy for each problem.

    No line is wider than a terminal.
    """
    done = _run(tmp_path)
    assert done.exit_code == 1
    lines = done.output.splitlines()
    parked = lines.index("trouble    3:")
    assert lines[:parked] == [
        "agent      runs, pid 4711, since 2026-01-02 03:04 UTC",
        "node       00000000-0000-0000-0000-000000000001",
        "position   1795219249195:94628, 1795219249196:0",
        "lag        5.0 MiB, 2 min",
        "rates      1,234 events/s, 2.0 KiB/s read; 1,000,000 events since the start",
        "cdc_raw    1.0 MiB of 4.0 MiB, full in 4 min",
        "topics     1 of 2 usable",
        "http       http://127.0.0.1:9465/metrics  /status  /healthz  /readyz",
    ]
    said = " ".join(" ".join(lines[parked:]).split())
    assert "! 3 mutations are parked: they cannot be decoded yet -> cdc parked --working-dir" in said
    assert "X cdc_raw is full in 4 min at the rate of the last minute -> find out why events are not sent" in said
    # A reason is wrapped between words, and never cut.
    assert (
        f"X shop.log cannot be published (no producer for cdc-events-shop.log: IncompatibleSchema{' refused' * 20});"
        in said
    )
    assert "12,345 events wait, 2.0 KiB are held on disk" in said
    assert max(map(len, lines)) <= 80


def test_an_agent_without_trouble_is_well(tmp_path: Path) -> None:
    """The exit code is 0. A forecast of years is not shown, and no opened topic is not "0 of 0"."""
    done = _run(tmp_path, topics={}, metrics=_metrics(parked=0, cdc_raw_seconds_to_full=1_507_603 * 3600))
    assert done.exit_code == 0
    assert "cdc_raw    1.0 MiB of 4.0 MiB, not filling up" in done.output
    assert "topics     none opened, because no event was published since the start" in done.output
    assert done.output.splitlines()[-1] == "trouble    none"


def test_an_agent_that_never_reached_its_node_names_its_contact_points(tmp_path: Path) -> None:
    """Nothing else tells which node it is for. An agent of an earlier version does not write them."""
    new: dict[str, object] = {"node_id": None, "contact_points": ["10.0.0.1", "10.0.0.2"]}
    said = " ".join(_run(tmp_path, **new).output.split())
    assert "node not known yet; contact points 10.0.0.1, 10.0.0.2 position" in said
    assert "! it has not read the schema of its node (10.0.0.1, 10.0.0.2) yet" in said
    said = " ".join(_run(tmp_path, age_s=600, **new).output.split())
    assert "node not known; contact points 10.0.0.1, 10.0.0.2 position" in said
    assert "ago and never reached its node (10.0.0.1, 10.0.0.2) ->" in said
    problem = "Cassandra at 10.0.0.1, 10.0.0.2 port 9042: refused"
    said = " ".join(_run(tmp_path, **new, cassandra_problem=problem).output.split())
    assert f"X its node does not answer: {problem} ->" in said
    said = " ".join(_run(tmp_path, **new, cassandra_problem="disk I/O error").output.split())
    assert "X its node (10.0.0.1, 10.0.0.2) does not answer: disk I/O error ->" in said
    said = " ".join(_run(tmp_path, node_id=None).output.split())
    assert "node not known yet position" in said and "! it has not read the schema of its node yet" in said


def test_of_an_agent_that_does_not_run_nothing_is_shown_as_now(tmp_path: Path) -> None:
    """Lag, rates and usable topics of the last status are not current, so they are not shown. The exit code is 1."""
    done = _run(tmp_path, age_s=600)
    assert done.exit_code == 1
    said = done.output
    assert said.splitlines()[0] == "agent      DOES NOT RUN"
    assert "process 4711 wrote its last status 10 min ago" in said
    assert "start it" in said
    assert not any(word in said for word in ("lag ", "rates ", "usable", "none"))
    assert done.output.splitlines()[2] == f"position   1795219249195:94628, 1795219249196:0, at {_utc(600)} UTC"


def test_of_an_agent_whose_status_is_from_the_future_nothing_is_shown_as_now(tmp_path: Path) -> None:
    """The clock was set back after the agent had ended."""
    done = _run(tmp_path, age_s=-600)
    assert done.exit_code == 1
    assert done.output.splitlines()[0] == "agent      DOES NOT RUN"
    assert "wrote its last status before the clock was set back (it is 10 min ahead)" in " ".join(done.output.split())
    assert not any(word in done.output for word in ("lag ", "rates ", "usable", "none"))


def test_of_an_agent_that_was_killed_a_moment_ago_nothing_is_shown_as_now(tmp_path: Path) -> None:
    """A real agent, whose servers are away. Its last status is less than a second old."""
    (tmp_path / "cdc_raw").mkdir()
    nowhere = {"contactPoints": "127.0.0.1", "port": 1, "pulsarServiceUrl": "pulsar://127.0.0.1:1"}
    options = {**nowhere, "pulsarAdminUrl": "http://127.0.0.1:1", "cdcRawDirectory": str(tmp_path / "cdc_raw")}
    agent = AgentProcess(tmp_path / "agent", options)
    agent.start()
    try:
        running = CliRunner().invoke(cli, ["agent", "status", "--working-dir", str(agent.working_dir)])
    finally:
        agent.kill()
    assert running.output.splitlines()[0].startswith(f"agent      runs, pid {agent.pid}, since ")
    done = CliRunner().invoke(cli, ["agent", "status", "--working-dir", str(agent.working_dir)])
    assert done.exit_code == 1
    assert done.output.splitlines()[0] == "agent      DOES NOT RUN"
    assert f"does not run; process {agent.pid} wrote its last status" in " ".join(done.output.split())


def test_of_an_agent_that_hangs_it_is_not_said_that_it_does_not_run(tmp_path: Path) -> None:
    """Its process exists: it was stopped by a signal, or its disk is full."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "agent"])
    try:
        wait_until(lambda: "agent" in psutil.Process(process.pid).cmdline(), "the process is there", 60)
        done = _run(tmp_path, age_s=600, pid=process.pid)
    finally:
        process.kill()
        process.wait()
    assert done.exit_code == 1
    assert done.output.splitlines()[0] == f"agent      pid {process.pid}: NO CURRENT STATUS"
    assert f"process {process.pid} exists, and has not written its status for 10 min" in " ".join(done.output.split())


def test_a_cassandra_that_is_away_is_trouble(tmp_path: Path) -> None:
    """The screen has the whole reason, and the exit code is 1."""
    reason = "Cassandra at 127.36.118.1 port 9042: Tried connecting to [('127.36.118.1', 9042)]. Last error: refused"
    done = _run(tmp_path, cassandra_problem=reason)
    assert done.exit_code == 1
    assert reason in " ".join(done.output.split())


def test_who_may_only_read_the_configuration_may_look(tmp_path: Path) -> None:
    """The command does not check cdc_raw, which may belong to another user or not exist."""
    config = tmp_path / "agent.yaml"
    config.write_text(f"cdcRawDirectory: /nowhere\ncdcWorkingDir: {tmp_path}\n")
    _run(tmp_path)
    done = CliRunner().invoke(cli, ["agent", "status", "--config", str(config)])
    assert "position   1795219249195:94628" in done.output


def test_json_is_the_file(tmp_path: Path) -> None:
    """The output is for programs."""
    assert json.loads(_run(tmp_path, "--json").output)["segments"] == {"1795219249195": 94628, "1795219249196": 0}


@pytest.mark.parametrize("content", [None, "{"])
def test_without_a_status_there_is_one_line(tmp_path: Path, content: str | None) -> None:
    """No agent has run in this folder, or its file is damaged."""
    if content is not None:
        (tmp_path / "status.json").write_text(content)
    done = CliRunner().invoke(cli, ["agent", "status", "--working-dir", str(tmp_path)])
    assert str(tmp_path / "status.json") in str(done.exception)
    assert "\n" not in str(done.exception)


def test_the_limit_of_held_events_is_a_failure(tmp_path: Path) -> None:
    """All tables wait for the table whose topic cannot be used.

    Earlier versions of the agent do not report the limit.
    """
    text = "held events fill maxHeldBytes: no more events are held, and reading of all tables will wait"
    assert text not in " ".join(_run(tmp_path).output.split())
    done = _run(tmp_path, metrics=_metrics(held_full=1))
    assert f"{text} -> correct the topics that cannot be used, or raise maxHeldBytes" in " ".join(done.output.split())
