"""The exceptions by which cassandra-driver says that a node does not answer a query now. This module imports the driver."""

from __future__ import annotations

import struct
from typing import Final

from cassandra import DriverException
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionBusy, ConnectionException, ProtocolError
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import ErrorMessage, InternalError, NotSupportedError

__all__ = ["DRIVER_ERRORS", "NO_ANSWER", "UNDECODABLE"]

DRIVER_ERRORS: Final[tuple[type[Exception], ...]] = (
    DriverException,
    # The driver has no common class for these. It converts some errors of a node into a DriverException, and raises the
    # others as the message in which they came: a protocol error, a syntax error, an error of the configuration, and, if
    # a statement is prepared again, a node that is overloaded or bootstrapping.
    ErrorMessage,
    NoHostAvailable,
    ConnectionException,
    ConnectionBusy,
    NoConnectionsAvailable,
    ProtocolError,
    InternalError,
    NotSupportedError,
)
"""The driver's own exceptions. None of them says that data is wrong: who asked can ask again later."""

NO_ANSWER: Final[tuple[type[Exception], ...]] = (*DRIVER_ERRORS, OSError, UnicodeError)
"""Also those of connecting. UnicodeError: the name of a host such as `a..b`, which is not even looked up."""

UNDECODABLE: Final[tuple[type[Exception], ...]] = (
    struct.error,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What the driver raises for an answer that it cannot decode. It decodes without checks, so the first operation that
fails raises its own error."""
