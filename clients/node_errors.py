"""The messages of Cassandra's nodes, from the exceptions of their driver. It does not import the driver."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["node_errors", "one_line"]


def node_errors(error: Exception, no_host_available: type[Exception]) -> list[Exception]:
    """What each node that was asked said, in the order of asking; at least one, which is `error` itself where none said a thing.

    `no_host_available` is the driver's class of that name. Its `errors` is a map by node, or a list of the nodes' names, or
    empty. Other exceptions of the driver have `errors` too, but their own text says more: they are returned as they are.
    """
    found = getattr(error, "errors", None) if isinstance(error, no_host_available) else None
    return list(found.values()) if isinstance(found, Mapping) and found else [error]


def one_line(error: Exception) -> str:
    """The exception's text without line breaks; the name of its class where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
