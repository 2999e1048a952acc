"""The differences between commit log versions, in one table.

Cassandra source: o.a.c.db.commitlog.CommitLogDescriptor.getMessagingVersion, and the code in o.a.c.db that depends on
that version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from change_agent.errors import UnsupportedVersionError

__all__ = ["VersionRules", "supported_versions", "version_rules"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRules:
    """Rules for one version. `unsigned_deletion_times`: seconds are UInt32 instead of Int32, for times after 2038."""

    version: int
    unsigned_deletion_times: bool


_RULES: Final = {
    # Cassandra 3.11 (3.0 writes the same version; not tested)
    6: VersionRules(version=6, unsigned_deletion_times=False),
    # Cassandra 4.0, 4.1; 5.0 in its default storage_compatibility_mode
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
