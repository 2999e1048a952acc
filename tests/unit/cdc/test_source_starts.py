"""A source that was created a moment ago is starting, and not down, for a limited time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.health.findings import Finding, Level
from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import PulsarService
from cdc.health.sources import SourceView, with_starts
from cdc.health.tables import tables
from cdc.health.worker_requests import last_request
from tests.golden.health_answers import HEALTH, recorded
from tests.servers.pages import Page, page, serving
from tests.servers.worker_requests import source_request

_REQUESTS: Final = "/admin/v2/persistent/public/functions/metadata/examinemessage"
_PUBLISHED: Final = "2026-11-23T17:10:02.500Z"


def _asked(content: bytes, published: str = _PUBLISHED, date: str = "Mon, 23 Nov 2026 17:10:05 GMT") -> Page:
    return Page(content, 200, date, (("X-Pulsar-publish-time", published),))


def _found(status: Mapping[str, Any], requests: Page | None, logs: Path | None = None) -> Finding:
    with serving({} if requests is None else {_REQUESTS: requests}) as url:
        with PulsarService(LineConfig.from_mapping({"pulsarAdminUrl": url})) as service:
            [view] = with_starts(service, [SourceView.of("shop", recorded("source"), status)])
        [finding] = view.findings(logs, 0.0)
    return finding


def test_a_source_that_was_just_created_is_starting() -> None:
    """It was a failure, with a restart as remedy."""
    found = _found(recorded("source-starting"), _asked(source_request("shop")))
    assert (found.level, found.subject) == (Level.WARNING, "shop")
    assert found.text == "is starting: 0 of 1 instances run; created, changed or started 2.5 s ago"
    assert found.remedy.startswith("wait: ")


def test_the_request_of_a_worker_is_understood() -> None:
    """It was recorded from Pulsar 4.0.8 after `sources create`."""
    found = _found(recorded("source-starting"), _asked((HEALTH / "worker-request.bin").read_bytes()))
    assert (found.level, found.text.partition(":")[0]) == (Level.WARNING, "is starting")


@pytest.mark.parametrize(
    "requests",
    [
        None,
        page({"reason": "no permission"}, 403),
        Page(source_request("shop")),
        _asked(source_request("shop"), published="yesterday"),
        _asked(source_request("shop"), published="2026-11-23T17:08:30.000Z"),
        _asked(source_request("shops")),
        _asked(source_request("shop", state=1)),
        _asked(b"\x1a\x7f"),
        _asked(b"\xff"),
        _asked(b"no request"),
        _asked(b""),
    ],
    ids=["none", "refused", "no time", "no date", "old", "other", "stop", "cut", "cut key", "foreign", "empty"],
)
def test_without_a_request_to_start_it_a_source_is_down(requests: Page | None) -> None:
    """A failure is never hidden by a missing right, by another request, or by content that is not understood."""
    found = _found(recorded("source-starting"), requests)
    assert (found.level, found.text) == (
        Level.FAILURE,
        "is not running: 0 of 1 instances run (UNAVAILABLE: io exception)",
    )


def _status(**changes: object) -> Mapping[str, Any]:
    status: dict[str, Any] = recorded("source-starting")
    status["instances"][0]["status"].update(changes)
    return status


@pytest.mark.parametrize(
    "changes",
    [
        {"numRestarts": 1},
        {"error": "HTTP 503 Service Unavailable"},
        {"latestSystemExceptions": [{"exceptionString": "java.lang.Exception: no", "timestampMs": 1}]},
    ],
)
def test_a_start_that_has_failed_is_a_failure(changes: dict[str, object]) -> None:
    """The worker reports it, however new the source is."""
    assert _found(_status(**changes), _asked(source_request("shop"))).level is Level.FAILURE


def test_a_source_that_the_worker_has_not_scheduled_is_starting() -> None:
    """The worker then has no list of exceptions, as for a source that somebody has stopped."""
    scheduled = _status(error="Source has not been scheduled")
    assert _found(scheduled, _asked(source_request("shop"))).level is Level.WARNING
    stopped = recorded("source-stopped")
    assert _found(stopped, _asked(source_request("shop", state=0))).text.startswith("is starting: ")
    found = _found(stopped, _asked(source_request("shop", state=1)))
    assert (found.level, found.text) == (Level.FAILURE, "is stopped: 0 of 1 instances run")


@pytest.mark.parametrize(
    ("state", "error", "is_stopped"),
    [
        (1, "HTTP 503 Service Unavailable", True),
        (0, "HTTP 503 Service Unavailable", False),
        (1, "UNAVAILABLE: io exception", False),
    ],
    ids=["stopped", "started", "it is just ending"],
)
def test_a_source_that_was_stopped_after_a_failed_start_is_stopped(state: int, error: str, is_stopped: bool) -> None:
    """The worker still reports the failure. The watch started such a source again, although somebody had stopped it."""
    request = _asked(source_request("shop", state=state), published="2026-11-23T16:10:02.500Z")
    with (
        serving({_REQUESTS: request}) as url,
        PulsarService(LineConfig.from_mapping({"pulsarAdminUrl": url})) as service,
    ):
        [view] = with_starts(service, [SourceView.of("shop", recorded("source"), _status(error=error))])
    assert (view.is_stopped, view.is_down) == (is_stopped, not is_stopped)


def test_a_wrong_option_is_a_failure_at_once(tmp_path: Path) -> None:
    """The instance's log has it before the worker has noticed that the instance ended."""
    log = tmp_path / "public" / "default" / "shop" / "shop-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("java.lang.IllegalArgumentException: events.maxWaitng: is not an option of this connector\n")
    found = _found(recorded("source-starting"), _asked(source_request("shop")), tmp_path)
    assert (found.level, "sources update" in found.remedy) == (Level.FAILURE, True)


def test_the_newest_requests_are_read_up_to_the_limit() -> None:
    """The server repeats the same message. Another source's requests do not hide that nothing is known."""
    with (
        serving({_REQUESTS: _asked(source_request("other"))}) as url,
        PulsarService(LineConfig.from_mapping({"pulsarAdminUrl": url})) as service,
    ):
        assert last_request(service, "public/default", "shop", 90.0) is None
        found = last_request(service, "public/default", "other", 90.0)
    assert found is not None
    assert (found.age_s, found.is_stop) == (2.5, False)


def test_a_table_whose_source_starts_is_not_without_a_source() -> None:
    """A table that the source does not publish is."""
    events = "/admin/v2/persistent/public/default/cdc-events-"
    stats = {"subscriptions": {"sub": {"msgBacklog": 1, "consumers": []}}}
    pages = {
        f"{events}shop.{name}/{what}": page({"partitions": 0} if what == "partitions" else stats)
        for name in ("orders", "other")
        for what in ("partitions", "stats")
    }
    source = {"className": "", "configs": {"tables": "shop.orders"}}
    view = replace(SourceView.of("shop", source, recorded("source-starting")), starts_for_s=2.5)
    names = [f"persistent://public/default/cdc-events-shop.{name}" for name in ("orders", "other")]
    with serving(pages) as url:
        config = LineConfig.from_mapping({"pulsarAdminUrl": url, "eventsSubscriptionName": "sub"})
        with PulsarService(config) as service:
            orders, other, _ = tables(service, config, names, [view], 0.0)
    assert (orders.level, orders.text.startswith("its source is starting: 1 message waits; ")) == (Level.WARNING, True)
    assert (other.level, other.text.startswith("no source reads its events: ")) == (Level.FAILURE, True)
