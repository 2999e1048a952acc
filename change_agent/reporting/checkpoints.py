"""Checkpoints: a table's newest checkpoint, and a few older ones for a subscription that is behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schemas.progress_record import UNKNOWN_POSITION, Checkpoint, TopicPosition

__all__ = ["with_known_positions", "with_newest"]

# Ranges of ages double, from this age up to about seven weeks. Of all checkpoints that are older, the oldest one stays.
_FIRST_AGE_MS: Final = 500
_MOST_DOUBLINGS: Final = 24


def with_newest(checkpoints: Sequence[Checkpoint], newest: Checkpoint) -> tuple[Checkpoint, ...]:
    """The newest checkpoint, then the oldest one of each range of ages, sorted from new to old.

    A checkpoint with the same positions as a newer one is dropped.
    """
    kept = [newest]
    by_age: dict[int, Checkpoint] = {}
    for each in checkpoints:
        if each.resolved_ms < newest.resolved_ms and each.positions != newest.positions:
            # `checkpoints` is sorted from new to old, so the oldest one of a range replaces the others.
            by_age[_doublings(newest.resolved_ms - each.resolved_ms)] = each
    for _, each in sorted(by_age.items()):
        if each.positions != kept[-1].positions:
            kept.append(each)
    return tuple(kept[: _MOST_DOUBLINGS + 1])


def with_known_positions(
    checkpoints: Sequence[Checkpoint], positions: Sequence[TopicPosition]
) -> tuple[Checkpoint, ...]:
    """The checkpoints with these positions, one for each partition, in place of unknown ones."""
    return tuple(Checkpoint(each.resolved_ms, _known(each.positions, positions)) for each in checkpoints)


def _known(own: Sequence[TopicPosition], others: Sequence[TopicPosition]) -> tuple[TopicPosition, ...]:
    filled = [*own, *[UNKNOWN_POSITION] * (len(others) - len(own))]
    for partition, position in enumerate(others):
        if filled[partition] == UNKNOWN_POSITION:
            filled[partition] = position
    return tuple(filled)


def _doublings(age_ms: int) -> int:
    return min(_MOST_DOUBLINGS, (age_ms // _FIRST_AGE_MS).bit_length())
