"""A standalone cluster of Spark: a master and two workers, each a process of its own, on which drivers run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import pyspark
import pytest

from spark_bridge.spark_line import LINE
from tests.events_topic import wait_until
from tests.servers import REPOSITORY
from tests.spark_environment import line_jars

__all__ = ["SparkCluster"]

_HOME: Final = Path(pyspark.__file__).parent
_DEPLOY: Final = "org.apache.spark.deploy"
_WORKERS: Final = 2
_WORKER_MEMORY: Final = "1g"
_START_S: Final = 60
_DRIVER_PATIENCE_S: Final = 500


class SparkCluster:
    """Of one core and one executor's memory each worker. Workers that died are replaced by `heal`."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        log = self._start("master", f"{_DEPLOY}.master.Master", "--webui-port", "0")
        self.master: Final = self._told(log, r"Starting Spark master at (spark://\S+)")

    @property
    def worker_pids(self) -> list[int]:
        """Of those that run."""
        return [each.pid for each in self._workers if each.poll() is None]

    def heal(self) -> None:
        """Start workers until there are two, and wait until the master knows them."""
        logs: list[Path] = []
        while len(self.worker_pids) < _WORKERS:
            number = len(self._workers)
            logs.append(
                self._start(
                    f"worker-{number}", f"{_DEPLOY}.worker.Worker", "--webui-port", "0", "--cores", "1",
                    "--memory", _WORKER_MEMORY, "--work-dir", str(self._folder / f"work-{number}"), self.master,
                )
            )  # fmt: skip
            self._workers.append(self._processes[-1])
        for log in logs:
            self._told(log, r"(Successfully registered with master)")

    def drive(self, module: str, arguments: Mapping[str, object]) -> Any:
        """Run a driver, `python -m module FILE`, and give what it wrote as JSON to `answer` beside FILE.

        FILE has the arguments with `master` and `jars`. Raises AssertionError with the end of its log when it fails.
        """
        folder = self._folder / f"driver-{len(list(self._folder.glob('driver-*')))}"
        folder.mkdir()
        given, answer, log = folder / "arguments.json", folder / "answer.json", folder / "driver.log"
        jars = [str(each) for each in line_jars(LINE)]
        given.write_text(json.dumps({**arguments, "master": self.master, "jars": jars, "answer": str(answer)}))
        with log.open("wb") as output:
            driver = subprocess.Popen(
                [sys.executable, "-m", module, str(given)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=_environment(), cwd=REPOSITORY,
                start_new_session=True,
            )  # fmt: skip
        try:
            ended = driver.wait(timeout=_DRIVER_PATIENCE_S)
        finally:
            # Its JVM would end by itself a while later.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        assert ended == 0, log.read_text(errors="replace")[-4000:]
        return json.loads(answer.read_text())

    def close(self) -> None:
        """Ends every process, executors of drivers that were killed among them."""
        for each in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                for executor in psutil.Process(each.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        executor.kill()
            each.kill()
            each.wait()

    def _start(self, name: str, java_class: str, *arguments: str) -> Path:
        log = self._folder / f"{name}.log"
        command = [str(_HOME / "bin" / "spark-class"), java_class, "--host", "127.0.0.1", "--port", "0", *arguments]
        with log.open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=_environment(),
                    cwd=self._folder,
                )
            )
        return log

    def _told(self, log: Path, pattern: str) -> str:
        found: list[str] = []

        def is_told() -> bool:
            found[:] = re.findall(pattern, log.read_text(errors="replace"))
            return bool(found)

        wait_until(is_told, f"{log.name} says {pattern!r}", _START_S)
        return found[0]


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",  # or the web interfaces would listen on every address
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


@pytest.fixture(scope="session")
def _spark_cluster_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], SparkCluster]]:
    """Made when the first test wants it."""
    made: list[SparkCluster] = []

    def get() -> SparkCluster:
        if not made:
            made.append(SparkCluster(tmp_path_factory.mktemp("spark_cluster")))
        return made[0]

    yield get
    for each in made:
        each.close()


@pytest.fixture
def spark_cluster(_spark_cluster_of_all: Callable[[], SparkCluster]) -> SparkCluster:
    """The session's cluster, with two workers."""
    cluster = _spark_cluster_of_all()
    cluster.heal()
    return cluster
