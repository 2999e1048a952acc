"""Launch: how to start a server's process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Launch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command, its complete environment, and its working directory."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
