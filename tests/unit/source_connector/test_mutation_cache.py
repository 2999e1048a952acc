"""Which changes count as already published, in Python and in the native core."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from source_connector.events.mutation_cache import (
    MutationCache,
    NativeCache,
    NativeChangesType,
    PythonCache,
    mutation_cache,
    native_changes,
)

EXPIRE_S: Final = 60.0
_NATIVE: Final = native_changes()
# Keys and digests of several lengths, and few of each, so that they come again.
_KEYS: Final = (b"", b"a", b"ab", b"b", b"b" * 40)
_DIGESTS: Final = (b"", b"1" * 16, b"2" * 16, b"3" * 16, b"3", b"4" * 300)
KEYS: Final = st.sampled_from(_KEYS)
DIGESTS: Final = st.sampled_from(_DIGESTS)


@pytest.fixture(
    params=[None, _NATIVE] if _NATIVE is not None else [None],
    ids=lambda each: "native" if each else "python",
)
def native(request: pytest.FixtureRequest) -> NativeChangesType | None:
    """The implementation. Without the native core there is one; `make compile` builds the other."""
    found: NativeChangesType | None = request.param
    return found


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def cache(native: NativeChangesType | None, clock: Clock | None = None, capacity: int = 2) -> MutationCache:
    return mutation_cache(
        max_capacity=capacity, max_digests=3, expire_after_s=EXPIRE_S, clock=clock or Clock(), native=native
    )


def test_the_native_core_is_used_where_it_is_loaded(native: NativeChangesType | None) -> None:
    """Otherwise the tests below would test one implementation twice."""
    assert type(cache(native)) is (PythonCache if native is None else NativeCache)


def test_a_digest_is_known_for_its_key_only(native: NativeChangesType | None) -> None:
    """In tests, two keys may have changes with equal digests."""
    published = cache(native)
    published.remember(b"k", b"1")
    assert published.is_published(b"k", b"1")
    assert not published.is_published(b"k", b"2")
    assert not published.is_published(b"other", b"1")


def test_a_key_keeps_its_newest_digests(native: NativeChangesType | None) -> None:
    """The oldest of four is forgotten; a digest that is remembered again becomes the newest."""
    published = cache(native)
    for digest in (b"1", b"2", b"3", b"1", b"4"):
        published.remember(b"k", digest)
    assert [published.is_published(b"k", digest) for digest in (b"1", b"2", b"3", b"4")] == [True, False, True, True]


def test_the_oldest_key_gives_way(native: NativeChangesType | None) -> None:
    """The capacity is a number of keys."""
    published = cache(native)
    for key in (b"a", b"b", b"c"):
        published.remember(key, b"1")
    assert [published.is_published(key, b"1") for key in (b"a", b"b", b"c")] == [False, True, True]
    assert len(published) == 2


def test_a_key_that_is_used_stays(native: NativeChangesType | None) -> None:
    """The key whose last use is the longest ago gives way: a change or a question is a use."""
    published = cache(native)
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


def test_a_key_is_forgotten_a_while_after_its_last_change(native: NativeChangesType | None) -> None:
    """A key is forgotten after 60 seconds here, which each change of the key starts again."""
    clock = Clock()
    published = cache(native, clock)
    published.remember(b"k", b"1")
    clock.now = 59
    published.remember(b"k", b"2")
    clock.now = 118
    assert published.is_published(b"k", b"1")
    clock.now = 120
    assert not published.is_published(b"k", b"1")


@pytest.mark.skipif(_NATIVE is None, reason="there is no native core: run `make compile`")
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("remember"), KEYS, DIGESTS),
            st.tuples(st.just("is_published"), KEYS, DIGESTS),
            st.tuples(st.just("forget"), KEYS, st.just(b"")),
            st.tuples(st.just("wait"), st.just(b""), st.sampled_from([b"1", b"59", b"60", b"-1"])),
        ),
        max_size=60,
    ),
    capacity=st.integers(1, 4),
)
def test_both_know_the_same_changes(steps: list[tuple[str, bytes, bytes]], capacity: int) -> None:
    """Python is the reference. Each answer is equal, and at the end so are the sizes and all that is known."""
    clock = Clock()
    reference, core = cache(None, clock, capacity), cache(_NATIVE, clock, capacity)
    for step, key, digest in steps:
        if step == "wait":
            clock.now += float(digest)
        elif step == "forget":
            reference.forget(key)
            core.forget(key)
        elif step == "remember":
            reference.remember(key, digest)
            core.remember(key, digest)
        else:
            assert core.is_published(key, digest) == reference.is_published(key, digest)
        assert (len(core), core.evictions) == (len(reference), reference.evictions)
    for key, digest in product(_KEYS, _DIGESTS):
        assert core.is_published(key, digest) == reference.is_published(key, digest)
