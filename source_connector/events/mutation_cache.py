"""Remembers the changes that have been published: the digests of the latest changes per key. No I/O."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["MutationCache"]

# When the entry expires, and the digests, oldest first.
_Known = tuple[float, tuple[bytes, ...]]


class MutationCache:
    """Remembers up to `max_digests` digests for each of `max_capacity` keys, for `expire_after_s` after the last one.

    It is an optimisation: a change that it has forgotten is published once more. A digest goes in only when its record
    has been acknowledged, and its read proves that the record holds the change.
    """

    def __init__(
        self,
        *,
        max_capacity: int,
        max_digests: int,
        expire_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # The key that was used last is the last one. Every row passes here: cachetools' LRUCache takes ten times as long.
        self._digests: OrderedDict[bytes, _Known] = OrderedDict()
        self._max_capacity = max_capacity
        self._evictions = 0
        self._max_digests = max_digests
        self._expire_after_s = expire_after_s
        self._clock = clock

    @property
    def evictions(self) -> int:
        """How many keys were removed for others."""
        return self._evictions

    def __len__(self) -> int:
        """The number of keys in the cache. Expired keys count until others replace them."""
        return len(self._digests)

    def is_published(self, key: bytes, digest: bytes) -> bool:
        """True when a record that holds this change is on the data topic."""
        return key in self._digests and digest in self._known(key, self._clock())

    def remember(self, key: bytes, digest: bytes) -> None:
        """Note that this change has been published. If there are too many, the oldest digest of the key is removed."""
        now = self._clock()
        digests: tuple[bytes, ...] = (digest,)
        known = self._known(key, now)
        if known:
            digests = (*(each for each in known if each != digest), digest)[-self._max_digests :]
        self._digests[key] = now + self._expire_after_s, digests
        if len(self._digests) > self._max_capacity:
            self._digests.popitem(last=False)
            self._evictions += 1

    def forget(self, prefix: bytes) -> None:
        """Forget all keys with this prefix, which are those of one table."""
        keys = [key for key in self._digests if key.startswith(prefix)]
        for key in keys:
            del self._digests[key]

    def _known(self, key: bytes, now: float) -> tuple[bytes, ...]:
        known = self._digests.get(key)
        if known is None:
            return ()
        self._digests.move_to_end(key)
        until, digests = known
        return digests if now < until else ()
