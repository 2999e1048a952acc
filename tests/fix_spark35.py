"""A Spark 3.5 session beside the tests, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.sandbox.prerequisites import java_home
from tests.servers import REPOSITORY
from tests.spark_environment import ensure_python, line_jars


class Spark35Error(Exception):
    """What a call raised, as a traceback."""


class Spark35:
    """Calls functions of `tests/spark35_driver.py`, or of any module, in a Spark 3.5 session."""

    def __init__(self, log: Path) -> None:
        self.python = ensure_python("3.5")
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [str(self.python), "-m", "tests.spark35_driver", *map(str, line_jars("3.5"))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, env=self.environment(), cwd=REPOSITORY,
            )  # fmt: skip
        self.version = self._answer()

    @staticmethod
    def environment() -> dict[str, str]:
        """For processes of this environment."""
        kept = {name: each for name, each in os.environ.items() if name not in ("PYSPARK_PYTHON", "SPARK_HOME")}
        # 15 s, the default, are short on a loaded machine
        return {
            **kept,
            "PYTHONPATH": str(REPOSITORY),
            "JAVA_HOME": str(java_home()),
            "SPARK_AUTH_SOCKET_TIMEOUT": "180",
        }

    def call(self, function: str, **arguments: object) -> Any:
        """The answer of `function(spark, **arguments)`; `module:function` outside the driver's module."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"call": function, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends the session."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the driver ended: {self._log.read_text()[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise Spark35Error(answer["error"])
        return answer["answer"]


@pytest.fixture(scope="session")
def spark35(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark35]:
    """The session's Spark 3.5 with the pulsar-spark connector, spark-avro and Delta Lake."""
    running = Spark35(tmp_path_factory.mktemp("spark35") / "driver.log")
    yield running
    running.close()
