"""driver_errors: the list of exceptions is whole, also for a later version of the driver."""

from __future__ import annotations

import inspect

import cassandra
from cassandra import cluster, connection, pool, protocol

from clients.driver_errors import DRIVER_ERRORS

# Raised by calls that this project does not make: registering a Python class of a user type, paging by hand, and an
# import without an event loop.
_OF_OTHER_CALLS = {"UserTypeDoesNotExist", "QueryExhausted", "DependencyException"}


def test_every_exception_of_the_driver_is_in_the_list() -> None:
    """An exception that is missing would end the thread that asks the node."""
    missing = {
        name
        for module in (cassandra, cluster, connection, pool, protocol)
        for name, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, Exception) and each.__module__ == module.__name__ and not issubclass(each, DRIVER_ERRORS)
    }
    assert missing == _OF_OTHER_CALLS
