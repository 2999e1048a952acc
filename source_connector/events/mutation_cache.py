"""Remembers the changes that have been published: the digests of the latest changes per key. No I/O.

With the native core, `runtime/native/src/published.rs` keeps the digests, by the same rules.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol, cast

from source_connector.compiled import native_module

__all__ = ["NATIVE_CHANGES", "MutationCache", "NativeChanges", "NativeChangesType"]

# When the entry expires, and the digests, oldest first.
_Known = tuple[float, tuple[bytes, ...]]


class NativeChanges(Protocol):
    """The native core's part. Its methods are those of `MutationCache`, with the time by the caller's clock."""

    @property
    def evictions(self) -> int:
        """How many keys were removed for others."""

    def __len__(self) -> int:
        """The number of keys."""

    def is_published(self, key: bytes, digest: bytes, now_s: float) -> bool:
        """True when the change is known."""

    def remember(self, key: bytes, digest: bytes, now_s: float) -> None:
        """Note that this change has been published."""

    def forget(self, prefix: bytes) -> None:
        """Forget all keys with this prefix."""


class NativeChangesType(Protocol):
    """The class of the native core."""

    def __call__(self, max_capacity: int, max_digests: int, expire_after_s: float) -> NativeChanges:
        """Create one without keys."""


class _Core(Protocol):
    """The native core."""

    PublishedChanges: NativeChangesType


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
        native: NativeChangesType | None = None,
    ) -> None:
        self._native = None if native is None else native(max_capacity, max_digests, expire_after_s)
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
        return self._evictions if self._native is None else self._native.evictions

    def __len__(self) -> int:
        """The number of keys in the cache. Expired keys count until others replace them."""
        return len(self._digests if self._native is None else self._native)

    def is_published(self, key: bytes, digest: bytes) -> bool:
        """True when a record that holds this change is on the data topic."""
        if self._native is not None:
            return self._native.is_published(key, digest, self._clock())
        return key in self._digests and digest in self._known(key, self._clock())

    def remember(self, key: bytes, digest: bytes) -> None:
        """Note that this change has been published. If there are too many, the oldest digest of the key is removed."""
        now = self._clock()
        if self._native is not None:
            self._native.remember(key, digest, now)
            return
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
        if self._native is not None:
            self._native.forget(prefix)
            return
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


_core: Final = cast("_Core | None", native_module())  # mypy knows nothing of the attributes of a loaded module
NATIVE_CHANGES: Final = None if _core is None else _core.PublishedChanges
"""The native core's class for `MutationCache`; None if it was not loaded."""
