"""A second agent for a node waits, with any working directory. It changes nothing until the first one has ended."""

from __future__ import annotations

import errno
import fcntl
import logging
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from change_agent.configuration.config import AgentConfig
from change_agent.standby import FolderLock, NodeClaim, only_agent
from tests.topics.events_topic import wait_until

_REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of an agent with its own working directory. No server is running."""
    (tmp_path / "cdc_raw").mkdir()
    path = tmp_path / "agent.yaml"
    path.write_text(f"cdcRawDirectory: {tmp_path}/cdc_raw\ncdcWorkingDir: {tmp_path}/work\nhttpPort: 0\n")
    return path


@pytest.fixture
def other(config: Path) -> Iterator[FolderLock]:
    """The lock that another agent holds."""
    lock = FolderLock(config.parent / "cdc_raw")
    assert lock.take()
    yield lock
    lock.release()


@pytest.fixture
def second(config: Path, other: FolderLock) -> Iterator[subprocess.Popen[bytes]]:
    """A second agent that waits."""
    log = config.parent / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "cdc.main", "agent", "--config", str(config)], stderr=output, cwd=_REPOSITORY
        )
    try:
        wait_until(lambda: "readiness on" in log.read_text(), "it waits", 60)
        yield process
    finally:
        process.kill()
        process.wait()


def test_it_waits_with_one_line_and_touches_nothing_until_the_other_one_has_ended(
    config: Path, other: FolderLock, second: subprocess.Popen[bytes]
) -> None:
    """It is alive but not ready, and creates no file in cdc_raw.

    SIGHUP, which reloads the configuration, does not end it.
    """
    second.send_signal(signal.SIGHUP)
    log, raw = config.parent / "log", config.parent / "cdc_raw"
    found = re.search(r"readiness on (http://\S+)", log.read_text())
    assert found is not None
    with urllib.request.urlopen(f"{found[1]}/healthz", timeout=10) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"{found[1]}/metrics", timeout=10) as answer:
        assert b"\ncdc_agent_standby 1.0\n" in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        urllib.request.urlopen(f"{found[1]}/readyz", timeout=10)
    assert f"another agent reads {raw}: this one waits" in refused.value.read().decode()
    assert log.read_text().count("another agent reads") == 1
    assert not (config.parent / "work").exists()
    assert list(raw.iterdir()) == []
    other.release()
    wait_until((config.parent / "work" / "agent.lock").exists, "it goes on", 30)
    second.send_signal(signal.SIGTERM)
    # The signal may arrive before its handler is installed.
    assert second.wait(60) in {0, -signal.SIGTERM}
    assert FolderLock(raw).take()


@pytest.mark.usefixtures("other")
def test_an_agent_that_waits_ends_in_order_when_it_is_asked_to(config: Path, second: subprocess.Popen[bytes]) -> None:
    """The exit code is 0, and no file was created."""
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0
    assert not (config.parent / "work").exists()


def test_the_lock_goes_with_the_process_that_holds_it(config: Path) -> None:
    """kill -9 releases it at once. The folder need not be writable."""
    raw = config.parent / "cdc_raw"
    raw.chmod(0o500)
    script = (
        "import sys; from pathlib import Path; from change_agent.standby import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1]))\n"
        "print(lock.take(), flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(raw)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_REPOSITORY
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        lock = FolderLock(raw)
        assert not lock.take()
        holder.kill()
        holder.wait()
        assert lock.take()
        lock.release()


def test_where_the_folder_cannot_be_locked_the_agent_says_so_and_goes_on(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """NFS clients may need a file that is open for writing."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING), only_agent(AgentConfig.load(config), lambda: False) as claim:
        assert claim is NodeClaim.UNKNOWN
    [record] = caplog.records
    assert "cannot be locked (No locks available): a second agent for this node would not be kept out" in record.message


def test_an_agent_alone_keeps_others_out_as_long_as_it_runs(config: Path) -> None:
    """The lock ends with the agent."""
    lock = FolderLock(config.parent / "cdc_raw")
    with only_agent(AgentConfig.load(config), lambda: False) as claim:
        assert (claim, lock.take()) == (NodeClaim.ALONE, False)
        with only_agent(AgentConfig.load(config), lambda: True) as other_claim:
            assert other_claim is NodeClaim.GIVEN_UP
    assert lock.take()
    lock.release()
