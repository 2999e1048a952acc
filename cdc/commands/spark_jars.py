"""The jars that Spark's commands need, from the cache of artifacts: fetched and verified once a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cdc.sandbox import artifacts
from cdc.sandbox.errors import ArtifactError
from schemas.errors import ConfigError

__all__ = ["cached_jars"]

# Line of Spark -> artifact sets: spark-avro, Delta Lake, Iceberg. The first one of 3.5 has Delta Lake and the connector, too.
_SETS: Final = {
    "3.5": ("spark35", "spark35", "spark35-iceberg"),
    "4.1": ("spark-avro", "spark-delta", "spark-iceberg"),
    "4.2": ("spark-avro", "spark-delta-4.2", None),
}


def cached_jars(line: str, *, delta: bool, iceberg: bool) -> tuple[Path, ...]:
    """Their files; none where they are not there and cannot be fetched (no Maven, no network): Spark then tries by itself.

    Sets that are there already come along: with the same class path all commands share one archive of classes.
    Spark's own way, Ivy, writes pages to the terminal, asks the network at each start, and fails where Maven has left the
    description of a package without its file.
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
