"""`cdc spark prepare`: an archive of Spark's classes for the commands."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil
import pytest

from cdc.commands.spark_jars import cached_jars
from runtime.cache_folder import cache_dir
from spark_bridge.spark_line import LINE
from tests.spark.settings import PY4J_LEAVES_SOCKETS_OPEN
from tests.topics.events_topic import wait_until
from tests.unit.cdc.test_spark_command import cdc

pytestmark = [pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN), pytest.mark.spark]

_SESSION = """
import os
import sys
from pathlib import Path
from pyspark import SparkContext
from spark_bridge import session_builder

session = session_builder([Path(each) for each in sys.argv[1:]], delta=True).master("local[1]").getOrCreate()
session.range(1).write.format("avro").save(os.environ["TABLES"])
print(Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text())
"""


@pytest.mark.extended
def test_prepare_archives_the_classes_that_sessions_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session with the same jars, or without jars, maps it; Java does not report an archive that it cannot use."""
    (tmp_path / "artifacts").symlink_to(cache_dir() / "artifacts")
    monkeypatch.setenv("CDC_CACHE_DIR", str(tmp_path))
    jars = list(map(str, cached_jars(LINE, delta=True, iceberg=True)))
    done = cdc("prepare", timeout_s=1_200)
    assert (done.returncode, done.stderr.splitlines()) == (0, ["classes: archiving (a minute or two)"])
    found = re.fullmatch(r"classes: (\d+) MiB in (\S+)\n", done.stdout)
    assert found is not None
    assert 50 < int(found[1]) < 500
    for given in (jars, []):
        monkeypatch.setenv("TABLES", str(tmp_path / f"of {len(given)} jars"))
        session = subprocess.run([sys.executable, "-c", _SESSION, *given], capture_output=True, text=True, check=True)
        assert found[2] in session.stdout
        assert ":: resolving dependencies ::" not in session.stderr  # Ivy


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        (
            "SPARK_HOME",
            "/opt/spark",
            "Spark's home: cannot be chosen here: Spark takes its configuration from SPARK_HOME",
        ),
        ("JAVA_HOME", "/nowhere", "JAVA_HOME: there is no bin/java in /nowhere"),
    ],
)
def test_prepare_says_why_it_cannot(variable: str, value: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one line, before Spark starts."""
    monkeypatch.setenv(variable, value)
    done = cdc("prepare")
    assert done.returncode == 2
    assert line in done.stderr
    assert "Traceback" not in done.stderr


def is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.Error:  # it has ended meanwhile
        return False


def test_an_interrupted_prepare_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java ignores Ctrl-C and would write its archive when it ends, so the command must end it."""
    (tmp_path / "artifacts").symlink_to(cache_dir() / "artifacts")
    monkeypatch.setenv("CDC_CACHE_DIR", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-m", "cdc.main", "spark", "prepare"], stderr=subprocess.PIPE, text=True
    )
    below = psutil.Process(process.pid)
    wait_until(lambda: any(map(is_java, below.children(recursive=True))), "Java runs")
    started = below.children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert "cdc: interrupted" in process.communicate(timeout=180)[1]
    wait_until(lambda: not any(each.is_running() for each in started), "nothing runs")
    assert list(tmp_path.rglob("classes-*")) == []


_NO_NEWS = """
from spark_bridge import session_builder

session = session_builder().master("local[1]").getOrCreate()
rows = session.range(2_000_000).mapInPandas(lambda frames: frames, "id long")
print(rows.limit(1).collect())
wide = session.range(1).selectExpr(*[f"id + {number} AS a_{'long_' * 150}name_{number}" for number in range(20)])
print(len(wide.collect()[0]))
"""


def test_a_session_says_nothing_of_reads_that_end_early_and_of_long_plans() -> None:
    """Such a read printed a traceback of PySpark's daemon, and each long plan a warning about our own limit of its text."""
    session = subprocess.run([sys.executable, "-c", _NO_NEWS], capture_output=True, text=True, check=True)
    assert session.stdout.splitlines() == ["[Row(id=0)]", "20"]
    assert "Traceback" not in session.stderr
    assert "spark.sql.maxPlanStringLength" not in session.stderr


_START: Final = """
from cdc.commands.spark_session import open_session

session = open_session((), "local[1]", is_short=True)
session.sparkContext.setLogLevel("WARN")
session._jvm.org.apache.log4j.LogManager.getLogger("shop").warn("a warning")
session.stop()
"""
# A line of Java itself, which has no switch for it: Spark 4 uses this module.
_OF_JAVA: Final = "WARNING: Using incubator modules: jdk.incubator.vector"
_OWN_LOG: Final = """
rootLogger.level = warn
rootLogger.appenderRef.own.ref = own
appender.own.type = Console
appender.own.name = own
appender.own.target = SYSTEM_ERR
appender.own.layout.type = PatternLayout
appender.own.layout.pattern = mine: %m%n
"""


def _said() -> list[str]:
    done = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, check=True)
    return [line for line in done.stderr.splitlines() if line != _OF_JAVA]


def test_the_start_of_a_command_is_silent_and_warnings_are_seen() -> None:
    """Spark printed six lines of its own: the file of its log settings, the level, the native library, addresses."""
    (line,) = _said()
    assert line.endswith(" WARN shop: a warning")


def test_log_settings_of_the_users_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log4j takes them from this variable."""
    settings = tmp_path / "own.properties"
    settings.write_text(_OWN_LOG)
    monkeypatch.setenv("LOG4J_CONFIGURATION_FILE", str(settings))
    assert "mine: a warning" in _said()
