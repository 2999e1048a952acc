"""The log of Spark's JVM in the commands: warnings and errors, without the notices of each start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["log_options"]

_FILE: Final = Path(__file__).with_name("spark-log4j2.properties")
# With these variables, users give Log4j or the JVM their own settings. Spark's other configuration is known elsewhere.
_OF_LOG4J: Final = "LOG4J_CONFIGURATION_FILE"
_OF_JAVA: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "_JAVA_OPTIONS")


def log_options(master: str) -> tuple[str, ...]:
    """Java options for our log settings; none for a master elsewhere, and if the user has settings for Log4j.

    Our settings leave out a warning about addresses, which matters to a master elsewhere. They must be given before the
    JVM starts.
    """
    from spark_bridge.spark_home import configured_elsewhere

    is_local = master == "local" or master.startswith("local[")
    has_own = _OF_LOG4J in os.environ or any("log4j" in os.environ.get(name, "") for name in _OF_JAVA)
    if not is_local or has_own or configured_elsewhere() is not None:
        return ()
    return (f"-Dlog4j2.configurationFile={_FILE.as_uri()}",)  # as a URI: Log4j splits a path at its commas
