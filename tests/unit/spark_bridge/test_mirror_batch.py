"""State that a micro-batch of a mirror stores beside its rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Final, cast

import pytest
from pyspark.sql import DataFrame

from spark_bridge.jobs import mirror_batch
from spark_bridge.jobs.batch_content import NO_CONTENT
from spark_bridge.jobs.epoch_plan import EpochPlan
from spark_bridge.jobs.kept_records import Run
from spark_bridge.jobs.mirror_batch import MirrorBatch
from spark_bridge.jobs.mirror_state import Applied, MirrorTables
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.topic_schemas import AvroRecord, SchemaVersion, TopicSchemas
from tests.unit.spark_bridge.test_completeness import GIVEN

_RECORD: Final[AvroRecord] = {"type": "record", "name": "r", "fields": []}
_LATER_S: Final = int(time.time()) + 1_000_000


def _in_turn(session: object, *steps: Callable[[], object]) -> tuple[object, ...]:
    return tuple(each() for each in steps)


@pytest.mark.parametrize("publish_s", [0, 1, _LATER_S], ids=["no records", "an old backlog", "a clock that is ahead"])
def test_a_marker_is_kept_from_the_time_when_the_mirror_has_read_it(publish_s: int) -> None:
    """If the publish time counted, a marker of an old backlog would be forgotten before the mirror reads the rows that
    it deletes."""
    seen = list[int]()

    def write(judged: DataFrame, number: int, seen_s: int) -> Run:
        seen.append(seen_s)
        return Run(number, "", 0)

    tables = SimpleNamespace(kept=SimpleNamespace(write=write))
    settings = mirror_batch.MirrorSettings(is_known=True)
    batch = MirrorBatch(cast("MirrorTables", tables), BridgeOptions.from_mapping(GIVEN), settings)
    content = replace(NO_CONTENT, newest_publish_s=publish_s)
    plan = EpochPlan(TopicSchemas(topic="t", versions=()), Applied(clock_s=2), content, False, 0)
    before_s = int(time.time())
    batch._keeping(cast("DataFrame", None), plan)()
    assert max(before_s, publish_s) <= seen[0] <= max(int(time.time()), publish_s)


def test_rows_that_expire_in_the_second_of_the_epoch_have_expired() -> None:
    """The folding rules say so, too. Otherwise the rows would stay until the next epoch looks for expired ones."""

    def has_expired(next_expiry_s: int | None) -> bool:
        applied = Applied(clock_s=100, next_expiry_s=next_expiry_s)
        return EpochPlan(TopicSchemas(topic="t", versions=()), applied, NO_CONTENT, False, 0).has_expired

    assert [has_expired(each) for each in (None, 99, 100, 101)] == [False, True, True, False]


def test_an_epoch_keeps_why_the_tables_may_lack_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new epoch copies this reason, although other progress is new. Requests to Pulsar wait as long as queries."""
    saved = list[Applied]()
    version = SchemaVersion(version=0, key=_RECORD, value=_RECORD)
    patience = list[float]()

    def fetch(options: BridgeOptions, *, patience_s: float) -> TopicSchemas:
        patience.append(patience_s)
        return TopicSchemas(topic="t", versions=(version,))

    monkeypatch.setattr(mirror_batch, "at_once", _in_turn)
    monkeypatch.setattr(mirror_batch, "known_creations", lambda *_, **more: patience.append(more["patience_s"]) or {})
    monkeypatch.setattr(TopicSchemas, "fetch", fetch)
    monkeypatch.setattr(mirror_batch, "follow_schema", lambda *_: SimpleNamespace(gone_until={}))
    monkeypatch.setattr(mirror_batch, "tag_commits", lambda *_: None)
    monkeypatch.setattr(MirrorBatch, "_fold_and_merge", lambda *_: ({}, None, Run(0, "", 0)))
    tables = cast("MirrorTables", SimpleNamespace(save_applied=saved.append))
    batch = MirrorBatch(tables, BridgeOptions.from_mapping(GIVEN), mirror_batch.MirrorSettings(is_known=True))
    session = SimpleNamespace(conf=SimpleNamespace(get=lambda _: "1"))
    raw = cast("DataFrame", SimpleNamespace(sparkSession=session))
    batch._apply(raw, Applied(epoch=1, may_lack="why"), NO_CONTENT, is_new_table=False, table_bytes=0)
    assert [(each.epoch, each.may_lack) for each in saved] == [(2, "why")]
    assert patience == [30, 30]
