"""Names of keyspaces, tables and columns as a CQL statement writes them."""

from __future__ import annotations

import re

__all__ = ["cql_identifier"]


def cql_identifier(name: str) -> str:
    """With quotes if CQL would read it as another name or not at all: capitals, other characters, no letter at the start."""
    return name if re.fullmatch(r"[a-z][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'
