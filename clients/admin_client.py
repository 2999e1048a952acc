"""AdminClient: requests to Pulsar's admin service that several products need, for any HTTP client.

REST of Pulsar 4: /admin/v2/persistent/{topic}/partitions, lastMessageId, subscription;
/admin/v2/persistent/{namespace}.

The subclass of a product sends the requests, and makes its own errors of failures. This module does not import an HTTP
client.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, Final, Generic, TypeVar
from urllib.parse import quote

from clients.client_credentials import TokenIssueError
from clients.redirects import Answer, RedirectError, redirected
from clients.tls import certificate_refusal
from schemas.errors import CdcError, ConfigError
from schemas.topics import rest_path

__all__ = ["NOT_SENT", "UNANSWERED", "AdminClient", "explained", "reason_of", "topic_path"]

_EARLIEST: Final = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
_MOST_SHOWN: Final = 200

NOT_SENT: Final = (RedirectError, TokenIssueError, ConfigError)
"""Errors whose text says why a request was not sent."""
UNANSWERED: Final = (OSError, ValueError, KeyError)
"""Errors that any HTTP client may raise, and errors of credentials that cannot be read."""


A = TypeVar("A", bound=Answer)


class AdminClient(ABC, Generic[A]):
    """Sends requests with credentials, to the broker that owns the topic. Its methods raise the errors of `_failure` and
    `_check`.
    """

    _api: ClassVar[str] = ""
    """Prefix of the paths in this class; empty if the HTTP client's base address ends with `/admin/v2`."""
    _not_sent: ClassVar[tuple[type[Exception], ...]] = NOT_SENT
    _unanswered: ClassVar[tuple[type[Exception], ...]] = UNANSWERED

    @abstractmethod
    def _sender(self, method: str, body: object) -> Callable[[str], A]:
        """A function that sends one request to an address; it is called for redirects, too. `body` is JSON, or None."""

    @abstractmethod
    def _failure(self, topic: str, reason: str) -> CdcError:
        """The error for a request that failed, about a topic (empty: without a topic)."""

    @abstractmethod
    def _no_answer(self, topic: str, error: Exception) -> CdcError:
        """The error for a request without an answer."""

    @abstractmethod
    def _check(self, method: str, path: str, topic: str, answer: A) -> None:
        """Raise an error if the answer is not a success."""

    def policy(self, topic: str, path: str) -> Any:
        """The decoded JSON value at a path; None if it is not set, which has an empty answer."""
        return self._json(topic, f"{self._api}{path}")

    def partitions(self, topic: str) -> int:
        """The number of the topic's partitions; 0 for a topic without partitions."""
        return int(self._of(topic, "partitions").get("partitions", 0))

    def last_entry(self, topic: str) -> tuple[int, int]:
        """Ledger and entry of a topic partition's last message; the entry is -1 if there is none."""
        found = self._of(topic, "lastMessageId")
        return int(found["ledgerId"]), int(found["entryId"])

    def listed_topics(self, namespace: str) -> set[str]:
        """Full names of the topics of a namespace (`tenant/namespace`).

        A topic with partitions is listed with its own name, and with the names of its partitions.
        """
        path = f"{self._api}{topic_path(namespace)}"
        return {*self._json(namespace, f"{path}/partitioned"), *self._json(namespace, path)}

    def make_subscription(self, topic: str, subscription: str) -> bool:
        """Make a durable subscription at the beginning of the topic, in all its partitions.

        Return False if it exists already, maybe only in some of the partitions.
        """
        path = f"{self._api}{topic_path(topic)}/subscription/{quote(subscription, safe='')}"
        made = self._call("PUT", topic, path, _EARLIEST)
        return made.status_code != HTTPStatus.CONFLICT

    def _of(self, topic: str, what: str) -> Any:
        """The decoded JSON answer about a topic, from the path `what` of the topic."""
        return self._json(topic, f"{self._api}{topic_path(topic)}/{what}")

    def _json(self, topic: str, path: str) -> Any:
        answer = self._call("GET", topic, path)
        try:
            return answer.json() if answer.content else None
        except ValueError:
            raise self._failure(topic, f"answers something else than JSON to {path}") from None

    def _call(self, method: str, topic: str, path: str, body: object = None) -> A:
        """The successful answer to a request about a topic."""
        answer = self._sent(method, topic, path, body)
        self._check(method, path, topic, answer)
        return answer

    def _sent(self, method: str, topic: str, path: str, body: object = None) -> A:
        """The answer to a request about a topic, of any status."""
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


def explained(text: str) -> str:
    """The message of an HTTP client's error. For a refused certificate, it names the options to check."""
    refusal = certificate_refusal(text)
    return text if refusal is None else f"{refusal}; check tlsTrustCertsFilePath and sslHostnameVerificationEnable"


def reason_of(answer: Answer) -> str:
    """The `reason` in an answer, else the answer's text, shortened; empty if there is neither."""
    try:
        reason = str(answer.json()["reason"])
    except (ValueError, KeyError, TypeError):
        reason = " ".join(answer.content.decode("utf-8", "replace").split())
    return reason if len(reason) <= _MOST_SHOWN else f"{reason[:_MOST_SHOWN]}..."
