"""The Pulsar of these tests; each test has its own clusters beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc.sandbox import Sandbox, SandboxOptions
from tests.servers.interface import PulsarServer


@pytest.fixture(scope="session")
def pulsar() -> Iterator[PulsarServer]:
    """A Pulsar only for these tests, without a Cassandra: they start their own."""
    with Sandbox(SandboxOptions(nodes=0, functions_runtime="thread")) as running:
        yield running.pulsar
