"""What `cdc status` tells of a table whose events wait, from the log of its source."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from cdc.health.backlog import Backlog
from cdc.health.findings import Finding, Level
from cdc.health.source_log import SourceWarnings, last_error
from cdc.health.source_pace import SourcePace, pace_of
from cdc.health.sources import SourceView
from cdc.health.waiting_events import waiting_finding

_NOW_S = 1_795_453_200.0
_READ = ("persistent://public/default/cdc-events-shop.orders", "sub")
_PARKED = (
    "shop.orders is parked, its events wait: the data topic does not take the table's schema (org.apache.pulsar.client.api."
    "PulsarClientException$IncompatibleSchemaException: Unable to read schema: { "
    + '"name": "f", '
    * 1000
    + "}); set the topic's or namespace's schema compatibility strategy to "
    "one that allows the change, or use another destination topic; next attempt in 8.0 s"
)

_TAKEN = "shop.orders goes on: the data topic takes the table's schema"


def _line(text: str, *, ago_s: float = 5.0, level: str = "WARN", module: str = ".tables.schema_registration") -> str:
    time = datetime.fromtimestamp(_NOW_S - ago_s, UTC).strftime("%Y-%m-%dT%H:%M:%S,%f")[:-3] + "+0000"
    return f"{time} [cassandra-cdc-stderr] {level}  function-shop - source_connector{module}: {text}\n"


def _logs(folder: Path, *lines: str) -> Path:
    place = folder / "public" / "default" / "shop"
    place.mkdir(parents=True)
    (place / "shop-0.log").write_text("".join(lines))
    return folder


def _source(**options: str) -> SourceView:
    config = {"topicName": "data-shop.orders", "configs": {"keyspace": "shop", "table": "orders", **options}}
    instances = [{"instanceId": 0, "status": {"running": True, "error": ""}}]
    return SourceView.of("shop", config, {"numInstances": 1, "instances": instances})


def test_a_parked_table_is_a_failure_at_once_with_the_words_of_the_log(tmp_path: Path) -> None:
    """It was well for a minute, and then to be waited for. The Java client logs schemas on many lines behind it."""
    logs = _logs(tmp_path, _line(_PARKED), _line("reading the topic", level="INFO"), '  "type" : "record",\n' * 5_000)
    waiting = Backlog(messages=1, oldest_s=6.0, consumers=4)
    found = waiting_finding(
        "shop.orders", waiting, "data-shop.orders has 2 KiB", _READ, [_source()], SourceWarnings(logs, _NOW_S)
    )
    assert found.level is Level.FAILURE
    assert found.text.startswith(
        "1 message waits, the oldest for 6.0 s; data-shop.orders has 2 KiB; its source's log says:"
    )
    assert "shop.orders is parked, its events wait: the data topic does not take the table's schema" in found.text
    assert found.text.endswith("to one that allows the change, or use another destination topic; next attempt in 8.0 s")
    assert len(found.text) < 600


def test_a_table_that_was_parked_and_goes_on_is_well(tmp_path: Path) -> None:
    """A busy table always has a backlog: it was a failure for two minutes after the remedy."""
    logs = _logs(tmp_path, _line(_PARKED), _line(_TAKEN, level="INFO", ago_s=4.0))
    waiting = Backlog(messages=1, oldest_s=6.0, consumers=4)
    found = waiting_finding("shop.orders", waiting, "", _READ, [_source()], SourceWarnings(logs, _NOW_S))
    assert found.level is Level.OK
    place = logs / "public" / "default" / "shop" / "shop-0.log"
    place.write_text(_line(_PARKED) + _line(_TAKEN.replace("orders", "parts"), level="INFO", ago_s=4.0))
    assert "is parked" in SourceWarnings(logs, _NOW_S).about("shop", "shop.orders")
    place.write_text(_line(_PARKED, ago_s=3.0) + _line(_TAKEN, level="INFO", ago_s=4.0))
    assert "is parked" in SourceWarnings(logs, _NOW_S).about("shop", "shop.orders")


def test_the_logs_of_a_source_are_read_once_for_all_its_tables(tmp_path: Path) -> None:
    """The end of a log is a mebibyte. It was read and searched once for each table with a backlog."""
    logs = _logs(tmp_path, _line(_PARKED))
    logged = SourceWarnings(logs, _NOW_S)
    assert "is parked" in logged.about("shop", "shop.orders")
    (logs / "public" / "default" / "shop" / "shop-0.log").write_text(_line(_PARKED.replace("orders", "parts")))
    assert logged.about("shop", "shop.parts") == ""
    assert "is parked" in logged.about("shop", "shop.orders")
    assert "is parked" in SourceWarnings(logs, _NOW_S).about("shop", "shop.parts")


def test_a_row_that_is_tried_again_is_a_warning(tmp_path: Path) -> None:
    """The events of other rows continue."""
    logs = _logs(tmp_path, _line("shop.orders (7): ReadTimeout: no answer; attempt 3 in 0.4 s", module=".attempts"))
    waiting = Backlog(messages=1, oldest_s=6.0, consumers=4)
    found = waiting_finding("shop.orders", waiting, "", _READ, [_source()], SourceWarnings(logs, _NOW_S))
    assert (found.level, "attempt 3 in 0.4 s" in found.text) == (Level.WARNING, True)


@pytest.mark.parametrize(
    "line",
    [
        _line(_PARKED, ago_s=200.0),
        _line(_PARKED.replace("shop.orders", "shop.orders2")),
        _line(_PARKED.replace("shop.orders", "eshop.orders")),
        _line("data-shop.orders: no retention", level="ERROR", module=".tables.data_topic_policies"),
        _PARKED,
        "",
    ],
    ids=["some time ago", "a longer name", "a longer keyspace", "what delays no event", "no log line", "an empty log"],
)
def test_other_lines_are_not_about_the_table(line: str, tmp_path: Path) -> None:
    """The table is well while its oldest event has waited for less than a minute."""
    logs = _logs(tmp_path, line)
    assert SourceWarnings(logs, _NOW_S).about("shop", "shop.orders") == ""
    waiting = Backlog(messages=1, oldest_s=6.0, consumers=4)
    assert (
        waiting_finding("shop.orders", waiting, "", _READ, [_source()], SourceWarnings(logs, _NOW_S)).level is Level.OK
    )


def test_without_the_logs_the_remedy_names_the_log() -> None:
    """Only the log has the reason why a table is parked."""
    found = waiting_finding(
        "shop.orders",
        Backlog(messages=1, oldest_s=61.0, consumers=4),
        "",
        _READ,
        [_source()],
        SourceWarnings(None, _NOW_S),
    )
    assert found.level is Level.WARNING
    assert (
        "see logs/functions/public/default/shop/shop-0.log on the worker: it says which table is parked" in found.remedy
    )


@pytest.mark.parametrize(("stalled_s", "level"), [(19.0, Level.OK), (21.0, Level.WARNING)])
def test_without_the_logs_a_table_that_stalls_is_named_within_half_a_minute(stalled_s: float, level: Level) -> None:
    """A parked table was well for a minute, and then the remedy was to wait."""
    waiting = Backlog(messages=1, oldest_s=25.0, consumers=4, stalled_s=stalled_s)
    found = waiting_finding("shop.orders", waiting, "", _READ, [_source()], SourceWarnings(None, _NOW_S))
    assert found.level is level
    assert found.text.endswith("; none of its events was acknowledged for 21.0 s") is (level is Level.WARNING)
    if level is Level.WARNING:
        assert found.remedy.startswith(
            "see logs/functions/public/default/shop/shop-0.log on the worker: it says whether"
        )
    else:
        assert found.remedy == ""


def _stalled(pace: SourcePace, *, stalled_s: float = 25.0, oldest_s: float = 25.0, logs: Path | None = None) -> Finding:
    waiting = Backlog(messages=1, oldest_s=oldest_s, consumers=4, stalled_s=stalled_s)
    return waiting_finding("shop.orders", waiting, "", _READ, [_source()], SourceWarnings(logs, _NOW_S), pace)


def test_a_table_that_waits_for_its_turn_is_not_said_to_be_parked() -> None:
    """All tables of a source catch up, and share its reads. Each one without an acknowledgement for 20 s was named."""
    catching_up = SourcePace(moving=2, behind=2, still=7)
    assert _stalled(catching_up).level is Level.OK
    late = _stalled(catching_up, stalled_s=61.0, oldest_s=61.0)
    assert (late.level, "acknowledged" in late.text, "parked" in late.text) == (Level.WARNING, False, False)
    assert late.text.endswith("; its source catches up with 2 other tables")
    assert late.remedy.startswith("wait until it has caught up; ")
    large_message = SourcePace(record_s=3.0)
    assert _stalled(large_message).level is Level.OK
    for_too_long = _stalled(catching_up, stalled_s=601.0, oldest_s=601.0)
    assert (for_too_long.level, "acknowledged for 10 min" in for_too_long.text) == (Level.FAILURE, True)


def test_a_table_that_stands_while_the_others_of_its_source_go_on_may_be_parked() -> None:
    """The others have no backlog to speak of, so it is not their turn that it waits for."""
    found = _stalled(SourcePace(moving=3, behind=0, record_s=0.5))
    assert found.level is Level.WARNING
    assert found.text.endswith("; none of its events was acknowledged for 25.0 s, while 3 other tables go on")
    assert "it says whether the table is parked" in found.remedy


def test_a_source_that_stands_still_as_a_whole_is_not_a_parked_table() -> None:
    """Cassandra or Pulsar is the usual reason."""
    found = _stalled(SourcePace(still=2, record_s=300.0))
    assert found.text.endswith("acknowledged for 25.0 s, and none of 2 other tables of its source")
    assert found.remedy.startswith("see that Cassandra and Pulsar answer (cdc doctor), and logs/functions/")
    assert "parked" not in found.remedy


def test_an_option_that_line_yaml_has_is_not_asked_for(tmp_path: Path) -> None:
    """With the logs at hand, the remedy still said that functionsLogDir would show them."""
    stands = SourcePace(moving=3)
    assert "functionsLogDir" in _stalled(stands).remedy
    assert "functionsLogDir" not in _stalled(stands, logs=_logs(tmp_path, "")).remedy


def test_the_pace_of_a_source_is_that_of_its_other_tables() -> None:
    """One that catches up, one that is up to date, one that stands, and one that nobody reads."""
    others = [
        Backlog(messages=9, oldest_s=300.0, consumers=1, stalled_s=1.0, acknowledged_s=1.0),
        Backlog(messages=0, oldest_s=0.0, consumers=1, acknowledged_s=2.0),
        Backlog(messages=1, oldest_s=30.0, consumers=1, stalled_s=30.0, acknowledged_s=900.0),
        Backlog(messages=1, oldest_s=30.0, consumers=0, acknowledged_s=1.0),
    ]
    instances = [
        {"instanceId": at, "status": {"running": True, "lastReceivedTime": int((_NOW_S - ago_s) * 1000)}}
        for at, ago_s in enumerate((7, 70))
    ]
    source = SourceView.of("shop", {"configs": {}}, {"numInstances": 2, "instances": instances})
    assert pace_of([source], others, _NOW_S) == SourcePace(moving=2, behind=1, still=1, record_s=7.0)
    assert pace_of([_source()], [], _NOW_S) == SourcePace()


def test_a_table_without_waiting_events_is_well_whatever_the_log_says(tmp_path: Path) -> None:
    """The warning may be about something that is over."""
    logs = _logs(tmp_path, _line(_PARKED))
    found = waiting_finding(
        "shop.orders",
        Backlog(messages=0, oldest_s=0.0, consumers=4),
        "",
        _READ,
        [_source()],
        SourceWarnings(logs, _NOW_S),
    )
    assert found.level is Level.OK


def test_of_a_long_log_the_end_is_read(tmp_path: Path) -> None:
    """The last error may be before lines that report none."""
    logs = _logs(
        tmp_path, "x" * 1_000_000 + "\n", _line("it broke", level="ERROR"), _line("goes on", level="INFO") * 50
    )
    assert last_error(logs, "shop", _NOW_S).endswith("it broke")
    assert last_error(logs, "other", _NOW_S) == ""


def test_a_warning_is_not_why_a_source_does_not_run(tmp_path: Path) -> None:
    """A source that ran on for hours after it was shown as the reason of its end."""
    text = "cannot read system_schema: Cassandra at 10.0.0.1: ConnectionRefusedError: [Errno 111] Connection refused"
    assert last_error(_logs(tmp_path, _line(text, module=".source")), "shop", _NOW_S) == ""


@pytest.mark.parametrize(("ago_s", "is_shown"), [(30.0, True), (600.0, False)], ids=["a start in a row", "long over"])
def test_an_error_before_the_last_start_is_shown_only_if_it_is_new(
    ago_s: float, is_shown: bool, tmp_path: Path
) -> None:
    """An instance that cannot start ends and is started again. An option that was corrected is not wrong any more."""
    told = _line("open failed", ago_s=ago_s, level="ERROR") + "java.lang.IllegalArgumentException: tabl: is no option\n"
    start = _line("Trying Loading file as NAR file: source.nar", level="INFO")
    logs = _logs(tmp_path, told, start, _line("the row path runs native", level="INFO"))
    found = last_error(logs, "shop", _NOW_S)
    assert found == ("java.lang.IllegalArgumentException: tabl: is no option" if is_shown else "")


def test_a_source_that_does_not_reach_cassandra_gets_the_options_to_correct(tmp_path: Path) -> None:
    """No restart helps, and Pulsar does it by itself."""
    reason = (
        "java.lang.IllegalStateException: Cassandra at 10.9.9.9 port 9042: timed out (tried for 30 s); see that Cassandra is "
        "up and that the options lead to it: Pulsar starts the instance again and again"
    )
    status = {"running": False, "error": reason, "numRestarts": 1}
    config = {"topicName": "data-shop.orders", "configs": {"keyspace": "shop", "table": "orders"}}
    view = SourceView.of("shop", config, {"numInstances": 1, "instances": [{"instanceId": 0, "status": status}]})
    [found] = view.findings(tmp_path, _NOW_S)
    assert found.remedy == (
        "start Cassandra, or correct contactPoints and port of its --source-config with pulsar-admin sources update --name "
        "shop; Pulsar starts it again by itself"
    )


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (
            {"events.topic": "cdc-event-shop.orders"},
            "its source shop reads cdc-event-shop.orders instead of cdc-events-shop",
        ),
        (
            {"events.subscription.name": "mine"},
            "its source shop reads with the subscription mine, and the agents keep sub",
        ),
        (
            {},
            "its source shop runs, and waits: logs/functions/public/default/shop/shop-0.log on the worker says for what",
        ),
        (
            {"contactPoints": "10.9.9.9,10.9.9.8"},
            "its source shop runs, and waits: logs/functions/public/default/shop/shop-0.log on the worker says for what; it asks"
            " Cassandra at 10.9.9.9, 10.9.9.8: correct its option contactPoints if that is wrong",
        ),
    ],
    ids=["another topic", "another subscription", "another reason", "another address"],
)
def test_a_source_that_reads_something_else_is_named_with_the_option(options: dict[str, str], remedy: str) -> None:
    """The log was to be read, which only says that a topic does not exist, or nothing at all."""
    waiting = Backlog(messages=1, oldest_s=6.0, consumers=0)
    found = waiting_finding("shop.orders", waiting, "", _READ, [_source(**options)], SourceWarnings(None, _NOW_S))
    assert found.level is Level.FAILURE
    assert found.remedy.startswith(remedy)


def test_an_instance_that_does_not_reach_cassandra_is_told_while_it_waits(tmp_path: Path) -> None:
    """It counts as running for half a minute, then it ends and is started again: the status said that it runs."""
    text = "waiting: cannot read Cassandra at 10.9.9.9 port 9042: Connection refused"
    logs = _logs(tmp_path, _line("the row path runs native", level="INFO"), _line(text, module=".source"))
    [found] = _source().findings(logs, _NOW_S)
    assert found.level is Level.WARNING
    assert (
        found.text == "1 of 1 instances run, and waits: cannot read Cassandra at 10.9.9.9 port 9042: Connection refused"
    )
    assert found.remedy.startswith("start Cassandra, or correct contactPoints and port")
    [earlier] = _source().findings(logs, _NOW_S + 60)
    assert earlier.text == "1 of 1 instances run"  # it says so every 30 s while it waits
    with (logs / "public" / "default" / "shop" / "shop-0.log").open("a") as file:
        file.write(_line("shop.orders: table id 1, schema 1", level="INFO", module=".tables.table_tracker"))
    assert [each.level for each in _source().findings(logs, _NOW_S)] == [Level.OK]
