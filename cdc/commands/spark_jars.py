"""The jars that Spark's commands need, from the cache of artifacts: fetched and verified once for each user."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cdc.sandbox import artifacts
from cdc.sandbox.errors import ArtifactError
from schemas.errors import ConfigError

__all__ = ["cached_jars"]

# Line of Spark -> artifact sets: spark-avro, Delta Lake, Iceberg. For Spark 3.5, the set `spark35` has spark-avro,
# Delta Lake and the connector.
_SETS: Final = {
    "3.5": ("spark35", "spark35", "spark35-iceberg"),
    "4.1": ("spark-avro", "spark-delta", "spark-iceberg"),
    "4.2": ("spark-avro", "spark-delta-4.2", None),
}


def cached_jars(line: str, *, delta: bool, iceberg: bool) -> tuple[Path, ...]:
    """The files of the jars; empty if they cannot be fetched (no Maven, no network). Spark then fetches them itself.

    Sets that are in the cache already are added, so that all commands have the same class path, and share one archive
    of classes. Spark fetches with Ivy, which writes much to the terminal, uses the network at each start, and fails if
    Maven has left the description of a package without its file.
    """
    sets = dict.fromkeys(name for name in _SETS.get(line, ()) if name is not None)
    avro, delta_set, iceberg_set = _SETS.get(line, (None, None, None))
    needed = {avro, *([delta_set] if delta else ()), *([iceberg_set] if iceberg else ())}
    if None in needed:
        return ()
    try:
        return tuple(
            jar for name in sets if name in needed or artifacts.is_fetched(name) for jar in artifacts.ensure(name)
        )
    except (ConfigError, ArtifactError, OSError):
        return ()
