"""Remembers the changes that have been published: the digests of the latest changes per key. No I/O.

`PythonCache` is the reference. `NativeCache` keeps the digests in the native core (`runtime/native/src/published.rs`), by
the same rules. `mutation_cache` chooses one of them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol, cast, final

from source_connector.compiled import native_module

__all__ = [
    "MutationCache",
    "NativeCache",
    "NativeChanges",
    "NativeChangesType",
    "PythonCache",
    "mutation_cache",
    "native_changes",
]

# When the entry expires, and the digests, oldest first.
_Known = tuple[float, tuple[bytes, ...]]


class NativeChanges(Protocol):
    """The native core's part. Its methods are those of `MutationCache`, with the time by the caller's clock in seconds."""

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


class MutationCache(ABC):
    """Remembers up to `max_digests` digests for each of `max_capacity` keys, for `expire_after_s` after the last one.

    It is an optimisation: a change that it has forgotten is published once more. A digest goes in only when its record
    has been acknowledged, and its read proves that the record holds the change.
    """

    @property
    @abstractmethod
    def evictions(self) -> int:
        """How many keys were removed for others."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of keys in the cache. Expired keys count until others replace them."""

    @abstractmethod
    def is_published(self, key: bytes, digest: bytes) -> bool:
        """True when a record that holds this change is on the data topic."""

    @abstractmethod
    def remember(self, key: bytes, digest: bytes) -> None:
        """Note that this change has been published. If there are too many, the oldest digest of the key is removed."""

    @abstractmethod
    def forget(self, prefix: bytes) -> None:
        """Forget all keys with this prefix, which are those of one table."""


@final
class PythonCache(MutationCache):
    """The digests in a dictionary: the reference for the native core."""

    def __init__(
        self, *, max_capacity: int, max_digests: int, expire_after_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # The key that was used last is the last one. Every row passes here: cachetools' LRUCache takes ten times as long.
        self._digests: Final[OrderedDict[bytes, _Known]] = OrderedDict()
        self._max_capacity: Final = max_capacity
        self._max_digests: Final = max_digests
        self._expire_after_s: Final = expire_after_s
        self._clock: Final = clock
        self._evictions = 0

    @property
    def evictions(self) -> int:
        """As `MutationCache.evictions`."""
        return self._evictions

    def __len__(self) -> int:
        return len(self._digests)

    def is_published(self, key: bytes, digest: bytes) -> bool:
        """As `MutationCache.is_published`."""
        return key in self._digests and digest in self._known(key, self._clock())

    def remember(self, key: bytes, digest: bytes) -> None:
        """As `MutationCache.remember`."""
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
        """As `MutationCache.forget`."""
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


@final
class NativeCache(MutationCache):
    """The digests in the native core, with the time by this process's clock."""

    def __init__(self, changes: NativeChanges, clock: Callable[[], float] = time.monotonic) -> None:
        self._changes: Final = changes
        self._clock: Final = clock

    @property
    def evictions(self) -> int:
        """As `MutationCache.evictions`."""
        return self._changes.evictions

    def __len__(self) -> int:
        return len(self._changes)

    def is_published(self, key: bytes, digest: bytes) -> bool:
        """As `MutationCache.is_published`."""
        return self._changes.is_published(key, digest, self._clock())

    def remember(self, key: bytes, digest: bytes) -> None:
        """As `MutationCache.remember`."""
        self._changes.remember(key, digest, self._clock())

    def forget(self, prefix: bytes) -> None:
        """As `MutationCache.forget`."""
        self._changes.forget(prefix)


def native_changes() -> NativeChangesType | None:
    """The native core's class for `NativeCache`; None if the core was not loaded."""
    core = cast("_Core | None", native_module())  # mypy knows nothing of the attributes of a loaded module
    return None if core is None else core.PublishedChanges


def mutation_cache(
    *,
    max_capacity: int,
    max_digests: int,
    expire_after_s: float,
    clock: Callable[[], float] = time.monotonic,
    native: NativeChangesType | None,
) -> MutationCache:
    """A cache without keys: in the native core, or in Python if `native` is None.

    Capacities are numbers of keys and of digests for each key. Clock and `expire_after_s` are in seconds.
    """
    if native is not None:
        return NativeCache(native(max_capacity, max_digests, expire_after_s), clock)
    return PythonCache(max_capacity=max_capacity, max_digests=max_digests, expire_after_s=expire_after_s, clock=clock)
