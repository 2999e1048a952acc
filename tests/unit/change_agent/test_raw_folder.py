"""The check at the start that `cdcRawDirectory` is not the node's commit log, while the node does not answer."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from change_agent.configuration.config import AgentConfig
from change_agent.raw_folder import _is_needed, check_raw_folder
from change_agent.schema.node_connection import NodeUnavailableError
from tests.topics.events_topic import wait_until

_REPOSITORY = Path(__file__).parents[3]


def _options(tmp_path: Path, port: int) -> dict[str, object]:
    """Options of an agent whose folder has a segment and no index."""
    raw = tmp_path / "cdc_raw"
    raw.mkdir()
    (raw / "CommitLog-7-1.log").write_bytes(b"\0" * 100)
    return {"cdcRawDirectory": str(raw), "cdcWorkingDir": str(tmp_path / "work"), "port": port, "httpPort": 0}


def test_an_agent_that_waits_for_the_node_answers_over_http(tmp_path: Path) -> None:
    """It is alive but not ready. Without an answer, Kubernetes would end it, and take the node's pod for not ready."""
    config, log = tmp_path / "agent.yaml", tmp_path / "log"
    config.write_text("".join(f"{name}: {value}\n" for name, value in _options(tmp_path, 1).items()))
    with log.open("wb") as output:
        command = [sys.executable, "-m", "cdc.main", "agent", "--config", str(config)]
        process = subprocess.Popen(command, stderr=output, cwd=_REPOSITORY)
    try:
        wait_until(lambda: "readiness on" in log.read_text(), "it answers", 60)
        found = re.search(r"readiness on (http://\S+)", log.read_text())
        assert found is not None
        with urllib.request.urlopen(f"{found[1]}/healthz", timeout=10) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(f"{found[1]}/metrics", timeout=10) as answer:
            assert b"\ncdc_agent_standby 0.0\n" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            urllib.request.urlopen(f"{found[1]}/readyz", timeout=10)
        assert "as a commit log has: waiting for the node" in refused.value.read().decode()
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_a_signal_during_the_question_is_not_lost(tmp_path: Path) -> None:
    """The agent has positions, so it does not wait for the node. It must end nevertheless."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = AgentConfig.from_mapping(
            _options(tmp_path, server.getsockname()[1]) | {"contactPoints": "127.0.0.1"}, {}
        )
        config.cdc_working_dir.mkdir()
        (config.cdc_working_dir / "positions-a.json").write_text("{}")

        def answer() -> None:
            connection, _ = server.accept()
            server.close()
            os.kill(os.getpid(), signal.SIGTERM)
            connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert not check_raw_folder(config, lambda: False)
        thread.join()


def test_a_role_that_may_not_ask_the_node_is_told_before_anything_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent cannot wait for an answer that never comes. Only the first start is in doubt."""
    config = AgentConfig.from_mapping(_options(tmp_path, 1), {})
    refusal = NodeUnavailableError("no SELECT permission", is_refusal=True)
    assert not _is_needed(config, refusal)
    assert "as a commit log has: the node does not say whether it is; see that cdcRawDirectory is" in caplog.text
    caplog.clear()
    config.cdc_working_dir.mkdir()
    (config.cdc_working_dir / "positions-a.json").write_text("{}")
    assert not _is_needed(config, refusal)
    assert not caplog.text
