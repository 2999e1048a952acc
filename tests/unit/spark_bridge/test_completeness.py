"""Cases in which a run gives no time until which its tables are complete."""

from __future__ import annotations

import logging

import pytest

from spark_bridge.jobs.completeness import Completeness, lack_of_read
from spark_bridge.jobs.mirror_state import Applied
from spark_bridge.topics.options import BridgeOptions

# Nobody listens there: a request to Pulsar would fail.
GIVEN = {"serviceUrl": "pulsar://127.0.0.1:9", "adminUrl": "http://127.0.0.1:9", "topic": "data-shop.orders"}


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"failOnDataLoss": "false"}, "shop.orders: failOnDataLoss is false, so records may be missing"),
        (
            {"startingOffsets": "latest"},
            "shop.orders: startingOffsets is not earliest, so older records may be missing",
        ),
    ],
)
def test_tables_that_may_lack_records_have_no_timestamp(
    option: dict[str, str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is logged once, and Pulsar is not asked."""
    with caplog.at_level(logging.INFO), Completeness(BridgeOptions.from_mapping(GIVEN | option)) as completeness:
        completeness.ask()
        completeness.ask()
        assert completeness.reached({}) is None
    assert [each.getMessage() for each in caplog.records] == [
        f"until when the table is complete is not known: {reason}"
    ]


def test_tables_that_lack_records_since_an_earlier_run_have_no_timestamp(caplog: pytest.LogCaptureFixture) -> None:
    """The options of the run itself are the usual ones."""
    with caplog.at_level(logging.INFO), Completeness(BridgeOptions.from_mapping(GIVEN)) as completeness:
        completeness.note_lack("a run of this mirror had failOnDataLoss=false")
        completeness.ask()
        assert completeness.reached({}) is None
    assert [each.getMessage() for each in caplog.records] == [
        "until when the table is complete is not known: shop.orders: a run of this mirror had failOnDataLoss=false, so "
        "records may be missing; a mirror with --rebuild begins anew"
    ]


@pytest.mark.parametrize(
    ("option", "alone", "with_mirror"),
    [
        ({}, None, None),
        ({"failOnDataLoss": "false"}, "failOnDataLoss is false", "failOnDataLoss is false"),
        ({"startingOffsets": "latest"}, "startingOffsets is not earliest", None),
        ({"endingOffsets": "2026-11-21T05:00:00Z"}, "endingOffsets is not latest", None),
    ],
)
def test_rows_that_may_lack_records_are_not_called_complete(
    option: dict[str, str], alone: str | None, with_mirror: str | None
) -> None:
    """A mirror with the topic's newer records is read to the topic's end, whatever the offsets. It may have a hole itself."""
    options = BridgeOptions.from_mapping(GIVEN | option)
    assert lack_of_read(options, None) == alone
    assert lack_of_read(options, Applied(epoch=3)) == with_mirror
    assert lack_of_read(options, Applied(epoch=3, may_lack="why")) == (with_mirror or "why")
