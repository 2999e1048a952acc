"""Errors of the sandbox.

    CdcError
    └─ SandboxError          a sandbox could not be started, driven or stopped
       ├─ ArtifactError      a server's files could not be fetched
       └─ ServerStartError   a server ended or stayed silent while starting; carries the tail of its own log

A missing prerequisite (java, mvn) and a wrong option are :class:`schemas.errors.ConfigError`: the user can fix them.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.errors import CdcError

__all__ = ["ArtifactError", "SandboxError", "ServerStartError"]


class SandboxError(CdcError):
    """The sandbox cannot do what the user requested."""


class ArtifactError(SandboxError):
    """Maven could not fetch a server's files; the text has Maven's first error."""


class ServerStartError(SandboxError):
    """A server did not start. The first line says which server and why; the other lines are the tail of its log."""

    def __init__(self, server: str, reason: str, log_tail: Sequence[str]) -> None:
        self.server = server
        self.reason = reason
        self.log_tail = tuple(log_tail)
        super().__init__("\n".join([f"{server} did not start: {reason}", *(f"  | {line}" for line in log_tail)]))
