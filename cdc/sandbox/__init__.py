"""Real servers without Docker: Cassandra with CDC, and Pulsar standalone, from Maven Central on this machine's Java.

``with Sandbox(SandboxOptions(cassandra="5.0", nodes=1)) as sandbox:`` gives ``sandbox.node`` and ``sandbox.pulsar``
as objects with addresses, folders and process control.
"""

from cdc.sandbox.cassandra_node import CassandraNode
from cdc.sandbox.errors import SandboxError, ServerStartError
from cdc.sandbox.options import SandboxOptions
from cdc.sandbox.pulsar_standalone import Pulsar
from cdc.sandbox.sandbox import Sandbox

__all__ = ["CassandraNode", "Pulsar", "Sandbox", "SandboxError", "SandboxOptions", "ServerStartError"]
