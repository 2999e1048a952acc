"""Which changes have been published already: the digests of the latest changes per key. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable

from cachetools import TTLCache

__all__ = ["MutationCache"]


class _Digests(TTLCache[bytes, tuple[bytes, ...]]):
    """Counts what gives way to others; how many there are now costs a walk along those that have expired."""

    evicted = 0

    def popitem(self) -> tuple[bytes, tuple[bytes, ...]]:
        self.evicted += 1
        return super().popitem()


class MutationCache:
    """Remembers up to `max_digests` digests for each of `max_capacity` keys, for `expire_after_s` after the last one.

    It is an optimisation: what it has forgotten is published once more. A digest goes in only when its record has been
    acknowledged and was read in a way that proves it holds the change.
    """

    def __init__(
        self,
        *,
        max_capacity: int,
        max_digests: int,
        expire_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._digests = _Digests(max_capacity, expire_after_s, clock)
        self._max_digests = max_digests

    @property
    def evictions(self) -> int:
        """How many keys gave way to others."""
        return self._digests.evicted

    def __len__(self) -> int:
        return len(self._digests)

    def is_published(self, key: bytes, digest: bytes) -> bool:
        """True when a record that holds this change is on the data topic."""
        digests = self._digests
        return key in digests and digest in digests.get(key, ())

    def remember(self, key: bytes, digest: bytes) -> None:
        """This change has been published; the oldest of the key's digests gives way."""
        digests = self._digests
        known = digests.get(key, ()) if key in digests else ()
        if digest in known:
            known = tuple(each for each in known if each != digest)
        digests[key] = (*known, digest)[-self._max_digests :] if known else (digest,)
