"""The Pulsar of these tests: clusters come and go beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc.sandbox import Sandbox, SandboxOptions
from tests.servers.interface import PulsarServer


@pytest.fixture(scope="session")
def pulsar() -> Iterator[PulsarServer]:
    """A Pulsar of these tests' own: they need no other Cassandra than theirs."""
    with Sandbox(SandboxOptions(nodes=0, functions_runtime="thread")) as running:
        yield running.pulsar
