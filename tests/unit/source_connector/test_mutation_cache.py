"""Which changes count as already published."""

from __future__ import annotations

from source_connector.events.mutation_cache import MutationCache


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def cache(clock: Clock | None = None, capacity: int = 2) -> MutationCache:
    return MutationCache(max_capacity=capacity, max_digests=3, expire_after_s=60, clock=clock or Clock())


def test_a_digest_is_known_for_its_key_only() -> None:
    """In tests, two keys may have changes with equal digests."""
    published = cache()
    published.remember(b"k", b"1")
    assert published.is_published(b"k", b"1")
    assert not published.is_published(b"k", b"2")
    assert not published.is_published(b"other", b"1")


def test_a_key_keeps_its_newest_digests() -> None:
    """The oldest of four is forgotten; a digest that is remembered again becomes the newest."""
    published = cache()
    for digest in (b"1", b"2", b"3", b"1", b"4"):
        published.remember(b"k", digest)
    assert [published.is_published(b"k", digest) for digest in (b"1", b"2", b"3", b"4")] == [True, False, True, True]


def test_the_oldest_key_gives_way() -> None:
    """The capacity is a number of keys."""
    published = cache()
    for key in (b"a", b"b", b"c"):
        published.remember(key, b"1")
    assert [published.is_published(key, b"1") for key in (b"a", b"b", b"c")] == [False, True, True]
    assert len(published) == 2


def test_a_key_that_is_used_stays() -> None:
    """The key whose last use is the longest ago gives way: a change or a question is a use."""
    published = cache()
    published.remember(b"a", b"1")
    published.remember(b"b", b"1")
    assert published.is_published(b"a", b"1")
    published.remember(b"c", b"1")
    assert [published.is_published(key, b"1") for key in (b"a", b"b", b"c")] == [True, False, True]
    published.remember(b"a", b"2")
    published.remember(b"d", b"1")
    assert [published.is_published(key, b"1") for key in (b"a", b"c", b"d")] == [True, False, True]
    assert published.evictions == 2
    published.forget(b"d")
    assert (len(published), published.evictions) == (1, 2)


def test_a_key_is_forgotten_a_while_after_its_last_change() -> None:
    """A key is forgotten after 60 seconds here, which each change of the key starts again."""
    clock = Clock()
    published = cache(clock)
    published.remember(b"k", b"1")
    clock.now = 59
    published.remember(b"k", b"2")
    clock.now = 118
    assert published.is_published(b"k", b"1")
    clock.now = 120
    assert not published.is_published(b"k", b"1")
