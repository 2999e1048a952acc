"""The server versions that the sandbox runs and that this project is tested with.

The poms in ``poms/`` pin the same versions, and ``docker-compose.yml`` names the same images; tests compare the three.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CASSANDRA_VERSIONS", "PULSAR_VERSION", "cassandra_release"]

CASSANDRA_VERSIONS: Final[dict[str, str]] = {"5.0": "5.0.9", "4.1": "4.1.10", "4.0": "4.0.18", "3.11": "3.11.19"}
"""Line, as ``--cassandra`` takes it -> release that is started for it."""

PULSAR_VERSION: Final = "4.0.8"


def cassandra_release(line: str) -> str:
    """The release of a line, such as ``5.0.9`` for ``5.0``.

    Raises KeyError for a line that the sandbox does not have.
    """
    return CASSANDRA_VERSIONS[line]
