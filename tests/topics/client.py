"""Pulsar's client as tests use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pulsar

__all__ = ["client_of", "quiet_client"]


def quiet_client(service_url: str) -> pulsar.Client:
    """A client that logs nothing. The caller closes it."""
    # The client's default of 30 s is too short for a broker on a busy machine.
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    return pulsar.Client(service_url, operation_timeout_seconds=120, logger=logger)


@contextmanager
def client_of(service_url: str) -> Iterator[pulsar.Client]:
    """The same, which is closed at the end of the context."""
    client = quiet_client(service_url)
    try:
        yield client
    finally:
        client.close()
