"""A connector that runs by `pulsar-admin sources localrun`, so that tests can kill it at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil

from cdc.sandbox.prerequisites import java_home
from tests.topics.events_topic import wait_until

__all__ = ["LocalRun"]

# Java starts, loads all of Pulsar and unpacks the archive, which is slow on a busy machine.
_START_TIMEOUT_S = 240


class LocalRun:
    """`pulsar-admin sources localrun` in its own process group."""

    def __init__(
        self, pulsar_admin: Path, service_url: str, archive: Path, topic: str, options: dict[str, object], log: Path
    ) -> None:
        run = [str(pulsar_admin), "sources", "localrun", "--broker-service-url", service_url, "--archive", str(archive)]
        source = ["--name", "local", "--destination-topic-name", topic, "--source-config", json.dumps(options)]
        self._command = [*run, *source]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, parallelism: int = 1) -> None:
        """Start it with `parallelism` instances. It continues where an earlier run ended."""
        environment = {**os.environ, "JAVA_HOME": str(java_home())}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "--parallelism", str(parallelism)],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def child(self) -> psutil.Process:
        """Wait until the Python process of the connector runs, and return it."""
        return self.children(1)[0]

    def children(self, count: int) -> list[psutil.Process]:
        """Wait until `count` Python processes of its instances run, and return them."""
        assert self._process is not None
        runner = psutil.Process(self._process.pid)
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = [each for each in runner.children(recursive=True) if _is_connector(each)]
            return len(found) == count

        wait_until(is_there, f"the connector's process; log: {self._log}", _START_TIMEOUT_S)
        return found

    def kill(self) -> None:
        """Send SIGKILL to Java, and wait until its other processes have ended by themselves."""
        if self._process is not None:
            child = psutil.Process(self._process.pid).children(recursive=True)
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            wait_until(lambda: not any(each.is_running() for each in child), "the end of the connector's process")
            self._process = None


def _is_connector(process: psutil.Process) -> bool:
    try:
        command = process.cmdline()
        return "-I" in command and "nar-unpacked" in command[-1]
    except psutil.Error:  # it has ended
        return False
