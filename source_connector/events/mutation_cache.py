"""Remembers the changes that have been published: the digests of the latest changes per key. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable

from cachetools import LRUCache

__all__ = ["MutationCache"]

# When the entry expires, and the digests, oldest first.
_Known = tuple[float, tuple[bytes, ...]]


class MutationCache:
    """Remembers up to `max_digests` digests for each of `max_capacity` keys, for `expire_after_s` after the last one.

    It is an optimisation: a change that it has forgotten is published once more. A digest goes in only when its record
    has been acknowledged, and its read proves that the record holds the change.
    """

    # Not a TTLCache: it searches for expired entries at every access, which costs twice as much.
    def __init__(
        self,
        *,
        max_capacity: int,
        max_digests: int,
        expire_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._digests: LRUCache[bytes, _Known] = LRUCache(max_capacity)
        self._added = 0
        self._max_digests = max_digests
        self._expire_after_s = expire_after_s
        self._clock = clock

    @property
    def evictions(self) -> int:
        """How many keys were removed for others."""
        return self._added - len(self._digests)

    def __len__(self) -> int:
        """The number of keys in the cache. Expired keys count until others replace them."""
        return len(self._digests)

    def is_published(self, key: bytes, digest: bytes) -> bool:
        """True when a record that holds this change is on the data topic."""
        return digest in self._known(key, self._clock())

    def remember(self, key: bytes, digest: bytes) -> None:
        """Note that this change has been published. If there are too many, the oldest digest of the key is removed."""
        now = self._clock()
        digests: tuple[bytes, ...] = (digest,)
        if key not in self._digests:
            self._added += 1
        elif known := self._known(key, now):
            digests = (*(each for each in known if each != digest), digest)[-self._max_digests :]
        self._digests[key] = now + self._expire_after_s, digests

    def forget(self, prefix: bytes) -> None:
        """Forget all keys with this prefix, which are those of one table."""
        keys = [key for key in self._digests if key.startswith(prefix)]
        self._added -= len(keys)
        for key in keys:
            del self._digests[key]

    def _known(self, key: bytes, now: float) -> tuple[bytes, ...]:
        if key not in self._digests:
            return ()
        known: _Known = self._digests[key]  # mypyc compiles without the types of packages
        until, digests = known
        return digests if now < until else ()
