"""Which of several tables of one name is the latest, by what their records say."""

from __future__ import annotations

import pytest

from spark_bridge.rows.table_lives import TableLife, life_at_end, life_of, newest_life

# Version 1, in order of time: the second one is from 2025-12-30.
OLD, NEW = "a5559b20-e53e-11f0-a9d7-973e92e688cb", "b5559b20-e53e-11f0-a9d7-973e92e688cb"
RANDOM = "11111111-1111-4111-8111-111111111111"
OLD_US, NEW_US = 1_767_071_767_306_934, 1_767_071_794_150_480


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (TableLife(OLD), TableLife(NEW)),
        (TableLife(OLD, 10), TableLife(NEW, 20)),
        (TableLife(NEW, 20), TableLife(OLD, 30)),
        (TableLife(OLD, 20), TableLife(OLD, 30)),
        (TableLife(NEW), TableLife(OLD, NEW_US + 1_000_000)),
        (TableLife(OLD, OLD_US + 1_000_000), TableLife(NEW)),
        (TableLife(RANDOM), TableLife(OLD)),
        (TableLife("?"), TableLife(RANDOM, 1)),
    ],
)
def test_the_later_life_is_the_newest_and_begins_behind_the_other(earlier: TableLife, later: TableLife) -> None:
    """The generation decides, whatever the ids are; without generations, the time in the id decides."""
    assert newest_life([later, earlier]) == newest_life([earlier, later]) == later
    assert later.begins_behind(earlier)
    assert not earlier.begins_behind(later)
    assert not later.begins_behind(later)


@pytest.mark.parametrize("behind_us", [2_000, -3_000])
def test_the_first_generation_that_is_named_begins_no_other_life(behind_us: int) -> None:
    """An earlier connector named only the id; its records are of the same table. Cassandra 4.0 makes the id later."""
    named = TableLife(OLD, OLD_US + behind_us)
    assert newest_life([TableLife(OLD), named]) == named
    assert not named.begins_behind(TableLife(OLD))


def test_what_a_record_says() -> None:
    """A record may name nothing of its table, its id, or its id and generation."""
    assert life_of(None) is life_of({}) is newest_life([]) is None
    assert life_of({"table_id": OLD, "table_generation": "x"}) == TableLife(OLD)
    assert life_of({"table_id": OLD, "table_generation": "7"}) == TableLife(OLD, 7)


@pytest.mark.parametrize(
    ("last", "wanted"),
    [
        ([(OLD, str(NEW_US - 1))], NEW),
        ([(OLD, str(NEW_US))], OLD),
        ([(OLD, str(NEW_US + 5))], OLD),
        ([(OLD, None)], OLD),
        ([(OLD, str(NEW_US - 1)), (OLD, str(NEW_US + 5))], OLD),
        ([(OLD, str(NEW_US + 5)), (NEW, str(NEW_US + 1))], NEW),
        ([(None, str(NEW_US - 1))], None),
        ([], None),
    ],
    ids=[
        "a write from before the new table",
        "a write of its first moment",
        "a later write",
        "no write time",
        "a later write in another topic partition",
        "a record of the new table",
        "a record that names no table",
        "no records",
    ],
)
def test_a_table_that_was_seen_counts_if_it_began_after_the_last_write(
    last: list[tuple[str | None, str | None]], wanted: str | None
) -> None:
    """The last record may be a late one. A later write shows that the definition is of another cluster's table."""
    names = ("table_id", "writetime")
    properties = [{name: each for name, each in zip(names, record, strict=True) if each is not None} for record in last]
    found = life_at_end(properties, [TableLife(OLD), TableLife(NEW)])
    assert found == (None if wanted is None else TableLife(wanted))
    assert life_at_end(properties, []) in (found, TableLife(OLD))
