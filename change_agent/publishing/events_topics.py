"""EventsTopics: makes sure, through Pulsar's admin REST interface, that an events topic and its subscription exist.

The subscription comes before the first event: a broker keeps nothing for readers that it does not know. A broker that does
not own the topic names the one that does, which is asked then.
"""

from __future__ import annotations

import logging
import ssl
from typing import Final
from urllib.parse import quote

import httpx

from change_agent.configuration.pulsar_auth import PulsarAuth
from change_agent.errors import PublishError
from schemas.certificate_refusal import certificate_refusal
from schemas.client_credentials import TokenIssueError
from schemas.errors import ConfigError
from schemas.redirects import RedirectError, redirected

__all__ = ["EventsTopics"]

_log: Final = logging.getLogger(__name__)
_TIMEOUT_S: Final = 15.0
_EARLIEST: Final = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
_DONE: Final = frozenset({200, 204, 409})


class EventsTopics:
    """Owns the HTTP client. `ensure` may be called by several threads."""

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

    def close(self) -> None:
        """Close the HTTP client."""
        self._client.close()

    def ensure(self, topic: str) -> int:
        """The number of the topic's partitions, 0 when it has none. Raises PublishError while it cannot be used.

        With `create` the topic and its subscription are made where they are missing; without, both must be there.
        """
        path = _path(topic)
        if self._create:
            made = self._call("PUT", topic, f"/persistent/{path}/partitions", json=self._partitions)
            if made.status_code == httpx.codes.NO_CONTENT:
                _log.info("created events topic %s with %d partitions", topic, self._partitions)
        partitions = self.partitions(topic)
        if self._create:
            subscription = quote(self._subscription, safe="")
            self._call("PUT", topic, f"/persistent/{path}/subscription/{subscription}", json=_EARLIEST)
        else:
            self._require_subscription(topic, partitions)
        return partitions

    def partitions(self, topic: str) -> int:
        """The number of the topic's partitions, 0 when it has none. Raises PublishError."""
        return int(self._call("GET", topic, f"/persistent/{_path(topic)}/partitions").json().get("partitions", 0))

    def _require_subscription(self, topic: str, partitions: int) -> None:
        # To list subscriptions takes the right to consume; who may produce may look at the statistics.
        what = "partitioned-stats?perPartition=false" if partitions else "stats"
        found = self._call("GET", topic, f"/persistent/{_path(topic)}/{what}").json().get("subscriptions", {})
        if self._subscription not in found:
            raise PublishError(
                topic, f"has no subscription {self._subscription!r}; create it, or let createTopics be true"
            )

    def _call(self, method: str, topic: str, path: str, json: object = None) -> httpx.Response:
        host = self._client.base_url.host

        def ask(address: str) -> httpx.Response:
            nonlocal host
            host = httpx.URL(address).host or host
            return self._client.request(method, address, headers=headers, json=json)

        try:
            headers = {} if self._auth is None else self._auth.http_headers()
            response = redirected(ask, path)
        except (RedirectError, TokenIssueError, ConfigError, httpx.InvalidURL) as error:
            raise PublishError(topic, str(error)) from error
        except (httpx.HTTPError, OSError, ValueError, KeyError) as error:
            reason = str(error) or type(error).__name__
            if refusal := certificate_refusal(reason):
                reason = f"{refusal}; check tlsTrustCertsFilePath and sslHostnameVerificationEnable"
            raise PublishError(topic, f"Pulsar's admin interface at {host}: {reason}") from error
        if response.status_code == httpx.codes.NOT_FOUND and method == "GET":
            raise PublishError(topic, "does not exist; create it, or let createTopics be true")
        if response.status_code not in _DONE:
            hint = "" if self._auth is None else self._auth.problem()
            raise PublishError(topic, f"{method} {path}: {response.status_code} {_reason(response)}{hint}")
        return response


def _path(topic: str) -> str:
    return "/".join(quote(part, safe="") for part in topic.removeprefix("persistent://").split("/"))


def _reason(response: httpx.Response) -> str:
    try:
        reason = str(response.json().get("reason", ""))
    except (ValueError, AttributeError):
        reason = " ".join(response.text.split())
    return reason[:200] or response.reason_phrase
