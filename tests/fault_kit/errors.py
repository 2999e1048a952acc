"""The error of a run that cannot go on; differences that a run finds are no errors."""

from __future__ import annotations

from schemas.errors import CdcError

__all__ = ["FaultRunError"]


class FaultRunError(CdcError):
    """The run itself could not go on: a server did not come back, or the line never settled."""
