"""What a run of the fault kit fails with, apart from what it finds."""

from __future__ import annotations

from schemas.errors import CdcError

__all__ = ["FaultRunError"]


class FaultRunError(CdcError):
    """The run itself could not go on: a server did not come back, or the line never settled."""
