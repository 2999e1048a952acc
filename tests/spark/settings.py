"""Settings of the tests' Spark sessions, on all lines of Spark. It imports no test library, because the environment of
Spark 3.5 has none."""

from __future__ import annotations

from typing import Final

__all__ = ["PATIENCE_S", "PY4J_LEAVES_SOCKETS_OPEN", "SETTINGS"]

PATIENCE_S: Final = 180
"""How long Spark's processes wait for each other on a loaded machine."""
PY4J_LEAVES_SOCKETS_OPEN: Final = "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
"""A filter of warnings for every test with Spark: py4j leaves its connections to the garbage collector."""

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.python.authenticate.socketTimeout": f"{PATIENCE_S}s",  # the default of 15 s is too short on a loaded machine
    # For many short queries, the second compiler costs more than it saves. Without it, the JVM keeps only 48 MiB of
    # compiled code by default. Half of the tests fill this; then the JVM would compile the same code again and again.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
}
"""Settings that all sessions of the tests need on such a machine. Settings that Spark and Delta need are in
`session_builder`, which users have, too."""
