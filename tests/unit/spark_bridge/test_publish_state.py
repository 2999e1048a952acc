"""The state of a published topic: which producer wrote the last record of a partition."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from spark_bridge.errors import DamagedStateError
from spark_bridge.jobs.publish_state import Published, published_in

PARTITION = "persistent://public/default/rows-shop.t-partition-2"


def test_a_partition_to_which_a_rebuild_has_nothing_to_write_ends_with_a_record_of_before() -> None:
    """With four partitions and one row, three get no record: neither the next run nor --follow may refuse them."""
    first = Published.anew("rows-shop.t", None)
    rebuilt = replace(Published.anew("rows-shop.t", 7), before={PARTITION: "12:3"})
    stored = Published(**json.loads(json.dumps(asdict(rebuilt))))
    assert not stored.has_other_writer(PARTITION, f"{first.producer}-2", lambda _: "12:3")
    assert not stored.has_other_writer(PARTITION, f"{rebuilt.producer}-2", lambda _: "12:4")
    assert not stored.has_other_writer(PARTITION, None, lambda _: "-1:-1")


def test_changes_that_a_copy_of_the_mirror_does_not_know_are_of_a_later_run() -> None:
    """The broker would drop new records of the copy that have numbers of that run."""
    stored = replace(Published.anew("rows-shop.t", None), sent_until=7)
    assert [stored.is_of_later_run(each) for each in (-1, 7, 8)] == [False, False, True]
    assert not Published.anew("rows-shop.t", None).is_of_later_run(-1)
    assert not replace(stored, sent_until=None).is_of_later_run(8), "an earlier version did not note it"


def test_a_later_record_of_another_producer_is_of_others() -> None:
    rebuilt = replace(Published.anew("rows-shop.t", 7), before={PARTITION: "12:3"})
    assert rebuilt.has_other_writer(PARTITION, "standalone-1-7", lambda _: "12:4")
    assert rebuilt.has_other_writer("another partition", "standalone-1-7", lambda _: "12:3")
    assert replace(rebuilt, before={}).has_other_writer(PARTITION, "standalone-1-7", lambda _: "12:3")


@pytest.mark.parametrize(
    "stored", ["", '{"topic": "rows-', "[]", "{}", '{"topic": "t", "producer": "p", "of_later_version": 1}']
)
def test_a_state_that_is_not_understood_is_told_with_the_way_on(stored: str) -> None:
    """The error advises a rebuild, which does not read the state."""
    with pytest.raises(
        DamagedStateError, match=r"^state in /lake/published/rows: .* publish the whole table anew with --rebuild$"
    ):
        published_in("/lake/published/rows", stored)
