"""Names of keyspaces, tables and columns as a CQL statement writes them."""

from __future__ import annotations

import re

__all__ = ["cql_identifier", "quoted"]


def cql_identifier(name: str) -> str:
    """The name, in quotes if it has capitals or special characters, or does not start with a letter."""
    return name if re.fullmatch(r"[a-z][a-z0-9_]*", name) else quoted(name)


def quoted(name: str) -> str:
    """The name in quotes: it is taken literally."""
    return '"' + name.replace('"', '""') + '"'
