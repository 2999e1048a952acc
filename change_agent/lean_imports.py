"""Imports the client libraries without optional parts. The agent's process imports this module first.

cassandra-driver imports numpy, if it is installed, for a protocol handler that the agent does not use. Without numpy,
and without httpx's command line (clients.lean_imports), the agent needs 14 MB less and starts half a second earlier.

The driver also imports its event loops of Twisted and eventlet, and with them asyncio, even if neither is installed.
The agent uses another loop. Without them it needs 2 MB less.
"""

from __future__ import annotations

from importlib import import_module

from clients.lean_imports import left_out

with left_out("numpy", "cassandra.io.twistedreactor", "cassandra.io.eventletreactor"):
    import_module("cassandra.cluster")
