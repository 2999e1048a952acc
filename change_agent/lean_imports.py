"""Imported first by the agent's process: client libraries without parts that they load where they find them.

cassandra-driver takes numpy for its own protocol handler, which the agent does not use. Without it, and without httpx's command
line (clients.lean_imports), the agent needs 14 MB less and starts half a second earlier.
"""

from __future__ import annotations

from importlib import import_module

from clients.lean_imports import left_out

with left_out("numpy"):
    import_module("cassandra.cluster")
