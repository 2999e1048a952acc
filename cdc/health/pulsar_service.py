"""PulsarService: requests to Pulsar's admin service: topics, their statistics and policies, sources, the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final, Self, TypeVar
from urllib.parse import quote

import httpx
import tenacity

from cdc.health.line_config import LineConfig
from change_agent.configuration.connections import pulsar_auth, pulsar_tls
from clients.admin_client import NOT_SENT, UNANSWERED, AdminClient, explained, reason_of, topic_path
from schemas.errors import CdcError, ConfigError

__all__ = ["NotThereError", "PulsarService", "PulsarServiceError"]

_TIMEOUT_S: Final = 10.0
# A restart first ends the process of an instance.
_RESTART_TIMEOUT_S: Final = 60.0
# Each message takes one request: the number of requests at the same time, and of messages in one round.
_PEEKS: Final = 8
_PEEKED_TOGETHER: Final = 64

_IS_IT: Final = "is it Pulsar's admin service?"

T = TypeVar("T")

_LOST_CONNECTION: Final = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)
"""The connection of an earlier request, which the server or another thread closed when the next one was sent."""


class PulsarServiceError(CdcError):
    """The admin service does not answer, refuses, or gives an answer that is not understood.

    `status`: the HTTP status of an error; None without an answer, and for an answer that is not understood.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status: Final = status

    @property
    def is_refusal(self) -> bool:
        """True if the credentials are not valid, or lack a right."""
        return self.status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)


class NotThereError(PulsarServiceError):
    """The requested object does not exist."""


class PulsarService(AdminClient[httpx.Response]):
    """A client of the admin service, which several threads may use. Each request may wait for Pulsar.

    All methods raise PulsarServiceError, and NotThereError for an object that does not exist. The constructor raises
    ConfigError.
    """

    _api: ClassVar = "/v2"
    _not_sent: ClassVar = (*NOT_SENT, httpx.InvalidURL)
    _unanswered: ClassVar = (*UNANSWERED, httpx.HTTPError)

    def __init__(self, config: LineConfig, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.url: Final = config.pulsar_admin_url
        self.namespace: Final = config.namespace
        self._auth: Final = pulsar_auth(config)
        context = pulsar_tls(config)
        if self._auth is not None:
            self._auth.use_certificate(context)
        try:
            # No proxy from the environment: it does not know the brokers.
            self._http: Final = httpx.Client(
                base_url=f"{self.url}/admin", timeout=timeout_s, verify=context, trust_env=False
            )
        except httpx.InvalidURL as error:
            reason = f"{self.url!r} is no URL ({error}); write one such as http://broker:8080"
            raise ConfigError.of("pulsarAdminUrl", reason) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._http.close()

    def ask(self, path: str) -> Any:
        """The answer at a path such as `/v2/clusters`; None for an empty answer."""
        return self._json("", path)

    def version(self) -> str:
        """The broker's release."""
        return self._call("GET", "", "/v2/brokers/version").text.strip()

    def clock_s(self) -> float:
        """Pulsar's time, in seconds since the epoch, accurate to one second."""
        headers = self._call("GET", "", "/v2/brokers/version").headers
        try:
            return parsedate_to_datetime(headers["Date"]).timestamp() + 0.5
        except (KeyError, ValueError):
            raise self._failure("", f"answers without a Date; {_IS_IT}") from None

    def topics(self, namespace: str) -> list[str]:
        """Full names of the namespace's topics. A partitioned topic is listed once, without its partitions."""
        try:
            return sorted(each for each in self.listed_topics(namespace) if "-partition-" not in each)
        except TypeError:
            raise self._failure(namespace, f"answers something else than topics of {namespace}; {_IS_IT}") from None

    def stats(self, topic: str) -> Mapping[str, Any]:
        """The statistics of the whole topic, with the sizes and ages of its backlogs. Raises NotThereError."""
        what = "partitioned-stats?perPartition=true&" if self.partitions(topic) else "stats?"
        options = "getPreciseBacklog=true&getEarliestTimeInBacklog=true"
        found: Mapping[str, Any] = self._of(topic, f"{what}{options}")
        return found

    def sources(self) -> list[str]:
        """Names of all sources of the line's namespace."""
        return sorted(self._asked(f"/v3/sources/{self.namespace}", list))

    def workers(self) -> list[Any]:
        """The functions workers. Only a superuser may list them."""
        return self._asked("/v2/worker/cluster", list)

    def source(self, name: str) -> Mapping[str, Any]:
        """The configuration of a source. Raises NotThereError."""
        return self._asked(f"/v3/sources/{self.namespace}/{name}", dict)

    def source_status(self, name: str) -> Mapping[str, Any]:
        """The status of a source and its instances. Raises NotThereError."""
        return self._asked(f"/v3/sources/{self.namespace}/{name}/status", dict)

    def restart_source(self, name: str) -> None:
        """Restart a source, as `pulsar-admin sources restart` does."""
        self._call("POST", "", f"/v3/sources/{self.namespace}/{name}/restart")

    def peek(self, topic: str, subscription: str, count: int) -> list[bytes]:
        """The first `count` messages in the backlog of a subscription of a topic partition; all if there are fewer.

        The messages stay in the backlog.
        """
        path = f"/v2{topic_path(topic)}/subscription/{quote(subscription, safe='')}/position"

        def message(position: int) -> bytes | None:
            try:
                return self._call("GET", topic, f"{path}/{position}").content
            except NotThereError:
                return None

        found: list[bytes] = []
        with ThreadPoolExecutor(_PEEKS) as pool:
            for first in range(1, count + 1, _PEEKED_TOGETHER):
                asked = range(first, min(first + _PEEKED_TOGETHER, count + 1))
                there = [each for each in pool.map(message, asked) if each is not None]
                found += there
                if len(there) < len(asked):
                    break
        return found

    def examined(self, topic: str, number: int) -> tuple[bytes, float]:
        """Content and age in seconds of the `number`-th newest message of a topic without partitions.

        The age is by Pulsar's own clock, accurate to one second.
        """
        path = f"{self._api}{topic_path(topic)}/examinemessage?initialPosition=latest&messagePosition={number}"
        answer = self._call("GET", topic, path)
        try:
            now, published = answer.headers["Date"], answer.headers["X-Pulsar-publish-time"]
            age_s = parsedate_to_datetime(now).timestamp() - datetime.fromisoformat(published).timestamp()
        except (KeyError, ValueError):
            raise self._failure(topic, f"answers without the time of a message; {_IS_IT}") from None
        return answer.content, max(0.0, age_s)

    def _of(self, topic: str, what: str) -> Any:
        return self._asked(f"{self._api}{topic_path(topic)}/{what}", dict, topic)

    def _asked(self, path: str, kind: type[T], topic: str = "") -> T:
        found = self._json(topic, path)
        if not isinstance(found, kind):
            raise self._failure(topic, f"answers {found!r:.40} to {path.partition('?')[0]}; {_IS_IT}")
        return found

    def _sender(self, method: str, body: object) -> Callable[[str], httpx.Response]:
        headers = {} if self._auth is None else self._auth.http_headers()
        timeout = self._http.timeout if method == "GET" else httpx.Timeout(_RESTART_TIMEOUT_S)

        def send(address: str) -> httpx.Response:
            return self._http.request(method, address, headers=headers, json=body, timeout=timeout)

        if method != "GET":
            return send
        # A GET may be repeated, and the second one takes another connection.
        again = tenacity.retry_if_exception_type(_LOST_CONNECTION)
        return tenacity.retry(retry=again, stop=tenacity.stop_after_attempt(2), reraise=True)(send)

    def _failure(self, topic: str, reason: str) -> PulsarServiceError:
        return PulsarServiceError(f"{self.url}: {reason}")

    def _no_answer(self, topic: str, error: Exception) -> PulsarServiceError:
        reason = explained(str(error) or type(error).__name__)
        return PulsarServiceError(f"{_address(error) or self.url} does not answer ({reason})")

    def _check(self, method: str, path: str, topic: str, answer: httpx.Response) -> None:
        asked, reason = path.partition("?")[0], reason_of(answer) or answer.reason_phrase
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise NotThereError(f"{asked} does not exist ({reason})", answer.status_code)
        if not answer.is_success:
            hint = "" if self._auth is None else self._auth.problem()
            text = f"{self.url} answers {answer.status_code} to {method} {asked} ({reason}){hint}"
            raise PulsarServiceError(text, answer.status_code)


def _address(error: Exception) -> str:
    """The address that did not answer: that of another broker if the service redirected to it. Empty if not known."""
    try:
        url = error.request.url if isinstance(error, httpx.RequestError) else None
    except RuntimeError:  # an error without its request
        return ""
    return "" if url is None else f"{url.scheme}://{url.netloc.decode()}"
