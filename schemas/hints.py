"""The end of a text about a name that does not exist: similar names, else some of the names there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["MOST_NAMES", "names_hint"]

MOST_NAMES: Final = 3


def names_hint(near: Sequence[str], there: Sequence[str], *, kind: str, without: str) -> str:
    """The end of the text, with three names at most.

    `near`: names that may be meant, the most likely one first. `there`: if there is none, the names of this place, which
    are of this `kind` (`tables`). `without`: the end of the text if there are no such names either.
    """
    if near:
        return f"; did you mean {' or '.join(near[:MOST_NAMES])}?"
    if there:
        more = ", ..." if len(there) > MOST_NAMES else ""
        return f"; the {kind} there are {', '.join(there[:MOST_NAMES])}{more}"
    return without
