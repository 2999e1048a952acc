"""The Cassandras whose commit logs are tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cdc.sandbox.options import Json

__all__ = ["VARIANTS", "Variant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A Cassandra line, the version of its commit log, and settings that go beyond the sandbox's."""

    line: str
    version: int
    settings: Mapping[str, Json] = field(default_factory=dict)


VARIANTS: Final[dict[str, Variant]] = {
    "3.11": Variant(line="3.11", version=6),
    "4.0": Variant(line="4.0", version=7),
    "4.1": Variant(line="4.1", version=7),
    "5.0": Variant(line="5.0", version=7),
    "5.0-none": Variant(line="5.0", version=8, settings={"storage_compatibility_mode": "NONE"}),
}
