"""A mirror whose tables are taken for large: a few changes go into deletion vectors, and name their keys."""

from __future__ import annotations

import pytest

from spark_bridge.jobs import batch_session
from tests.fixtures.mirror import MirrorOf
from tests.fixtures.spark import PY4J_LEAVES_SOCKETS_OPEN, MakeTopic
from tests.topics.table_records import WIDE, partition_deletion, row, row_deletion, static_row

pytestmark = [
    pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN),
    pytest.mark.timeout(1_500),
    pytest.mark.spark_line(">=4.1"),
]

# Keys and owners as texts that SQL must quote.
_NAMES = ("it's", "back\\slash", "both'\\", '"', "plain")


@pytest.mark.extended
def test_its_rows_are_those_of_the_topic(
    mirror_of: MirrorOf, data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates, deletions, rows that move between one of the partition and one of their own; the tables' files stay."""
    monkeypatch.setattr(batch_session, "_LARGE_BYTES", 0)
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)
    topic.write(*[row(pk, a, "x", a, s=f"s {pk}") for pk in _NAMES for a in range(4)])
    topic.write(*[static_row(f"static {pk}", s="alone", t=1) for pk in _NAMES])
    kept.run()
    files = set(kept.table("rows").inputFiles())
    topic.write(*[row(pk, 1, "x", 100, s=f"new {pk}") for pk in _NAMES])
    topic.write(row_deletion("it's", 2, "x"), partition_deletion("both'\\"), static_row("static it's", s="again", t=2))
    topic.write(row('static "', 5, "x", 5, s="a row"))
    kept.run()
    assert kept.rows() == kept.wanted() == kept.replayed() == kept.open_versions()
    assert files & set(kept.table("rows").inputFiles())
    (last,) = kept.spark.sql(f"DESCRIBE HISTORY delta.`{kept.folder}/rows` LIMIT 1").collect()
    assert int(last.operationMetrics["numTargetDeletionVectorsAdded"]) > 0
    assert int(last.operationMetrics["numTargetRowsCopied"]) == 0
