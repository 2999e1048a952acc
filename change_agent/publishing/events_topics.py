"""EventsTopics: makes sure, through Pulsar's admin REST interface, that an events topic and its subscription exist.

The subscription is created before the first event is sent, because a broker keeps nothing for readers that it does
not know. A broker that does not own the topic redirects to its owner.
"""

from __future__ import annotations

import logging
import ssl
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote_plus

import httpx

from change_agent.configuration.connections import PulsarAuth
from change_agent.errors import PublishError, TopicLostError
from change_agent.publishing.topic_checks import TopicState
from clients.admin_client import NOT_SENT, UNANSWERED, AdminClient, explained, reason_of, topic_path

__all__ = ["EventsTopics"]

_log: Final = logging.getLogger(__name__)
_TIMEOUT_S: Final = 15.0
_DONE: Final = frozenset({200, 204, 409})
# A topic is compacted after this many bytes of new messages.
_COMPACTION_BYTES: Final = 1024 * 1024
# How many partitions are deleted at the same time, and for how long this is repeated before the caller retries later.
_MOST_REQUESTS: Final = 16
_MAKING_S: Final = 5.0
_STATS: Final = "stats?getPreciseBacklog=true"
_MARK: Final = "cdc-subscription"
"""Property of a subscription. A subscription that was deleted and created again has another value, or none."""


class EventsTopics(AdminClient[httpx.Response]):
    """Owns the HTTP client. `ensure` may be called by several threads.

    Raises PublishError, or TopicLostError if a topic does not exist.
    """

    _not_sent: ClassVar = (*NOT_SENT, httpx.InvalidURL)
    _unanswered: ClassVar = (*UNANSWERED, httpx.HTTPError)

    def __init__(
        self,
        *,
        admin_url: str,
        auth: PulsarAuth | None,
        tls: ssl.SSLContext,
        subscription: str,
        partitions: int,
        create: bool,
    ) -> None:
        if auth is not None:
            auth.use_certificate(tls)
        self._auth: Final = auth
        self._client: Final = httpx.Client(base_url=f"{admin_url}/admin/v2", timeout=_TIMEOUT_S, verify=tls)
        self._subscription: Final = subscription
        self._partitions: Final = partitions
        self._create: Final = create
        # Topics that this agent has created and not marked yet. `ensure` may fail in between; then it is retried.
        self._made: Final[set[str]] = set()
        self._hint: Final = "; it is made again" if create else "; create it, or let createTopics be true"

    def close(self) -> None:
        """Close the HTTP client."""
        self._client.close()

    def ensure(self, topic: str, known: int | None = None) -> TopicState:
        """Make sure that the topic exists with its subscription in all partitions, and return its state.

        With `create`, what is missing is created; the topic gets `known` partitions, if it is known how many it had.
        Without `create`, all of it must exist. Only the agent that creates the topic marks the subscription at once: if
        two agents did that, one would later find the other's mark. Raises PublishError while the topic cannot be used.
        """
        if self._create:
            self._make(topic, self._partitions if known is None else known, is_known=known is not None)
        found = self.check(topic)
        if topic in self._made:
            if found.mark is None:
                self.mark(topic)
                found = self.check(topic)
            self._made.discard(topic)
        return found

    def ensure_compacted(self, topic: str) -> None:
        """Create a topic without partitions and subscriptions that is compacted to the newest message of each key.

        Without `create` nothing is done: the topic must exist, or the broker creates it for the first producer. Raises
        PublishError.
        """
        if not self._create:
            return
        path = topic_path(topic)
        self._call("PUT", topic, path)
        try:
            self._call("POST", topic, f"{path}/compactionThreshold", _COMPACTION_BYTES)
        except PublishError as error:
            _log.info("%s is compacted only if the policy of its namespace compacts it (%s)", topic, error)

    def mark(self, topic: str) -> None:
        """Set a mark on the topic's subscription. Does nothing without `create`.

        A failure is not reported: a later check finds if there is a mark.
        """
        if not self._create:
            return
        path = f"{topic_path(topic)}/subscription/{quote(self._subscription, safe='')}/properties"
        try:
            self._call("PUT", topic, path, {_MARK: uuid.uuid4().hex})
        except PublishError as error:
            _log.debug("its subscription gets no mark: %s", error)

    def exists(self, topic: str) -> bool:
        """True if the topic exists, with or without the subscription. Raises PublishError."""
        try:
            # For a moment after the topic's deletion, the broker still returns its number of partitions.
            return any(self._stats(topic, self.partitions(topic)).values())
        except TopicLostError:
            return False

    def check(self, topic: str, subscription: str | None = None) -> TopicState:
        """Return the state of the topic with this subscription (by default the configured one).

        Raises TopicLostError when one of the two does not exist, or PublishError.
        """
        subscription = subscription or self._subscription
        partitions = self.partitions(topic)
        # Read before the backlog: a subscription without a backlog has then consumed up to these ends.
        ends = self._ends(topic, partitions, subscription)
        stats = self._stats(topic, partitions)
        if not any(stats.values()):
            # For a moment after the topic's deletion, the broker still returns its number of partitions.
            raise TopicLostError(topic, f"does not exist{self._hint}")
        if _without_subscription(stats, subscription):
            raise TopicLostError(topic, f"has no subscription {subscription!r}{self._hint_for(subscription)}")
        found = [each["subscriptions"][subscription] for each in stats.values()]
        marks = {(each.get("subscriptionProperties") or {}).get(_MARK, "") for each in found}
        return TopicState(
            partitions=partitions,
            # When agents create the subscription at the same time, each of them creates it in some of the partitions.
            mark=",".join(sorted(marks)) if all(marks) else None,
            ends=tuple(end for end, _ in ends),
            consumed=tuple(consumed for _, consumed in ends),
            is_drained=all(each.get("msgBacklog") == 0 for each in found),
        )

    def _hint_for(self, subscription: str) -> str:
        if subscription == self._subscription:
            return self._hint
        # A subscription from before eventsSubscriptionName was changed is not created again.
        return f"; this is the former subscription, so events that {self._subscription!r} does not get may be lost"

    def _make(self, topic: str, partitions: int, *, is_known: bool) -> None:
        self._make_topic(topic, partitions, is_known=is_known)
        # The subscription is created without its mark: when two calls create it at the same time, a broker stores the
        # properties of one call and shows those of the other, until it loads the topic again.
        if not self.make_subscription(topic, self._subscription):
            for name in _without_subscription(self._stats(topic, self.partitions(topic)), self._subscription):
                self.make_subscription(name, self._subscription)

    def _make_topic(self, topic: str, partitions: int, *, is_known: bool) -> None:
        path = topic_path(topic)
        if partitions == 0:
            if self._call("PUT", topic, path).status_code == httpx.codes.NO_CONTENT:
                self._made.add(topic)
            return
        made = self._call("PUT", topic, f"{path}/partitions", partitions)
        if made.status_code == httpx.codes.CONFLICT and not self._has_partitions(topic, is_known=is_known):
            made = self._make_again(topic, path, partitions, is_known=is_known)
        if made.status_code == httpx.codes.NO_CONTENT:
            self._made.add(topic)
            _log.info("created events topic %s with %d partitions", topic, partitions)

    def _make_again(self, topic: str, path: str, partitions: int, *, is_known: bool) -> httpx.Response:
        """Create a deleted topic again although clients have created some partitions, or a topic without partitions.

        The broker refuses to create the topic while one of these exists, and a client creates its partition again a
        tenth of a second after its deletion. So all of them are deleted at the same time, and this is repeated at once:
        a client whose request meets a deletion waits longer. A topic that another agent has created meanwhile is kept.
        """
        ends_at = time.monotonic() + _MAKING_S
        bare = [path, *(f"{path}-partition-{index}" for index in range(partitions))]
        with ThreadPoolExecutor(min(len(bare), _MOST_REQUESTS)) as requests:
            while True:
                list(requests.map(lambda each: self._call("DELETE", topic, f"{each}?force=true"), bare))
                made = self._call("PUT", topic, f"{path}/partitions", partitions)
                if made.status_code != httpx.codes.CONFLICT or self._has_partitions(topic, is_known=is_known):
                    return made
                if time.monotonic() >= ends_at:
                    # Creating the subscription now would create a topic without partitions.
                    raise PublishError(
                        topic, "was deleted, and clients make its partitions again before it can be made"
                    )

    def _has_partitions(self, topic: str, *, is_known: bool) -> bool:
        """True if the topic exists. If it is known to have had partitions, it must also have some now."""
        try:
            return self.partitions(topic) > 0 or not is_known
        except TopicLostError:
            return False

    def _stats(self, topic: str, partitions: int) -> dict[str, Any]:
        """Return the statistics, which have the subscriptions, by partition.

        Listing subscriptions needs the right to consume; for the statistics the right to produce is enough.
        """
        if not partitions:
            return {topic: self._of(topic, _STATS)}
        found = self._of(topic, f"partitioned-{_STATS}&perPartition=true")
        names = [f"{topic}-partition-{index}" for index in range(partitions)]
        known = found.get("partitions") or {}
        return {name: known.get(name) or self._partition_stats(topic, name) for name in names}

    def _partition_stats(self, topic: str, name: str) -> dict[str, Any]:
        """Return the statistics of a partition that is missing in those of the topic; empty if it does not exist.

        Raises PublishError if no broker has the partition now, for example while its bundle is unloaded.
        """
        try:
            return dict(self._json(topic, f"{topic_path(name)}/{_STATS}"))
        except TopicLostError:
            return {}

    def _ends(self, topic: str, partitions: int, subscription: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Return the last entry of each partition, and how far the subscription has consumed it.

        The list is empty if the broker does not answer.
        """
        what = "partitioned-internalStats" if partitions else "internalStats"
        try:
            found = self._of(topic, what)
            each = found["partitions"] if partitions else {topic: found}
            return [
                (
                    _ledger_position(each[name]["lastConfirmedEntry"]),
                    _ledger_position(_cursors(each[name])[subscription]["markDeletePosition"]),
                )
                for name in sorted(each)
            ]
        except (PublishError, ValueError, KeyError, TypeError) as error:
            _log.debug("%s: the ends of its partitions are not known (%s)", topic, error)
            return []

    def _sender(self, method: str, body: object) -> Callable[[str], httpx.Response]:
        headers = {} if self._auth is None else self._auth.http_headers()
        return lambda address: self._client.request(method, address, headers=headers, json=body)

    def _failure(self, topic: str, reason: str) -> PublishError:
        return PublishError(topic, reason)

    def _no_answer(self, topic: str, error: Exception) -> PublishError:
        # After a redirect, the request was sent to another host.
        asked = error.request.url if isinstance(error, httpx.RequestError) else self._client.base_url
        reason = explained(str(error) or type(error).__name__)
        return PublishError(topic, f"Pulsar's admin interface at {asked.host}: {reason}")

    def _check(self, method: str, path: str, topic: str, answer: httpx.Response) -> None:
        if answer.status_code == httpx.codes.NOT_FOUND and method == "GET":
            raise TopicLostError(topic, f"does not exist{self._hint}")
        if answer.status_code == httpx.codes.NOT_FOUND and method == "DELETE":
            return
        if answer.status_code not in _DONE:
            hint = "" if self._auth is None else self._auth.problem()
            raise PublishError(
                topic, f"{method} {path}: {answer.status_code} {reason_of(answer) or answer.reason_phrase}{hint}"
            )


def _without_subscription(stats: Mapping[str, Any], subscription: str) -> list[str]:
    return [name for name, each in stats.items() if subscription not in each.get("subscriptions", {})]


def _cursors(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cursors by subscription. A cursor has the name of its subscription, encoded by Java's URLEncoder."""
    return {unquote_plus(name): each for name, each in stats["cursors"].items()}


def _ledger_position(text: str) -> tuple[int, int]:
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)
