"""Requests to Pulsar's admin service: does a topic exist, where does it end, which schemas has it had.

REST of Pulsar 4: /admin/v2/persistent/{topic}/partitions, lastMessageId, internalStats, internal-info, messageid,
subscription; /admin/v2/schemas/{topic}/schemas.

The admin service is asked because a client's look-up of a missing topic would create it. A broker that does not own the
topic redirects the request to its owner.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, NotRequired, Self, TypedDict
from urllib.parse import quote, unquote_plus

import httpx

from clients.admin_client import AdminClient, reason_of, topic_path
from clients.redirects import RedirectError
from clients.tls import certificate_refusal
from schemas.topics import RESEND_SUBSCRIPTION, rest_path
from spark_bridge.errors import AccessRefusedError, PulsarUnreachableError, TopicError
from spark_bridge.topics.authentication import ended, http_headers, verification
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.patience import patiently
from spark_bridge.topics.positions import BEGINNING, Ledger, Position, topic_of

__all__ = ["PATIENCE_S", "PulsarAdmin", "RegisteredSchema"]

PATIENCE_S: Final = 5.0
"""For how long a request of a step that somebody waits for is retried. A running job waits longer."""


class RegisteredSchema(TypedDict):
    """A version of a topic's schema, as the registry returns it."""

    version: int
    type: str
    data: str
    properties: NotRequired[Mapping[str, str] | None]


class PulsarAdmin(AdminClient[httpx.Response]):
    """Requests about the topics that the options name. Owns its HTTP connections.

    Raises PulsarUnreachableError and TopicError.
    """

    _not_sent: ClassVar = (RedirectError, httpx.InvalidURL)
    _unanswered: ClassVar = (httpx.TransportError,)

    def __init__(self, options: BridgeOptions, *, patience_s: float = PATIENCE_S) -> None:
        """`patience_s`: for how long a request is retried while the service does not answer."""
        self._options = options
        self._topics = options.topic_names
        self._pattern = options.topics_pattern
        self._url = options.admin_url
        self._patience_s = patience_s
        self._http = httpx.Client(
            base_url=f"{options.admin_url}/admin/v2",
            headers=dict(http_headers(options, patience_s=patience_s)),
            # Without https, no certificates are loaded: this would take longer than the request.
            verify=verification(options)
            if _is_encrypted(options.admin_url)
            else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            timeout=httpx.Timeout(options.operation_timeout_seconds, connect=min(5, options.operation_timeout_seconds)),
        )
        self._encrypted: httpx.Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._http.close()
        if self._encrypted is not None:
            self._encrypted.close()

    def topics(self) -> list[str]:
        """The topics that the options name. With a pattern: the existing topics that match, by name."""
        if self._pattern is None:
            return list(self._topics)
        namespace, name = self._pattern.rsplit("/", 1)
        wanted = re.compile(name)
        names = {topic_of(each)[0] for each in self.listed_topics(namespace)}
        return sorted(each for each in names if wanted.fullmatch(each.rsplit("/", 1)[1]))

    def topic_partitions(self) -> list[str]:
        """Names of the topics' partitions, in order. A topic without partitions counts as its only partition."""
        return [each for topic in self.topics() for each in self.partitions_of(topic)]

    def last_position(self, topic: str) -> Position:
        """Position of the last entry of a topic partition; with entry -1 if the topic partition is empty."""
        answer = self._of_partition(topic, "lastMessageId")
        return BEGINNING if answer is None else _position(answer)

    def position_before(self, topic: str, time_ms: int) -> Position:
        """Position before the first entry that was published at this time or later; the last entry if there is none."""
        answer = self._of_partition(topic, f"messageid/{time_ms}")
        if answer is None:
            return BEGINNING
        found, last = _position(answer), self.last_position(topic)
        return last if found > last else Position(found.ledger, found.entry - 1)

    def ledgers(self, topic: str) -> list[Ledger]:
        """The ledgers of a topic partition that still exist, in order."""
        return self.storage(topic)[0]

    def storage(self, topic: str) -> tuple[list[Ledger], Mapping[str, Position]]:
        """The ledgers of a topic partition, and the position up to which each durable subscription acknowledged all."""
        answer = self._of_partition(topic, "internalStats") or {"ledgers": [], "cursors": {}}
        ledgers = [
            Ledger(
                ledger=each["ledgerId"],
                entries=each["entries"],
                size_bytes=each["size"],
            )
            for each in answer["ledgers"]
        ]
        if ledgers and not ledgers[-1].entries:  # the ledger that is being written has its numbers elsewhere
            ledgers[-1] = replace(
                ledgers[-1],
                entries=answer["currentLedgerEntries"],
                size_bytes=answer["currentLedgerSize"],
            )
        cursors = answer["cursors"].items()
        # The name of a cursor is that of its subscription, encoded by Java's URLEncoder.
        return ledgers, {unquote_plus(name): Position.parse(str(each["markDeletePosition"])) for name, each in cursors}

    def of_topic(self, topic: str) -> None:
        """Raise TopicError if a topic without partitions does not exist."""
        self._of(topic, "stats")

    def partitions_of(self, topic: str) -> list[str]:
        """Names of the partitions of any topic, in order; the topic itself if it has none. Raises TopicError."""
        count = self.partitions(topic)
        return [f"{topic}-partition-{index}" for index in range(count)] if count else [topic]

    def existing_partitions(self, topic: str) -> list[str]:
        """The result of `partitions_of`; empty if the topic does not exist.

        A client's look-up would create the topic.
        """
        try:
            names = self.partitions_of(topic)
            if names == [topic]:
                self.of_topic(topic)
        except TopicError:
            return []
        return names

    def waiting_dead_letters(self, topic: str, most: int) -> Iterator[tuple[str, Position] | None]:
        """Topic partition and position of each event that is a dead letter. None: the place of an event is not known.

        If a partition of `topic` has more than `most` dead letters, it gives None only. `topic` may have partitions if
        the broker creates topics automatically.
        """
        for each in self.existing_partitions(topic):
            yield from self._waiting_of(each, most)

    def _waiting_of(self, topic: str, most: int) -> Iterator[tuple[str, Position] | None]:
        try:
            stats = self._of(topic, "stats?getPreciseBacklog=true")
        except TopicError:
            return
        subscriptions = stats.get("subscriptions") or {}
        waiting = int((subscriptions.get(RESEND_SUBSCRIPTION) or {}).get("msgBacklog", 0))
        if waiting > most:
            yield None
            return
        for number in range(1, waiting + 1):
            response = self._request("GET", topic, f"subscription/{RESEND_SUBSCRIPTION}/position/{number}")
            yield _letter_place(response) if response.is_success else None

    def creation(self, topic: str) -> str | None:
        """When a topic partition was created, as text; None if Pulsar does not return it.

        A later topic partition of the same name has another creation.
        """
        response = self._request("GET", topic, "internal-info")
        created = response.json().get("creationDate") if response.is_success and response.content else None
        return None if created is None else str(created)

    def keep_subscription(self, topic: str, subscription: str, position: Position) -> None:
        """Acknowledge all entries before a position that was read. Create the subscription if it does not exist.

        The position's own entry stays unacknowledged, so that Pulsar keeps its ledger. Otherwise, Pulsar would delete a
        closed ledger whose entries are all acknowledged, and move the subscription to the next one. A message TTL
        leaves the same state, but with a loss.
        """
        self.make_subscription(topic, subscription)
        if position == BEGINNING:
            return
        body = {
            "ledgerId": position.ledger,
            "entryId": position.entry,
            "partitionIndex": topic_of(topic)[1],
        }
        self._call("POST", topic, f"{topic_path(topic)}/subscription/{quote(subscription, safe='')}/resetcursor", body)

    def properties(self, topic: str) -> Mapping[str, str]:
        """The properties of a topic, by name."""
        found: Mapping[str, str] = self._of(topic, "properties") or {}
        return found

    def set_property(self, topic: str, name: str, value: str) -> None:
        """Set a property of a topic. Its other properties stay."""
        self._call("PUT", topic, f"{topic_path(topic)}/properties", {name: value})

    def schemas(self, topic: str) -> list[RegisteredSchema]:
        """Every version of a topic's schema."""
        return list(self._json(topic, f"/schemas/{rest_path(topic)}/schemas")["getSchemaResponses"])

    def _of_partition(self, topic: str, what: str) -> Any:
        """The answer about a topic or a topic partition.

        None for a 404 about a partition: the broker deletes a partition that is empty and idle.
        """
        try:
            return self._of(topic, what)
        except TopicError:
            if topic_of(topic)[1] < 0:
                raise
            return None

    def _request(self, method: str, topic: str, what: str, body: object = None) -> httpx.Response:
        """The answer about a topic, also if it is no success."""
        return self._sent(method, topic, f"{topic_path(topic)}/{what}", body)

    def _sender(self, method: str, body: object) -> Callable[[str], httpx.Response]:
        return lambda address: self._client(address).request(method, address, json=body)

    def _answer(self, method: str, path: str, body: object) -> httpx.Response:
        """The answer. The request is retried while nobody answers, or the broker starts or hands the topic over."""
        return patiently(lambda: super(PulsarAdmin, self)._answer(method, path, body), self._patience_s)

    def _failure(self, topic: str, reason: str) -> PulsarUnreachableError:
        return PulsarUnreachableError(self._url, reason)

    def _check(self, method: str, path: str, topic: str, answer: httpx.Response) -> None:
        reason = reason_of(answer) or f"HTTP {answer.status_code}"
        if answer.status_code == httpx.codes.CONFLICT and method == "PUT":
            return  # it exists already
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise TopicError(
                topic,
                f"does not exist ({reason}); check the option {self._options.written('topic')}; the connector creates a data"
                " topic with its first record",
            )
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            why = ended(self._options) or reason
            check = " and ".join(map(self._options.written, ("authPluginClassName", "authParams")))
            refusal = f"refuses access to {topic} ({why}); check {check}"
            raise AccessRefusedError(self._url, refusal)
        if not answer.is_success:
            raise PulsarUnreachableError(self._url, f"answers {answer.status_code} to {path} ({reason})")

    def _client(self, address: str) -> httpx.Client:
        """The HTTP client for an address. A redirect from an unencrypted to an encrypted address needs a second one."""
        if _is_encrypted(self._url) or not _is_encrypted(address):
            return self._http
        if self._encrypted is None:
            self._encrypted = httpx.Client(
                headers=self._http.headers, verify=verification(self._options), timeout=self._http.timeout
            )
        return self._encrypted

    def _no_answer(self, topic: str, error: Exception) -> PulsarUnreachableError:
        assert isinstance(error, httpx.TransportError)
        refusal = certificate_refusal(str(error))
        check = f"start it or check the option {self._options.written('adminUrl')}"
        if refusal:
            names = ("tlsTrustCertsFilePath", "tlsHostnameVerificationEnable")
            check = f"check {' and '.join(map(self._options.written, names))}"
        asked = error.request.url.copy_with(path="/", query=None)
        who = "the admin service"
        if (asked.host, asked.port) != (self._http.base_url.host, self._http.base_url.port):
            who += f" redirects to {str(asked).rstrip('/')}, which"
        return PulsarUnreachableError(self._url, f"{who} does not answer ({refusal or error}); {check}")


def _position(message_id: Mapping[str, int]) -> Position:
    return Position(message_id["ledgerId"], message_id["entryId"])


def _letter_place(response: httpx.Response) -> tuple[str, Position] | None:
    """The place of an event by the properties of its dead letter, which the admin service returns as headers."""
    found = {name.lower(): value for name, value in response.headers.items()}
    try:
        properties: Mapping[str, str] = json.loads(found.get("x-pulsar-property", "{}"))
        topic = properties.get("topic") or found["x-pulsar-property-topic"]
        place = properties.get("message_id") or found["x-pulsar-property-message_id"]
        ledger, entry = re.findall(r"-?\d+", place)[:2]
    except (KeyError, ValueError, AttributeError):
        return None
    return topic, Position(int(ledger), int(entry))


def _is_encrypted(address: str) -> bool:
    return address.startswith("https://")
