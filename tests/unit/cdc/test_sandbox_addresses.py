"""Addresses and ports of sandboxes side by side."""

from __future__ import annotations

import socket

import pytest

from cdc.sandbox import SandboxError
from cdc.sandbox.addresses import AddressBlock, claim_block


def test_a_claimed_block_cannot_be_claimed_again_until_it_is_free() -> None:
    """Two sandboxes never share addresses."""
    block, claim = claim_block()
    with claim, pytest.raises(SandboxError, match=r"another sandbox runs on them"):
        claim_block(block)
    same, second_claim = claim_block(block)
    second_claim.close()
    assert same == block


def test_nodes_and_pulsar_have_addresses_of_their_own() -> None:
    """All servers of a sandbox are in one block."""
    block = AddressBlock(prefix="127.41.7")
    assert (block.node(1), block.node(2), block.pulsar) == ("127.41.7.1", "127.41.7.2", "127.41.7.100")


def test_all_nodes_share_the_first_native_port_that_is_free_on_each() -> None:
    """Drivers that discover a cluster expect the same port. If one node's port is in use, all nodes move to another."""
    block, claim = claim_block()
    with claim, socket.create_server((block.node(2), 9042)):
        assert block.cassandra_ports(2).native == 9043
        assert block.cassandra_ports(1).native == 9042
