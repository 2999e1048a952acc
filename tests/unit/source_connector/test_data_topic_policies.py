"""DataTopicPolicies and PulsarAdmin: their requests, reports and settings, with HTTP answers as of Pulsar 4."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from schemas.errors import ConfigError
from source_connector.configuration.config import SourceConfig
from source_connector.errors import AdminError
from source_connector.events.pulsar_access import PulsarOptions
from source_connector.events.pulsar_admin import PulsarAdmin
from source_connector.tables.data_topic_policies import DataTopicPolicies, trimming_of
from tests.servers.http_brokers import Answering, Request, broker, redirects_to

_TOPIC = "persistent://public/default/data-ks.t"
_NOTHING_KEPT = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
_FOR_EVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


def _policies(retention: Mapping[str, int], ttl_s: int = 0) -> Answering:
    """A broker with these policies for all topics; a retention that a request sets is in force."""
    kept = dict(retention)

    def answer(request: Request) -> tuple[int, Mapping[str, str], object]:
        if request.method == "POST":
            assert isinstance(request.body, dict)
            kept.update(request.body)
            return 204, {}, None
        found: dict[str, object] = {
            "retention?applied=true": kept,
            **{f"messageTTL?applied={each}": ttl_s for each in ("true", "false")},
        }
        return 200, {}, found.get(request.path.rpartition("/")[2])

    def with_runtime(request: Request) -> tuple[int, Mapping[str, str], object]:
        is_runtime = request.path.endswith("/brokers/configuration/runtime")
        return (200, {}, {"subscriptionExpirationTimeMinutes": "0"}) if is_runtime else answer(request)

    return with_runtime


def _admin(url: str, plugin: str = "", params: str = "") -> PulsarAdmin:
    return PulsarAdmin(url, PulsarOptions(service_url="pulsar://broker", auth_plugin=plugin, auth_params=params))


@pytest.mark.parametrize(
    ("retention", "ttl_s", "wanted", "told"),
    [
        (_FOR_EVER, 0, None, []),
        (_NOTHING_KEPT, 0, None, ["records that no subscription holds are deleted, because there is no retention"]),
        ({"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}, 0, None, []),
        ({"retentionTimeInMinutes": 60, "retentionSizeInMB": 512}, 0, None, []),
        (_FOR_EVER, 60, None, ["the message TTL drops records that were not read for 60 s"]),
        (_NOTHING_KEPT, 60, -1, ["the message TTL drops records that were not read for 60 s"]),
    ],
)
def test_what_is_dropped_is_told_with_what_mends_it(
    retention: Mapping[str, int], ttl_s: int, wanted: int | None, told: list[str]
) -> None:
    """A retention that somebody has chosen is not changed."""
    with broker(_policies(retention, ttl_s)) as server:
        found = trimming_of(_admin(server.url).policy, _TOPIC, wanted)
    assert [each.partition(";")[0] for each in found] == told
    assert all("fix it with" in each for each in found)


def test_the_wanted_retention_is_set_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is set if the topic has another one."""
    caplog.set_level("INFO")
    with broker(_policies(_NOTHING_KEPT)) as server:
        admin = _admin(server.url)
        policies = DataTopicPolicies(admin, -1)
        for _ in range(2):
            policies.check(admin, _TOPIC)
        assert [each.body for each in server.asked if each.method == "POST"] == [_FOR_EVER]
    assert policies.hazards == 0
    assert f"{_TOPIC}: keeps its records for ever" in caplog.text


def test_a_topic_is_looked_at_when_it_is_there_and_told_as_long_as_it_is_so(caplog: pytest.LogCaptureFixture) -> None:
    """A separate thread checks the topic; the metrics count hazards, and topics that were not checked."""
    with broker(_policies(_NOTHING_KEPT, ttl_s=60)) as server:
        policies = DataTopicPolicies(_admin(f"{server.url}/"), None)
        policies.follow("data-ks.t")
        assert policies.hazards + policies.unknown > 0
        deadline = time.monotonic() + 60
        while policies.unknown and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (policies.hazards, policies.unknown) == (2, 0)
        asked = len(server.asked)
        policies.follow(_TOPIC)
        policies.check(_admin(server.url), _TOPIC)
        assert len(server.asked) == 2 * asked
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 4


def test_without_the_address_or_the_right_it_is_said_that_nobody_knows(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so once, and the metric counts the topics that were not checked."""
    without = DataTopicPolicies(None, None)
    without.follow("data-ks.a")
    without.follow("data-ks.b")
    assert without.unknown == 2
    assert [record.message for record in caplog.records if "set the option pulsarAdminUrl" in record.message] != []
    caplog.clear()
    with broker(lambda request: (403, {}, {"reason": "Unauthorized"})) as server:
        admin = _admin(server.url)
        refused = DataTopicPolicies(admin, None)
        for number in range(2):
            refused.check(admin, f"{_TOPIC}{number}")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "403 Unauthorized; grant the right to it" in caplog.text


@pytest.mark.parametrize(
    ("plugin", "params", "header"),
    [
        ("org.apache.pulsar.client.impl.auth.AuthenticationToken", "token:abc", "Bearer abc"),
        ("org.apache.pulsar.client.impl.auth.AuthenticationToken", "file://{}", "Bearer of a file"),
        ("basic", json.dumps({"userId": "u", "password": "p"}), f"Basic {base64.b64encode(b'u:p').decode()}"),
        ("org.apache.pulsar.client.impl.auth.AuthenticationDisabled", "", None),
    ],
)
def test_credentials_are_those_that_events_are_read_with(
    tmp_path: Path, plugin: str, params: str, header: str | None
) -> None:
    """The credentials are also sent after a redirect to the broker that owns the topic."""
    file = tmp_path / "token"
    file.write_text("of a file\n")
    with broker(_policies(_FOR_EVER)) as owner, broker(redirects_to(owner.url)) as other:
        assert _admin(other.url, plugin, params.replace("{}", str(file))).policy(_TOPIC, "/retention?applied=true")
        assert [each.authorization for each in (*owner.asked, *other.asked)] == [header, header]


@pytest.mark.parametrize(
    ("plugin", "params"),
    [("basic", "hunter2"), ("token", "file:///no/such/hunter2file"), ("tls", "hunter2"), ("oauth2", "hunter2")],
)
def test_credentials_that_cannot_be_used_are_an_error_without_them(plugin: str, params: str) -> None:
    """Parameters may be secrets, so the error does not show them; it may show a file's name."""
    with pytest.raises(AdminError) as raised:
        _admin("http://127.0.0.1:1", plugin, params).policy(_TOPIC, "/x")
    assert "hunter2" not in str(raised.value).replace("hunter2file", "")


def test_nobody_at_the_address_is_an_error_that_names_it() -> None:
    """The error also names the option."""
    with pytest.raises(AdminError, match=r"pulsarAdminUrl: http://127.0.0.1:1 does not answer: .*refused"):
        _admin("http://127.0.0.1:1").policy(_TOPIC, "/x")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dataTopic.retentionMinutes": 60}, "dataTopic.retentionMinutes: needs pulsarAdminUrl"),
        ({"pulsarAdminUrl": "http://x", "dataTopic.retentionMinutes": 0}, "or -1 for ever; leave it out"),
        ({"pulsarAdminUrl": "http://x", "dataTopic.retentionMinutes": -2}, "greater than or equal to -1"),
        ({"pulsarAdminUrl": "pulsar://x"}, "pulsarAdminUrl: is the address of Pulsar's admin interface"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, object], message: str) -> None:
    """Each error says what to do."""
    right = {
        "keyspace": "ks",
        "table": "t",
        "contactPoints": "node",
        "loadBalancing.localDc": "dc1",
        "pulsarServiceUrl": "pulsar://broker:6650",
    }
    with pytest.raises(ConfigError, match=message):
        SourceConfig.from_mapping(right | given)
