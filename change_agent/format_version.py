"""The one table of the differences between commit log versions.

Cassandra source: o.a.c.db.commitlog.CommitLogDescriptor.getMessagingVersion and what o.a.c.db reads by that version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from change_agent.errors import UnsupportedVersionError

__all__ = ["VersionRules", "supported_versions", "version_rules"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRules:
    """How one version is read. `unsigned_deletion_times`: seconds are UInt32 instead of Int32, to go beyond 2038."""

    version: int
    unsigned_deletion_times: bool


_RULES: Final = {
    # Cassandra 4.0, 4.1; 5.0 in its default storage_compatibility_mode
    # Cassandra 3.11 (3.0 writes the same version; not tried)
    6: VersionRules(version=6, unsigned_deletion_times=False),
    7: VersionRules(version=7, unsigned_deletion_times=False),
    # Cassandra 5.0 with storage_compatibility_mode: NONE (CASSANDRA-14227)
    8: VersionRules(version=8, unsigned_deletion_times=True),
}


def version_rules(version: int) -> VersionRules:
    """The rules of a version. Raises UnsupportedVersionError."""
    rules = _RULES.get(version)
    if rules is None:
        raise UnsupportedVersionError(version, supported_versions())
    return rules


def supported_versions() -> str:
    """The supported versions, for messages."""
    return ", ".join(map(str, sorted(_RULES)))
