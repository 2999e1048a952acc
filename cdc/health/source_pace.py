"""What the source of a table does while the table's events wait: it moves on, it is busy, or it stands still.

The tables of a source share its reads and its memory. While all of them have a backlog, a table may get no
acknowledgement for a while, although nothing is wrong with it: a message has up to 256 KiB of events, and is
acknowledged when the last of them is published.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.health.backlog import Backlog
from cdc.health.sources import SourceView

__all__ = ["STALLED_S", "SourcePace", "pace_of"]

# A truncation that a node does not confirm keeps all events of a table waiting for up to 15 s and 5 s.
STALLED_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePace:
    """What the sources of a table do for their other tables. The times are in seconds.

    `moving`: tables of which an event was acknowledged within the last 20 s. `behind`: those of them whose oldest event
    has waited for longer than that, so the source catches up. `still`: tables whose events wait, and of which none was
    acknowledged. `record_s`: since a source handed over a record, of any table; infinite if that is not known.
    """

    moving: int = 0
    behind: int = 0
    still: int = 0
    record_s: float = math.inf

    @property
    def is_busy(self) -> bool:
        """True if the source works on a backlog, of other tables or of a message that is not finished."""
        return self.behind > 0 or (not self.moving and self.record_s <= STALLED_S)


def pace_of(sources: Sequence[SourceView], others: Iterable[Backlog], now_s: float) -> SourcePace:
    """The pace of these sources. `others`: the backlogs of their other tables. `now_s`: by Pulsar's clock."""
    read = [each for each in others if each.consumers]
    moving = [each for each in read if each.acknowledged_s <= STALLED_S]
    return SourcePace(
        moving=len(moving),
        behind=sum(bool(each.messages) and each.oldest_s > STALLED_S for each in moving),
        still=sum(each.stalled_s > STALLED_S for each in read),
        record_s=min(
            (max(0.0, now_s - each.last_record_s) for each in sources if each.last_record_s), default=math.inf
        ),
    )
