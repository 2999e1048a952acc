"""AgentProcess: a change agent as a separate process, for the demo, benchmarks and tests.

agent = AgentProcess.for_node(node, pulsar, directory)
agent.start()
...
agent.stop()
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, Self

import yaml

from cdc.sandbox.cassandra_node import CassandraNode
from cdc.sandbox.errors import SandboxError

__all__ = ["AgentProcess"]

_START_TIMEOUT_S: Final = 120.0
# A killed process that waits for the disk ends only after the disk has answered.
_KILL_TIMEOUT_S: Final = 120.0
_LOOK_S: Final = 0.05


class PulsarUrls(Protocol):
    """The agent's settings about Pulsar."""

    @property
    def service_url(self) -> str:
        """Binary protocol."""

    @property
    def admin_url(self) -> str:
        """REST interface."""


class AgentProcess:
    """One agent, started as by a user: `cdc agent --config agent.yaml`. It ends with the process that started it.

    `directory` has agent.yaml, agent.log (of all runs) and the working directory.
    """

    def __init__(self, directory: Path, options: Mapping[str, object]) -> None:
        self.directory: Final = directory
        self.working_dir: Final = directory / "work"
        self.log: Final = directory / "agent.log"
        self.config: Final = directory / "agent.yaml"
        self.environment: Mapping[str, str] = {}
        """Environment variables for the next start, in addition to those of this process."""
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        # Several agents may run on this machine: each takes a free port for its metrics.
        self.configure({"cdcWorkingDir": str(self.working_dir), "httpPort": 0, **options})

    @classmethod
    def for_node(cls, node: CassandraNode, pulsar: PulsarUrls, directory: Path, **options: object) -> Self:
        """An agent for this node. `options`: for agent.yaml; they replace the ones that follow from the servers."""
        return cls(
            directory,
            {
                "cdcRawDirectory": str(node.cdc_raw),
                "contactPoints": node.address,
                "port": node.native_port,
                "pulsarServiceUrl": pulsar.service_url,
                "pulsarAdminUrl": pulsar.admin_url,
                **options,
            },
        )

    def configure(self, options: Mapping[str, object]) -> None:
        """Write agent.yaml with these options. The next start reads it."""
        self.config.write_text(yaml.safe_dump(dict(options)), encoding="utf-8")

    @property
    def pid(self) -> int:
        """Process id of the last start. Raises SandboxError before the first start."""
        if self._process is None:
            raise SandboxError("the agent was never started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the agent, and return when it has written its status. The servers need not run.

        Raises SandboxError with the log's tail.
        """
        self.launch()
        process = self._process
        assert process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._is_reported():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SandboxError(f"the agent did not start:\n{self.log_tail()}")
            time.sleep(_LOOK_S)

    def launch(self) -> None:
        """Start the agent, and return at once. Raises SandboxError if it runs already."""
        if self.running:
            raise SandboxError(f"the agent of {self.directory} runs already")
        command = [
            sys.executable,
            "-m",
            "cdc.main",
            "agent",
            "--config",
            str(self.config),
            "--parent",
            str(os.getpid()),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **self.environment}
            )

    def _is_reported(self) -> bool:
        try:
            return bool(self.status()["pid"] == self.pid)
        except FileNotFoundError:
            return False

    def status(self) -> dict[str, Any]:
        """The agent's status file: pid, time, node_id, segments, metrics. At most a second old."""
        status: dict[str, Any] = json.loads((self.working_dir / "status.json").read_text(encoding="utf-8"))
        return status

    def metric(self, name: str) -> int:
        """One number of the status file's metrics."""
        return int(self.status()["metrics"][name])

    def stop(self, timeout_s: float = 30.0) -> int:
        """Stop the agent by SIGTERM, and return its exit code. Raises SandboxError if it does not stop in time."""
        return self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> int:
        """End the agent at once, as by kill -9, and return its exit code."""
        return self._end(signal.SIGKILL, _KILL_TIMEOUT_S)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the running agent."""
        os.kill(self.pid, number)

    def _end(self, number: signal.Signals, timeout_s: float) -> int:
        if self._process is None:
            return 0
        if self.running:
            self._process.send_signal(number)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise SandboxError(f"the agent did not stop within {timeout_s:g} s:\n{self.log_tail()}") from None

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the agent's log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
