"""AdminClient: requests to Pulsar's admin service that several products need, whatever HTTP client sends them.

REST of Pulsar 4: /admin/v2/persistent/{topic}/partitions, lastMessageId, subscription; /admin/v2/persistent/{namespace}.

A product's client says how a request is sent, and which of its own errors a failure becomes. This module does not import an
HTTP client.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar
from urllib.parse import quote

from clients.certificate_refusal import certificate_refusal
from clients.client_credentials import TokenIssueError
from clients.redirects import Answer, RedirectError, redirected
from schemas.errors import CdcError, ConfigError
from schemas.topics import rest_path

__all__ = ["NOT_SENT", "UNANSWERED", "AdminAnswer", "AdminClient", "explained", "reason_of", "topic_path"]

_EARLIEST: Final = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
_MOST_SHOWN: Final = 200

NOT_SENT: Final = (RedirectError, TokenIssueError, ConfigError)
"""Errors that say themselves why a request was not sent."""
UNANSWERED: Final = (OSError, ValueError, KeyError)
"""Errors of every HTTP client, and of credentials that cannot be read."""


class AdminAnswer(Answer, Protocol):
    """An answer of the admin service."""

    @property
    def content(self) -> bytes:
        """The body."""

    def json(self) -> Any:
        """The body as JSON. Raises ValueError where it is none."""


A = TypeVar("A", bound=AdminAnswer)


class AdminClient(ABC, Generic[A]):
    """Sends requests with credentials, to the broker that owns the topic. Its methods raise the errors of `_failure` and
    `_check`.
    """

    _api: ClassVar[str] = ""
    """What stands before the paths of this class: nothing where the HTTP client's base address ends with `/admin/v2`."""
    _not_sent: ClassVar[tuple[type[Exception], ...]] = NOT_SENT
    _unanswered: ClassVar[tuple[type[Exception], ...]] = UNANSWERED

    @abstractmethod
    def _sender(self, method: str, body: object) -> Callable[[str], A]:
        """Sends one request to an address, and to those to which it is redirected. `body` is JSON, None for none."""

    @abstractmethod
    def _failure(self, topic: str, reason: str) -> CdcError:
        """The error for a request about a topic (empty: about none) that was not sent."""

    @abstractmethod
    def _no_answer(self, topic: str, error: Exception) -> CdcError:
        """The error for a request that nobody answered."""

    @abstractmethod
    def _check(self, method: str, path: str, topic: str, answer: A) -> None:
        """Raise the error for an answer that is no success."""

    def policy(self, topic: str, path: str) -> Any:
        """The value at a path, as JSON; None for nothing, which has an empty answer."""
        return self._json(topic, f"{self._api}{path}")

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has, 0 for one without."""
        return int(self._of(topic, "partitions").get("partitions", 0))

    def last_entry(self, topic: str) -> tuple[int, int]:
        """Ledger and entry of a topic partition's last message; an entry of -1 where it has none."""
        found = self._of(topic, "lastMessageId")
        return int(found["ledgerId"]), int(found["entryId"])

    def listed_topics(self, namespace: str) -> set[str]:
        """Full names of a namespace's topics (`tenant/namespace`). One with partitions is listed by its own name, and by
        those of its partitions."""
        path = f"{self._api}{topic_path(namespace)}"
        return {*self._json(namespace, f"{path}/partitioned"), *self._json(namespace, path)}

    def make_subscription(self, topic: str, subscription: str) -> bool:
        """Make a durable subscription at the topic's beginning, in all of its partitions; False where it is there, maybe in
        some of them only."""
        path = f"{self._api}{topic_path(topic)}/subscription/{quote(subscription, safe='')}"
        made = self._call("PUT", topic, path, _EARLIEST)
        return made.status_code != HTTPStatus.CONFLICT

    def _of(self, topic: str, what: str) -> Any:
        """What is known of a topic, at the path of this name."""
        return self._json(topic, f"{self._api}{topic_path(topic)}/{what}")

    def _json(self, topic: str, path: str) -> Any:
        answer = self._call("GET", topic, path)
        try:
            return answer.json() if answer.content else None
        except ValueError:
            raise self._failure(topic, f"answers something else than JSON to {path}") from None

    def _call(self, method: str, topic: str, path: str, body: object = None) -> A:
        """The answer to a request about a topic, which is a success."""
        answer = self._sent(method, topic, path, body)
        self._check(method, path, topic, answer)
        return answer

    def _sent(self, method: str, topic: str, path: str, body: object = None) -> A:
        """The answer to a request about a topic, whatever it is."""
        try:
            return self._answer(method, path, body)
        except self._not_sent as error:
            raise self._failure(topic, str(error)) from None
        except self._unanswered as error:
            raise self._no_answer(topic, error) from None

    def _answer(self, method: str, path: str, body: object) -> A:
        return redirected(self._sender(method, body), path)


def topic_path(topic: str) -> str:
    """The path of a topic or namespace, with or without `persistent://`."""
    return f"/persistent/{rest_path(topic)}"


def explained(text: str, check: str) -> str:
    """The message of an HTTP client's error; for a refused certificate with the options to `check`."""
    refusal = certificate_refusal(text)
    return text if refusal is None else f"{refusal}; check {check}"


def reason_of(answer: AdminAnswer) -> str:
    """The reason that an answer gives, or its text, shortened; empty where it has none."""
    try:
        reason = str(answer.json()["reason"])
    except (ValueError, KeyError, TypeError):
        reason = " ".join(answer.content.decode("utf-8", "replace").split())
    return reason if len(reason) <= _MOST_SHOWN else f"{reason[:_MOST_SHOWN]}..."
