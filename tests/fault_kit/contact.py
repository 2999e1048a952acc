"""Contact: where clients reach Cassandra, and as whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["CONNECTOR_LOGIN", "Contact", "Login"]

Login = tuple[str, str]
"""Name and password."""

CONNECTOR_LOGIN: Final[Login] = ("line", "not a secret: of a node on loopback")
"""Of the role of agents and connector, where nodes ask for a password: no superuser, for guardrails do not bind those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """`login` is None where the nodes ask for none."""

    addresses: Sequence[str]
    port: int
    login: Login | None = None
