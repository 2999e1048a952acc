"""The stored state of a mirror: what this version writes, and what earlier versions have written."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Final

import pytest

from schemas.errors import ConfigError
from spark_bridge.errors import DamagedStateError, DataLossError
from spark_bridge.jobs.batch_content import NO_CONTENT
from spark_bridge.jobs.epoch_plan import EpochPlan
from spark_bridge.jobs.kept_records import ReplacedRun, Run
from spark_bridge.jobs.mirror import given_from, start_note
from spark_bridge.jobs.mirror_state import (
    Applied,
    BegunEpoch,
    MirrorTables,
    RecordPosition,
    applied_from_state,
    applied_in,
    fit_numbers,
    lack_of,
    refuse_lost_records,
    refuse_other_topic,
)
from spark_bridge.jobs.unfinished_epoch import Unfinished
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.topic_schemas import TopicSchemas
from tests.servers.http_brokers import Broker
from tests.unit.spark_bridge.test_admin import options, server
from tests.unit.spark_bridge.test_mirror_clearings import NO_PARTITIONS, TOPIC, ledgers

__all__ = ["server"]

_OTHER: Final = f"{TOPIC}-2"
_RUNNING: Final = Applied(epoch=4, positions={TOPIC: (7, 2, 0)}, layers=3)


def test_what_an_epoch_was_begun_with_is_stored() -> None:
    """So the same content is recognised again, and the changes that rows, change log and history already have."""
    begun = BegunEpoch({TOPIC: (7, 3, -1)}, ("a truncation",))
    applied = Applied(epoch=4, positions={TOPIC: (7, 2, 0)}, begun=begun, repeated_until={TOPIC: (7, 3, -1)})
    assert applied_from_state(json.dumps(asdict(applied))) == applied


@pytest.mark.parametrize(("repeats", "until"), [(True, {}), (False, None)])
def test_a_state_of_an_earlier_version_says_whether_records_are_repeated(
    repeats: bool, until: Mapping[str, RecordPosition] | None
) -> None:
    stored = asdict(Applied(epoch=4, positions={TOPIC: (7, 2, 0)}))
    del stored["begun"], stored["repeated_until"]
    found = applied_from_state(json.dumps({**stored, "repeats_records": repeats}))
    assert (found.repeated_until, found.begun) == (until, None)


def test_a_state_of_an_earlier_version_names_neither_its_time_zone_nor_its_files() -> None:
    """Then owners are not looked up in `rows`, and the files count as those of ten tasks."""
    stored = asdict(Applied(epoch=4, positions={TOPIC: (7, 2, 0)}))
    new = applied_from_state(json.dumps(stored), "Asia/Tokyo")
    assert (new.time_zone, new.is_zone_known, new.layers) == ("UTC", True, 1)
    for name in ("time_zone", "is_zone_known", "compacted", "layers", "gone_until"):
        del stored[name]
    earlier = applied_from_state(json.dumps(stored), "Asia/Tokyo")
    assert (earlier.time_zone, earlier.is_zone_known, earlier.layers) == ("Asia/Tokyo", False, 10)
    # Once stored, the state stays the same.
    assert applied_from_state(json.dumps(asdict(earlier)), "UTC") == earlier


def test_the_numbers_of_the_tables_are_stored() -> None:
    """A state of an earlier version does not have them, and the options count."""
    stored = asdict(replace(_RUNNING, numbers="string"))
    assert applied_from_state(json.dumps(stored)).numbers == "string"
    del stored["numbers"]
    assert applied_from_state(json.dumps(stored)).numbers is None


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ("", "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ('{"epoch": 3, "posi', "JSONDecodeError: Unterminated string"),
        ("[]", "AttributeError: "),
        ("{}", "KeyError: 'static_columns'"),
        (json.dumps({**asdict(_RUNNING), "of_later_version": 1}), "unexpected keyword argument 'of_later_version'"),
    ],
    ids=["empty", "cut", "other JSON", "no state", "later version"],
)
def test_a_state_that_is_not_understood_is_told_with_the_way_on(stored: str, why: str) -> None:
    """After a power failure, or with an older wheel, each run gives an error of one line, also with --rebuild, which
    reads the state first."""
    with pytest.raises(DamagedStateError) as raised:
        applied_in("/lake/t/applied", stored, "UTC")
    text = str(raised.value)
    assert text.startswith("state in /lake/t/applied: the newest file is damaged, or a later version wrote it (")
    assert why in text
    assert text.endswith("mirror the topic into a new target; the tables are as they were")
    assert "\n" not in text
    assert applied_in("/lake/t/applied", json.dumps(asdict(_RUNNING)), "UTC") == _RUNNING


def test_a_job_on_a_mirror_has_the_numbers_of_its_tables() -> None:
    """The option need not be repeated; another value would compare or write different texts."""
    given = {"serviceUrl": "pulsar://h:1", "adminUrl": "http://h:2", "topic": "t"}
    plain = BridgeOptions.from_mapping(given)
    assert fit_numbers(plain, "string", "/lake/t") == BridgeOptions.from_mapping({**given, "numbers": "string"})
    for numbers in ("decimal", "string"):
        same = BridgeOptions.from_mapping({**given, "NUMBERS": numbers}).of_topic(TOPIC)
        assert fit_numbers(same, same.numbers, "/lake/t") == same
    asked = BridgeOptions.from_mapping({**given, "numbers": "decimal"})
    with pytest.raises(ConfigError) as raised:
        fit_numbers(asked.of_topic(TOPIC), "string", "/lake/t")
    assert str(raised.value) == (
        "numbers: 'decimal' is given, but the tables below /lake/t have 'string': leave the option out, or mirror the topic into a "
        "new target"
    )


@pytest.mark.parametrize(
    ("applied", "records", "layers"),
    [(Applied(), 1_000_000, 1), (Applied(), 99_999, 1), (_RUNNING, 99_999, 3), (_RUNNING, 100_000, 13)],
    ids=["first, in ranges", "first, in one file", "few records", "many, in ten tasks"],
)
def test_layers_of_files_grow_with_large_merges(applied: Applied, records: int, layers: int) -> None:
    content = replace(NO_CONTENT, records=records)
    assert EpochPlan(TopicSchemas(topic="t", versions=()), applied, content, False, 0).layers(10) == layers


def test_keys_are_looked_up_where_that_reads_less() -> None:
    """They are looked up in large tables: fewer keys if a key may be in several files, and after many small merges."""
    schemas, size = TopicSchemas(topic="t", versions=()), 1_000 * (128 << 10)

    def plan(applied: Applied, table_bytes: int = size) -> EpochPlan:
        return EpochPlan(schemas, applied, NO_CONTENT, False, table_bytes)

    assert [plan(Applied()).is_sparse(keys) for keys in (1_000, 1_001)] == [True, False]
    assert [plan(Applied(layers=2)).is_sparse(keys) for keys in (500, 501)] == [True, False]
    assert [plan(Applied(epoch=400)).is_sparse(keys) for keys in (500, 501)] == [True, False]
    assert not plan(Applied(), (24 << 20) - 1).is_sparse(1)


@pytest.mark.parametrize(
    ("until", "reached", "left"),
    [
        ({TOPIC: (7, 3, -1)}, {TOPIC: (7, 2, -1)}, {TOPIC: (7, 3, -1)}),
        ({TOPIC: (7, 3, -1)}, {TOPIC: (7, 3, -1)}, None),
        ({TOPIC: (7, 3, -1), _OTHER: (1, 0, 0)}, {TOPIC: (9, 0, 0)}, {_OTHER: (1, 0, 0)}),
        ({}, {TOPIC: (7, 2, -1)}, None),
        (None, {TOPIC: (7, 2, -1)}, None),
    ],
)
def test_records_are_repeated_until_all_of_the_lost_epoch_were_read(
    until: Mapping[str, RecordPosition] | None,
    reached: Mapping[str, RecordPosition],
    left: Mapping[str, RecordPosition] | None,
) -> None:
    """A limit may divide the lost epoch's records between two micro-batches: the second part is repeated, too."""
    assert Applied(repeated_until=until).still_repeated(reached) == left


@pytest.mark.parametrize("server", [[NO_PARTITIONS, ledgers((9, 1))]], indirect=True)
def test_without_a_checkpoint_records_that_were_deleted_unread_are_noticed(server: Broker) -> None:
    """Otherwise the query would begin with the remaining records, and the mirror would count as complete."""
    applied = Applied(epoch=4, positions={TOPIC: (7, 2, -1)})
    with pytest.raises(DataLossError, match="records after position 7:2 and before 9:0 were deleted"):
        refuse_lost_records(applied, options(server))


@pytest.mark.parametrize("server", [[NO_PARTITIONS, ledgers((7, 4), (9, 1))]], indirect=True)
def test_without_a_checkpoint_a_mirror_whose_ledger_is_there_reads_on(server: Broker) -> None:
    refuse_lost_records(Applied(epoch=4, positions={TOPIC: (7, 2, -1)}), options(server))


@pytest.mark.parametrize("server", [[]], indirect=True)
def test_a_user_may_go_on_without_records_that_are_lost(server: Broker) -> None:
    """The admin service is not asked: this server has no answer."""
    given = options(server).model_copy(update={"fail_on_data_loss": False})
    refuse_lost_records(Applied(epoch=4, positions={TOPIC: (7, 2, -1)}), given)


def test_a_mirror_begins_at_the_starting_offsets_once() -> None:
    """If they applied again, a run without its checkpoint, or a rebuild, would skip records."""
    given = {"topic": "t", "STARTINGOFFSETS": "latest"}
    without = {"topic": "t"}
    assert given_from(Applied(), given) == given
    assert given_from(Applied(positions={TOPIC: (7, 2, -1)}), given) == without
    assert given_from(Applied(begins_anew=True), given) == without
    assert given_from(Applied(epoch=1, repeated_until={}), given) == without, "its first micro-batch was given up"


def test_a_user_is_told_what_starting_offsets_mean_for_this_run() -> None:
    """A new mirror has a hole from then on. Any other one does not use them."""
    given = {"serviceUrl": "pulsar://h:1", "adminUrl": "http://h:2", "topic": "t"}
    usual = BridgeOptions.from_mapping(given)
    latest = BridgeOptions.from_mapping({**given, "startingOffsets": "latest"})
    later = [_RUNNING, Applied(begins_anew=True), Applied(epoch=1, repeated_until={})]
    assert [start_note(each, usual, "/m") for each in [Applied(), *later]] == [None] * 4
    assert start_note(Applied(), latest, "/m") == (
        "the mirror below /m begins with startingOffsets=latest: it lacks every row that has no record after that, and it is not "
        "known until when its tables are complete; for all rows run it with --rebuild"
    )
    assert {start_note(each, latest, "/m") for each in later} == {
        "startingOffsets=latest is not used: the mirror below /m reads every record that it does not have; run it without this "
        "option, or it is not known until when its tables are complete"
    }


@pytest.mark.parametrize(
    ("first", "given", "lack"),
    [
        (Applied(), {}, None),
        (Applied(), {"startingOffsets": "latest"}, "the first run of this mirror had startingOffsets=latest"),
        (_RUNNING, {"startingOffsets": "latest"}, None),
        (_RUNNING, {"failOnDataLoss": "false"}, "a run of this mirror had failOnDataLoss=false"),
        (Applied(begins_anew=True), {"startingOffsets": "latest"}, None),
    ],
    ids=["all of the topic", "from its end", "an option that has no effect", "over a hole", "a rebuild"],
)
def test_a_mirror_that_may_lack_records_stays_one(first: Applied, given: Mapping[str, str], lack: str | None) -> None:
    """A later run without the option has the same gap. An earlier version's state does not say whether there is one."""
    without = {"serviceUrl": "pulsar://h:1", "adminUrl": "http://h:2", "topic": "t"}
    found = lack_of(first, BridgeOptions.from_mapping({**without, **given}))
    assert found == lack
    later = replace(_RUNNING, may_lack=found)
    assert lack_of(later, BridgeOptions.from_mapping(without)) == lack
    stored = asdict(later)
    assert applied_from_state(json.dumps(stored)) == later
    del stored["may_lack"]
    assert applied_from_state(json.dumps(stored)).may_lack is None


def test_replaced_runs_are_kept_for_an_hour() -> None:
    """A reader that began before still uses them; later their files are deleted."""
    now_s = int(time.time())
    young, old = ReplacedRun("young", now_s - 3_000), ReplacedRun("old", now_s - 4_000)
    first, second = Run(0, "first", 1), Run(1, "second", 1)
    found = Applied(runs=(first, second), replaced_runs=(old, young)).replaced_without([second])
    assert [each.name for each in found] == ["young", "first"]
    assert found[1].at_s >= now_s


class _Tables(MirrorTables):
    """The state of a mirror in memory; `found` is how much of a failed run's epoch the tables have."""

    def __init__(self, state: Applied, found: Unfinished) -> None:
        self.state, self.found = state, found
        self.taken_back: list[int] = []

    def applied(self) -> Applied:
        return self.state

    def save_applied(self, applied: Applied) -> None:
        self.state = applied

    def _are_made(self) -> bool:
        return True

    def _take_back(self, epoch: int) -> Unfinished:
        self.taken_back.append(epoch)
        return self.found


_FIRST, _NEXT = BegunEpoch({TOPIC: (7, 3, -1)}), BegunEpoch({TOPIC: (7, 9, -1)}, ("a truncation",))


@pytest.mark.parametrize(
    ("begun", "found", "taken_back", "epoch", "repeated"),
    [
        (None, Unfinished.NOTHING, [], 4, None),
        (_NEXT, Unfinished.ALL, [], 4, None),
        (_FIRST, Unfinished.NOTHING, [5], 5, None),
        (_FIRST, Unfinished.TAKEN_BACK, [5], 5, None),
        (_FIRST, Unfinished.ALL, [5], 5, {TOPIC: (7, 3, -1)}),
    ],
    ids=["nothing was begun", "the same content", "no changes", "changes", "all changes"],
)
def test_an_epoch_with_other_content_gives_up_the_one_that_a_failed_run_has_begun(
    begun: BegunEpoch | None,
    found: Unfinished,
    taken_back: list[int],
    epoch: int,
    repeated: Mapping[str, RecordPosition] | None,
) -> None:
    """Otherwise change log and history would skip the new content, because they have the number already."""
    tables = _Tables(replace(_RUNNING, begun=begun), found)
    state = tables.begin_epoch(_NEXT.positions, _NEXT.without)
    assert state == tables.state == replace(_RUNNING, begun=_NEXT, epoch=epoch, repeated_until=repeated)
    assert tables.taken_back == taken_back


def test_the_tables_of_one_topic_are_not_used_for_another() -> None:
    """Partitions, a mirror without positions and a rebuild that has not begun are no reason to refuse."""
    partitions = {f"{TOPIC}-partition-{number}": (7, 2, 0) for number in range(2)}
    for applied in (_RUNNING, Applied(epoch=4, positions=partitions)):
        refuse_other_topic(applied, TOPIC, "/lake", "target")
        with pytest.raises(ConfigError) as error:
            refuse_other_topic(applied, _OTHER, "/lake", "target")
        assert str(error.value).startswith(
            f"target: the tables below /lake are a mirror of {TOPIC}, not of {_OTHER}; each topic needs a target of its own"
        )
    for applied in (Applied(), replace(_RUNNING, is_to_begin_anew=True)):
        refuse_other_topic(applied, _OTHER, "/lake", "target")
