"""Contact: where clients reach Cassandra, and the login that they use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["CONNECTOR_LOGIN", "Contact", "Login"]

Login = tuple[str, str]
"""Name and password."""

CONNECTOR_LOGIN: Final[Login] = ("line", "not a secret: of a node on loopback")
"""The login of agents and connector on nodes that ask for a password. It is no superuser, because guardrails do not
apply to superusers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """`login` is None if the nodes ask for no password."""

    addresses: Sequence[str]
    port: int
    login: Login | None = None
