"""`cdc agent --check --connect` tells if the agent would ask another node than its own."""

from __future__ import annotations

from cdc.health.findings import Level
from cdc.health.own_address import elsewhere


def test_the_address_of_another_machine_is_told() -> None:
    """The same agent.yaml on each node, with the address of one of them, was no problem for the check."""
    [found] = elsewhere(["192.0.2.77"])  # an address for documents, which no machine has
    assert (found.level, found.subject) == (Level.WARNING, "192.0.2.77")
    assert found.text.startswith("is no address of this machine: ")


def test_addresses_of_this_machine_and_unknown_names_are_not_told() -> None:
    """A name that cannot be looked up is reported with the connection."""
    assert not list(elsewhere(["127.0.0.1", "localhost", "127.9.8.7", "no.such.host.invalid"]))
