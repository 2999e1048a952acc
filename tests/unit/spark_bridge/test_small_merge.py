"""The identities of a mirror's rows in a fold in the driver."""

from __future__ import annotations

import pyarrow as pa

from spark_bridge.jobs.small_merge import gone_ids, shown_ids, soonest_expiry
from spark_bridge.rows.fold_batches import folded_table
from tests.unit.spark_bridge.test_fold import (
    NOW_S,
    TOLD,
    Delete,
    DeletePartition,
    Row,
    Static,
    Told,
    key_of,
    rules_of,
    told_of,
)


def _folded(*told: Told) -> pa.Table:
    return folded_table(pa.Table.from_pylist(list(told), schema=TOLD), rules_of(["s"]), NOW_S)


def test_every_identity_is_either_shown_or_gone() -> None:
    """Rows go by their key. A partition has its own identity: shown if it has only static columns, and else gone."""
    last = told_of(Row(2, "b", 2, 1), 2)
    last.update(expires_at=NOW_S + 60)
    folded = _folded(
        told_of(Row(1, "a", 1, 1), 1),
        last,
        told_of(Delete(3, "c"), 3),
        {**told_of(Static(5), 4), "owner": "statics"},
        {**told_of(Row(9, "z", 1, 1), 5), "owner": "deleted"},
        {**told_of(DeletePartition(), 6), "owner": "deleted"},
    )
    rows = {key_of(1, "a").hex().upper(), key_of(2, "b").hex().upper()}
    assert set(shown_ids(folded)) == {*rows, "static:statics"}
    gone = gone_ids(folded, has_clustering=True)
    assert sorted(gone) == sorted(
        [key_of(3, "c").hex().upper(), key_of(9, "z").hex().upper(), "static:p", "static:deleted"]
    )
    assert [each for each in gone_ids(folded, has_clustering=False) if each.startswith("static:")] == []
    assert soonest_expiry(folded) == NOW_S + 60
    assert soonest_expiry(_folded(told_of(Row(1, "a", 1, 1), 1))) is None
