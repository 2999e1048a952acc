"""Settings of the tests' Spark sessions, on both lines of Spark. It needs no test library, which the older line has not."""

from __future__ import annotations

from typing import Final

__all__ = ["PATIENCE_S", "SETTINGS"]

PATIENCE_S: Final = 180
"""How long Spark's processes wait for each other on a loaded machine."""

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.python.authenticate.socketTimeout": f"{PATIENCE_S}s",  # 15 s are short on a loaded machine
    # Many short queries: the second compiler would cost more than it saves. Without it the JVM keeps no more than 48 MiB of
    # compiled code unless told otherwise, which half of the tests fill: from there on it compiles the same again and again.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
}
"""Of every session of the tests: what this machine needs. All that Spark and Delta need users get, too (`session_builder`)."""
