"""The server versions that the sandbox runs and that this project is tested with.

The poms in ``poms/`` pin the same versions, and ``docker-compose.yml`` names the same images; tests compare the three.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CASSANDRA_VERSIONS", "PULSAR_VERSION"]

CASSANDRA_VERSIONS: Final[dict[str, str]] = {"5.0": "5.0.9", "4.1": "4.1.10", "4.0": "4.0.18", "3.11": "3.11.19"}
"""Line, as ``--cassandra`` takes it -> release that is started for it."""

PULSAR_VERSION: Final = "4.0.8"
