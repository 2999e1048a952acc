"""EventsTopics: its requests to Pulsar's admin interface, over real HTTP. No message shows a secret."""

from __future__ import annotations

import itertools
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from change_agent.configuration.connections import PulsarAuth
from change_agent.errors import PublishError, TopicLostError
from change_agent.positions.inflight import Place
from change_agent.publishing import events_topics
from change_agent.publishing.event_producers import EventProducers
from change_agent.publishing.events_topics import EventsTopics
from change_agent.publishing.partition_counts import PartitionCounts
from change_agent.publishing.topic_checks import LostTopic, TopicChecks, TopicState
from schemas.errors import ConfigError
from tests.servers.http_brokers import Broker, Request, broker, owner_of_all, redirects_to
from tests.servers.token_issuer import OAUTH2_PLUGIN, key_file, token_issuer

_TOPIC = "persistent://tenant/ns/cdc-events-ks.t"
_PATH = "/admin/v2/persistent/tenant/ns/cdc-events-ks.t"
_STATS = f"{_PATH}/partitioned-stats?getPreciseBacklog=true&perPartition=true"


class _Server:
    """A server that answers by method and path, and records the requests."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: dict[tuple[str, str], tuple[int, object]] = {}
        self.requests: list[tuple[str, str, object]] = []
        self.authorization: str | None = None
        self.conflicts: int | None = None
        """How many requests to create the topic are refused before it exists; None if `answers` says it."""
        self.is_made = False
        """True once the topic exists. If `made_by_others` is set, it exists after the last refusal."""
        self.made_by_others = False

    def answer(self, request: Request) -> tuple[int, Mapping[str, str], object]:
        method, path = request.method, request.path
        self.requests.append((method, path, request.body))
        self.authorization = request.authorization
        status, content = self.answers.get((method, path), (404, {"reason": "not found"}))
        if path.endswith("/partitions"):
            status, content = self.makes(method) or (status, content)
        return status, {}, content

    def makes(self, method: str) -> tuple[int, object] | None:
        """The answer to a request about the topic's partitions while the topic does not exist; None when it exists."""
        if self.conflicts is None or self.is_made:
            return None
        if method == "PUT" and not self.conflicts:
            self.is_made = True
            return None
        if method == "PUT":
            self.conflicts -= 1
            self.is_made = self.made_by_others and not self.conflicts
        return (409 if method == "PUT" else 404), {"reason": "bare partitions exist"}


@pytest.fixture
def server() -> Iterator[_Server]:
    """A running HTTP server."""
    made = _Server()
    with broker(made.answer) as running:
        made.url = running.url
        yield made


def _topics(server: _Server | Broker, *, create: bool = True, auth: PulsarAuth | None = None) -> EventsTopics:
    return EventsTopics(
        admin_url=server.url,
        auth=auth,
        tls=ssl.create_default_context(),
        subscription="sub",
        partitions=4,
        create=create,
    )


def _stats(partitions: int, *subscriptions: str, mark: str | None = "m") -> tuple[int, object]:
    """An answer with the statistics of all partitions."""
    properties = {} if mark is None else {"cdc-subscription": mark}
    each = {name: {"subscriptionProperties": properties, "msgBacklog": 0} for name in subscriptions}
    return 200, {"partitions": {f"{_TOPIC}-partition-{index}": {"subscriptions": each} for index in range(partitions)}}


def test_a_missing_topic_is_made_with_its_subscription_at_the_beginning(server: _Server) -> None:
    """The subscription must exist before the first event. The agent that created the topic sets the mark last."""
    server.answers = {
        ("PUT", f"{_PATH}/partitions"): (204, None),
        ("GET", f"{_PATH}/partitions"): (200, {"partitions": 4}),
        ("PUT", f"{_PATH}/subscription/sub"): (204, None),
        ("PUT", f"{_PATH}/subscription/sub/properties"): (204, None),
        ("GET", _STATS): _stats(4, "sub", mark=None),
    }
    assert _topics(server).ensure(_TOPIC) == TopicState(partitions=4, mark=None, is_drained=True)
    (_, _, made), (_, _, subscribed), *looked = server.requests
    assert made == 4
    assert subscribed == {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    look = [
        ("GET", f"{_PATH}/partitions"),
        ("GET", f"{_PATH}/partitioned-internalStats"),
        ("GET", _STATS),
    ]
    assert [(method, path) for method, path, _ in looked] == [
        *look,
        ("PUT", f"{_PATH}/subscription/sub/properties"),
        *look,
    ]
    (mark,) = [body for _, path, body in looked if path.endswith("/properties")]
    assert isinstance(mark, dict)
    assert len(mark["cdc-subscription"]) == 32


def test_what_is_there_already_is_taken_as_it_is(server: _Server) -> None:
    """Status 409 means that the topic or subscription exists. The topic keeps its number of partitions."""
    server.answers = {
        ("PUT", f"{_PATH}/partitions"): (409, {"reason": "This topic already exists"}),
        ("GET", f"{_PATH}/partitions"): (200, {"partitions": 7}),
        ("PUT", f"{_PATH}/subscription/sub"): (409, {"reason": "Subscription already exists"}),
        ("GET", _STATS): _stats(7, "sub"),
    }
    assert _topics(server).ensure(_TOPIC).partitions == 7


def test_a_subscription_that_two_agents_made_together_keeps_its_marks(server: _Server) -> None:
    """Each agent created it in some partitions. With another mark, the other agent would find another subscription."""
    status, both = _stats(3, "sub", mark="b")
    assert isinstance(both, dict)
    other = {"subscriptionProperties": {"cdc-subscription": "a"}, "msgBacklog": 0}
    both["partitions"][f"{_TOPIC}-partition-1"] = {"subscriptions": {"sub": other}}
    server.answers = {
        ("PUT", f"{_PATH}/partitions"): (409, {"reason": "This topic already exists"}),
        ("GET", f"{_PATH}/partitions"): (200, {"partitions": 3}),
        ("PUT", f"{_PATH}/subscription/sub"): (409, {"reason": "Subscription already exists"}),
        ("GET", _STATS): (status, both),
    }
    assert _topics(server).ensure(_TOPIC).mark == "a,b"
    assert not [path for _, path, _ in server.requests if path.endswith("/properties")]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((503, {"reason": "Namespace bundle is being unloaded"}), "503 Namespace bundle is being unloaded"),
        ((404, {"reason": "Topic not found"}), "has no subscription 'sub'; it is made again"),
        ((200, {"subscriptions": {}}), "has no subscription 'sub'; it is made again"),
    ],
)
def test_a_partition_that_is_with_no_broker_just_now_has_not_lost_its_subscription(
    server: _Server, answer: tuple[int, object], reason: str
) -> None:
    """While its bundle is unloaded, the statistics of all partitions lack it, like a partition that does not exist."""
    status, all_but_one = _stats(2, "sub")
    assert isinstance(all_but_one, dict)
    del all_but_one["partitions"][f"{_TOPIC}-partition-1"]
    server.answers = {
        ("GET", f"{_PATH}/partitions"): (200, {"partitions": 2}),
        ("GET", _STATS): (status, all_but_one),
        ("GET", f"{_PATH}-partition-1/stats?getPreciseBacklog=true"): answer,
    }
    with pytest.raises(PublishError) as raised:
        _topics(server).check(_TOPIC)
    assert raised.value.reason.endswith(reason)
    assert isinstance(raised.value, TopicLostError) == (answer[0] != 503)


def test_a_topic_all_of_whose_partitions_are_gone_does_not_exist(server: _Server) -> None:
    """For a moment after the topic's deletion, the broker still returns its number of partitions."""
    server.answers = {
        ("GET", f"{_PATH}/partitions"): (200, {"partitions": 2}),
        ("GET", _STATS): (200, {"partitions": {}}),
    }
    with pytest.raises(TopicLostError, match="does not exist; it is made again"):
        _topics(server).check(_TOPIC)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({}, "does not exist; create it, or let createTopics be true"),
        (
            {
                "partitions": (200, {"partitions": 4}),
                "partitioned-stats?getPreciseBacklog=true&perPartition=true": _stats(4, "other"),
            },
            "has no subscription 'sub'; create it, or let createTopics be true",
        ),
        (
            {
                "partitions": (200, {"partitions": 4}),
                "partitioned-stats?getPreciseBacklog=true&perPartition=true": (403, {"reason": "no"}),
            },
            "403 no",
        ),
    ],
)
def test_without_the_right_to_create_topic_and_subscription_must_be_there(
    server: _Server, answers: dict[str, tuple[int, object]], reason: str
) -> None:
    """The error names what is missing. No PUT request is sent."""
    server.answers = {("GET", f"{_PATH}/{name}"): answer for name, answer in answers.items()}
    with pytest.raises(PublishError) as raised:
        _topics(server, create=False).ensure(_TOPIC)
    assert str(raised.value).startswith(f"{_TOPIC}: ") and str(raised.value).endswith(reason)
    assert {method for method, _, _ in server.requests} == {"GET"}


def test_without_the_right_to_create_a_topic_that_is_complete_is_used(server: _Server) -> None:
    """The topic and the subscription exist."""
    server.answers = {
        ("GET", f"{_PATH}/partitions"): (200, {"partitions": 2}),
        ("GET", f"{_PATH}/partitioned-stats?getPreciseBacklog=true&perPartition=true"): _stats(2, "other", "sub"),
    }
    assert _topics(server, create=False).ensure(_TOPIC).partitions == 2


def test_a_server_that_is_away_is_an_error_to_try_again_after() -> None:
    """One line names the topic and the address of the server."""
    with broker(owner_of_all(None)) as gone:
        topics = _topics(gone)
    with pytest.raises(PublishError, match=r"cdc-events-ks.t: Pulsar's admin interface at 127.0.0.1: "):
        topics.ensure(_TOPIC)


def test_credentials_go_into_the_header_as_the_plugin_says(server: _Server, tmp_path: Path) -> None:
    """Token, token in a file, user and password. The secret is not shown by `repr`."""
    (tmp_path / "token").write_text("geheim\n")
    server.answers = {
        ("GET", f"{_PATH}/partitions"): (200, {"partitions": 1}),
        ("GET", f"{_PATH}/partitioned-stats?getPreciseBacklog=true&perPartition=true"): _stats(1, "sub"),
    }
    java = "org.apache.pulsar.client.impl.auth.Authentication"
    for plugin, params, expected in (
        (f"{java}Token", "token:geheim", "Bearer geheim"),
        (f"{java}Token", f"file://{tmp_path}/token", "Bearer geheim"),
        (f"{java}Basic", '{"userId": "u", "password": "p"}', "Basic dTpw"),
        (f"{java}Tls", "tlsCertFile:/c,tlsKeyFile:/k", None),
    ):
        auth = PulsarAuth(plugin, params)
        assert (auth.http_headers().get("Authorization"), "geheim" in repr(auth)) == (expected, False)
    _topics(server, create=False, auth=PulsarAuth(f"{java}Token", "token:geheim")).ensure(_TOPIC)
    assert server.authorization == "Bearer geheim"


def test_a_plugin_that_the_admin_interface_cannot_use_is_a_configuration_error() -> None:
    """The agent cannot create topics with it, so it must fail at its start."""
    with pytest.raises(ConfigError, match=r"pulsarAuthPluginClassName: .*Athenz cannot be used for pulsarAdminUrl"):
        PulsarAuth("org.apache.pulsar.client.impl.auth.AuthenticationAthenz", "{}")
    with pytest.raises(ConfigError, match=r"pulsarAuthParams: for AuthenticationBasic is JSON"):
        PulsarAuth("org.apache.pulsar.client.impl.auth.AuthenticationBasic", "u:geheim")
    with pytest.raises(ConfigError, match=r"^pulsarAuthParams: has no private_key, where the file .* is$"):
        PulsarAuth(OAUTH2_PLUGIN, '{"issuer_url": "https://h"}')


def test_a_token_of_oauth2_is_kept_until_it_ends(server: _Server, tmp_path: Path) -> None:
    """The issuer is asked for a token at the first request."""
    server.answers = {
        ("GET", f"{_PATH}/partitions"): (200, {"partitions": 1}),
        ("GET", f"{_PATH}/partitioned-stats?getPreciseBacklog=true&perPartition=true"): _stats(1, "sub"),
    }
    with token_issuer() as issuer:
        params = {"issuer_url": issuer.url, "private_key": key_file(tmp_path / "key.json", "writer")}
        auth = PulsarAuth(OAUTH2_PLUGIN, json.dumps(params))
        assert issuer.forms == []
        assert _topics(server, create=False, auth=auth).ensure(_TOPIC).partitions == 1
        assert server.authorization == "Bearer writer-1"
        assert len(issuer.forms) == 1


def test_what_is_wrong_with_oauth2_is_one_line(server: _Server, tmp_path: Path) -> None:
    """The issuer refuses or is away, or the key file is wrong. Each call tries again, as the file may be repaired."""
    key = tmp_path / "key.json"
    with token_issuer() as issuer:
        params = {"issuer_url": issuer.url, "private_key": f"file://{key}"}
        topics = _topics(server, auth=PulsarAuth(OAUTH2_PLUGIN, json.dumps(params)))
        reasons = []
        for content in (None, "[1]", '{"client_id": "writer", "client_secret": "wrong"}'):
            if content is not None:
                key.write_text(content)
            with pytest.raises(PublishError) as raised:
                topics.ensure(_TOPIC)
            reasons.append(raised.value.reason)
    with pytest.raises(PublishError) as raised:
        topics.ensure(_TOPIC)
    gives_none = f"the OAuth2 issuer {issuer.url} gives no token: it"
    assert [*reasons, raised.value.reason] == [
        f"pulsarAuthParams: the key file {key} cannot be read (No such file or directory)",
        f"pulsarAuthParams: the key file {key} is not JSON with client_id and client_secret",
        f"{gives_none} answers 401 (invalid_client: no client has the secret ****); "
        "check the content of the key file, and audience and scope in pulsarAuthParams",
        f"{gives_none} does not answer ([Errno 111] Connection refused); "
        "start it or check issuer_url in pulsarAuthParams",
    ]


def test_the_broker_that_owns_a_topic_is_asked() -> None:
    """Brokers without a proxy: the first one redirects to the owner of the topic, which gets the credentials too."""
    auth = PulsarAuth("org.apache.pulsar.client.impl.auth.AuthenticationToken", "token:geheim")
    with broker(owner_of_all({"partitions": 4})) as owner, broker(redirects_to(owner.url)) as first:
        assert _topics(first, auth=auth).partitions(_TOPIC) == 4
        assert owner.asked == [Request("GET", f"{_PATH}/partitions", None, "Bearer geheim")]


def test_brokers_that_send_one_in_circles_are_an_error_to_try_again_after() -> None:
    """One line names the topic and both addresses."""
    with broker(owner_of_all(None)) as one, broker(redirects_to(one.url)) as two:
        one.answering = redirects_to(two.url)
        with pytest.raises(PublishError) as raised:
            _topics(one).ensure(_TOPIC)
    assert str(raised.value) == (
        f"{_TOPIC}: {two.url}{_PATH}/partitions redirects to {one.url}{_PATH}/partitions, which was asked before: a loop; "
        "do the brokers agree on who owns the topic?"
    )


def test_an_owner_that_is_away_is_named() -> None:
    """The server at the configured address answers, and redirects to an owner that is away."""
    with broker(owner_of_all(None)) as gone:
        pass
    with (
        broker(redirects_to(f"http://localhost:{gone.server_port}")) as first,
        pytest.raises(PublishError, match=r"cdc-events-ks.t: Pulsar's admin interface at localhost: "),
    ):
        _topics(first).ensure(_TOPIC)


_REFUSED_BARE = {
    ("PUT", f"{_PATH}/partitions"): (409, {"reason": "This topic already exists"}),
    ("GET", f"{_PATH}/partitions"): (200, {"partitions": 0}),
    ("DELETE", f"{_PATH}?force=true"): (204, None),
    ("DELETE", f"{_PATH}-partition-0?force=true"): (204, None),
}


def test_what_clients_made_of_a_deleted_topic_gives_way_to_the_topic(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic without partitions has its name, and bare partitions exist.

    No subscription is created before they are deleted.
    """
    now = itertools.count(100.0, 2.0)
    monkeypatch.setattr(events_topics, "time", SimpleNamespace(monotonic=lambda: next(now)))
    server.answers = dict(_REFUSED_BARE)
    with pytest.raises(PublishError, match="was deleted, and clients make its partitions again"):
        _topics(server).ensure(_TOPIC, known=2)
    asked = [(method, path) for method, path, _ in server.requests]
    assert asked[:2] == [("PUT", f"{_PATH}/partitions"), ("GET", f"{_PATH}/partitions")]
    rounds = [asked[start : start + 5] for start in range(2, len(asked), 5)]
    assert len(rounds) == 3, "rounds of two seconds, until five are over"
    for each in rounds:
        # The deletions are sent concurrently.
        assert sorted(each[:3]) == [
            ("DELETE", f"{_PATH}-partition-0?force=true"),
            ("DELETE", f"{_PATH}-partition-1?force=true"),
            ("DELETE", f"{_PATH}?force=true"),
        ]
        assert each[3:] == [("PUT", f"{_PATH}/partitions"), ("GET", f"{_PATH}/partitions")]


def test_a_topic_that_another_agent_has_made_meanwhile_stays(server: _Server) -> None:
    """All agents of a cluster find the loss at the same time. The new topic already holds acknowledged events."""
    server.conflicts, server.made_by_others = 2, True
    server.answers = {
        **_REFUSED_BARE,
        ("GET", f"{_PATH}/partitions"): (200, {"partitions": 2}),
        ("PUT", f"{_PATH}/subscription/sub"): (409, {"reason": "it exists"}),
        ("GET", _STATS): _stats(2, "sub"),
    }
    assert _topics(server).ensure(_TOPIC, known=2).partitions == 2
    deleted = [path for method, path, _ in server.requests if method == "DELETE"]
    assert len(deleted) == len(set(deleted)) == 3, "one round, before the other agent had made it"


def test_a_topic_whose_partitions_come_back_is_made_in_a_later_round(server: _Server) -> None:
    """A client creates the partitions again before the first rounds succeed."""
    server.conflicts = 4
    server.answers = {
        **_REFUSED_BARE,
        ("PUT", f"{_PATH}/partitions"): (204, None),
        ("GET", f"{_PATH}/partitions"): (200, {"partitions": 2}),
        ("PUT", f"{_PATH}/subscription/sub"): (204, None),
        ("GET", _STATS): _stats(2, "sub"),
    }
    assert _topics(server).ensure(_TOPIC, known=2).partitions == 2
    made = [body for method, path, body in server.requests if (method, path) == ("PUT", f"{_PATH}/partitions")]
    assert made == [2] * 5


def _producers(
    server: _Server, folder: Path, checks: TopicChecks, on_lost: Callable[[LostTopic], None]
) -> EventProducers:
    return EventProducers(
        _topics(server, create=False),
        PartitionCounts(folder),
        checks,
        on_lost=on_lost,
        service_url="pulsar://127.0.0.1:1",
        auth=None,
        trust_certificates=None,
        allow_insecure=False,
        verify_hostname=False,
    )


def test_a_loss_that_cannot_be_reported_now_is_reported_when_the_topic_is_opened_again(
    server: _Server, tmp_path: Path
) -> None:
    """Cassandra has not answered yet, or the disk is full. The topic that was created again must not hide the loss."""
    server.answers = {
        ("GET", f"{_PATH}/partitions"): (200, {"partitions": 1}),
        ("GET", _STATS): _stats(1, "sub", mark="new"),
    }
    checks, lost = TopicChecks(tmp_path), list[LostTopic]()
    checks.note(_TOPIC, TopicState(partitions=1, mark="old", ends=((1, 5),)), Place(7, 100, 1000))

    def refuse(each: LostTopic) -> None:
        lost.append(each)
        raise PublishError(each.topic, "its loss cannot be reported")

    producers = _producers(server, tmp_path, checks, refuse)
    for _ in range(2):
        with pytest.raises(PublishError, match="its loss cannot be reported"):
            producers.open_partition(_TOPIC, 0)
    producers.close()
    assert [each.since for each in lost] == [Place(7, 100, 1000)] * 2
    assert lost[0].reason == lost[1].reason


@pytest.mark.parametrize("is_there", [True, False])
def test_whether_a_topic_exists_does_not_depend_on_what_the_agent_has_stored(
    server: _Server, tmp_path: Path, is_there: bool
) -> None:
    """An agent with a new working directory has not opened the topics of tables without new events.

    A topic that the agent has opened may be deleted. The check creates no topic.
    """
    if is_there:
        server.answers = {("GET", f"{_PATH}/partitions"): (200, {"partitions": 1}), ("GET", _STATS): _stats(1, "sub")}
    else:
        PartitionCounts(tmp_path).check(_TOPIC, 1)
    producers = _producers(server, tmp_path, TopicChecks(tmp_path), lambda _: None)
    assert producers.has_topic(_TOPIC) is is_there
    producers.close()
    assert {method for method, _, _ in server.requests} == {"GET"}


@pytest.mark.parametrize("former_is_there", [True, False])
def test_another_name_of_the_subscription_is_a_loss_only_if_the_former_one_is_gone(
    server: _Server, tmp_path: Path, former_is_there: bool
) -> None:
    """Without the former subscription, the agent cannot tell whether the topic is still the same."""
    former = {"old": {"subscriptionProperties": {"cdc-subscription": "m"}, "msgBacklog": 3}}
    subscriptions = {"sub": {"msgBacklog": 3}} | (former if former_is_there else {})
    server.answers = {
        ("GET", f"{_PATH}/partitions"): (200, {"partitions": 1}),
        ("GET", _STATS): (200, {"partitions": {f"{_TOPIC}-partition-0": {"subscriptions": subscriptions}}}),
    }
    before = TopicChecks(tmp_path, "old")
    before.note(_TOPIC, TopicState(partitions=1, mark="m", ends=((1, 5),)), Place(7, 100, 1000))
    before.save()
    checks, lost = TopicChecks(tmp_path, "sub"), list[LostTopic]()
    producers = _producers(server, tmp_path, checks, lost.append)
    for _ in range(2):
        producers.check_unopened(_TOPIC)
    producers.close()
    expected = [] if former_is_there else [("has no subscription 'old'", Place(7, 100, 1000))]
    assert [(each.reason.partition(";")[0], each.since) for each in lost] == expected
    assert all(
        each.reason.endswith("this is the former subscription, so events that 'sub' does not get may be lost")
        for each in lost
    )
    assert checks.former_subscription(_TOPIC) is None
