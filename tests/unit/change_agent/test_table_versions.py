"""TableVersions: which definition a mutation has, and whether `cdc` was on: by the log, by time, and in doubt."""

from __future__ import annotations

import pytest

from change_agent.schema.table_versions import LogEvidence, TableVersion, TableVersions, WrittenWhen
from schemas.table_metadata import TableMetadata
from tests.cql.tables import table_of

_S = 1_000_000


def _table(*, cdc: bool, column_type: str = "int", key: str = "pk") -> TableMetadata:
    return table_of({key: "int"}, regular={"v": column_type}, cdc=cdc)


def _version(since_s: int, *, cdc: bool, confirmed_s: int | None = 0, column_type: str = "int") -> TableVersion:
    confirmed_us = None if confirmed_s is None else confirmed_s * _S
    return TableVersion(
        table=_table(cdc=cdc, column_type=column_type), since_us=since_s * _S, confirmed_us=confirmed_us
    )


# On from 100 s, off from 1000 s and confirmed until 2000 s, on again from 3000 s until now.
_TOGGLED = TableVersions(
    [
        _version(100, cdc=True, confirmed_s=900),
        _version(1000, cdc=False, confirmed_s=2000),
        _version(3000, cdc=True, confirmed_s=None),
    ]
)


def _when(earliest_s: int, latest_s: int, *, written_s: int | None = None, confirmed_s: int = 10_000) -> WrittenWhen:
    written_us = (earliest_s if written_s is None else written_s) * _S
    return WrittenWhen(
        written_us=written_us, earliest_us=earliest_s * _S, latest_us=latest_s * _S, confirmed_us=confirmed_s * _S
    )


def _captured(versions: TableVersions, when: WrittenWhen, evidence: LogEvidence | None = None) -> bool:
    return versions.definitions(when, evidence)[0].cdc


@pytest.mark.parametrize(
    ("earliest_s", "latest_s", "captured"),
    [
        (500, 600, True),  # on
        (1100, 1200, False),  # certainly off
        (1010, 1200, True),  # perhaps before the turn-off: clocks differ
        (1100, 1990, True),  # perhaps after the last confirmation
        (2100, 2200, True),  # the time when it was turned on is not known
        (900, 1200, True),  # some of it was written before the turn-off
        (0, 1500, True),  # the beginning is not known
        (3100, 3200, True),  # on
    ],
)
def test_without_the_log_only_what_was_surely_written_while_off_is_left_out(
    earliest_s: int, latest_s: int, captured: bool
) -> None:
    """Only the bounds count, because the client chooses the write time."""
    for written_s in (earliest_s, latest_s):
        assert _captured(_TOGGLED, _when(earliest_s, latest_s, written_s=written_s)) is captured


@pytest.mark.parametrize(
    ("confirmed_s", "captured"),
    [(1500, False), (1400, True)],
)
def test_a_table_that_is_off_now_is_off_as_long_as_the_node_says_so(confirmed_s: int, captured: bool) -> None:
    """The node was asked at or after the last possible time of the write. If it was asked before, there is a doubt."""
    versions = TableVersions([_version(100, cdc=True, confirmed_s=900), _version(1000, cdc=False, confirmed_s=None)])
    assert _captured(versions, _when(1410, 1500, confirmed_s=confirmed_s)) is captured


def test_the_log_decides_whatever_the_times_say() -> None:
    """The write is after the change in the log, although its client's write time is much earlier or later."""
    off, on = LogEvidence(since_us=1000 * _S, settled=True), LogEvidence(since_us=3000 * _S, settled=True)
    for written_s in (0, 500, 1500, 9000):
        assert not _captured(_TOGGLED, _when(0, 9000, written_s=written_s), off)
        assert _captured(_TOGGLED, _when(0, 9000, written_s=written_s), on)


def test_a_write_that_was_under_way_when_the_flag_went_off_is_published() -> None:
    """It is after the change in the log, but was written just before it, or the node did not use the new flag yet."""
    settled, unsettled = (LogEvidence(since_us=1000 * _S, settled=each) for each in (True, False))
    assert _captured(_TOGGLED, _when(0, 9000, written_s=999), settled)
    assert not _captured(_TOGGLED, _when(0, 9000, written_s=1001), settled)
    assert _captured(_TOGGLED, _when(0, 9000, written_s=1001), unsettled)


def test_a_table_that_stays_off_is_not_published_while_it_is_altered() -> None:
    """The change is not settled, but `cdc` was off before it too."""
    versions = TableVersions(
        [
            _version(100, cdc=True, confirmed_s=900),
            _version(1000, cdc=False),
            _version(2000, cdc=False, confirmed_s=None),
        ]
    )
    assert not _captured(versions, _when(0, 9000, written_s=1999), LogEvidence(since_us=2000 * _S, settled=False))


def test_layouts_that_differ_are_tried_from_the_likely_one_on() -> None:
    """The log decides, otherwise the write time within its bounds. Keys have the present names."""
    versions = TableVersions(
        [
            TableVersion(table=_table(cdc=True, key="old_name"), since_us=100 * _S, confirmed_us=0),
            _version(1000, cdc=True, confirmed_s=None, column_type="text"),
        ]
    )
    assert versions.differ

    def types(when: WrittenWhen, evidence: LogEvidence | None = None) -> list[str]:
        return [str(each.regular_columns[0].type) for each in versions.definitions(when, evidence)]

    assert types(_when(200, 2000, written_s=500)) == ["int", "text"]
    assert types(_when(200, 2000, written_s=1500)) == ["text", "int"]
    assert types(_when(200, 900, written_s=5000)) == ["int", "text"]
    assert types(_when(200, 2000, written_s=500), LogEvidence(since_us=1000 * _S, settled=True)) == ["text", "int"]
    assert {each.partition_key[0].name for each in versions.definitions(_when(200, 900), None)} == {"pk"}


def test_definitions_that_read_the_same_bytes_need_no_choice() -> None:
    """Both types have the same layout, and `cdc` is the same."""
    versions = TableVersions([_version(100, cdc=True), _version(1000, cdc=True, column_type="float", confirmed_s=None)])
    assert not versions.differ
