"""The errors of Cassandra's nodes, from exceptions of the driver. This module does not import the driver."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["node_errors", "one_line"]


def node_errors(error: Exception, no_host_available: type[Exception]) -> list[Exception]:
    """The error of each queried node, in the order of the queries; only `error` itself if it has no errors of nodes.

    `no_host_available` is the driver's class of that name. Its `errors` is a map by node, or a list of the nodes'
    names, or empty. Other exceptions of the driver have `errors` too, but their own text is more precise, so they are
    returned as they are.
    """
    found = getattr(error, "errors", None) if isinstance(error, no_host_available) else None
    return list(found.values()) if isinstance(found, Mapping) and found else [error]


def one_line(error: Exception) -> str:
    """The exception's text without line breaks; the name of its class if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__
