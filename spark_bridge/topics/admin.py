"""Requests to Pulsar's admin service: does the topic exist, where does it end, which schemas has it had.

REST of Pulsar 4: /admin/v2/persistent/{topic}/partitions, lastMessageId, internalStats, internal-info, messageid, subscription;
/admin/v2/schemas/{topic}/schemas.
The admin service is asked because a client's look-up of a missing topic would create it. A broker that does not own the
topic names the one that does, which is asked then.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self, cast

import httpx

from schemas.certificate_refusal import certificate_refusal
from schemas.redirects import RedirectError, redirected
from spark_bridge.errors import PulsarUnreachableError, TopicError
from spark_bridge.topics.authentication import ended, http_certificate, http_headers
from spark_bridge.topics.issued_tokens import trusting
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.patience import patiently
from spark_bridge.topics.positions import BEGINNING, Ledger, Position, topic_of

__all__ = ["PulsarAdmin"]

Json = Mapping[str, object]


class PulsarAdmin:
    """Questions about the topics that the options name; owns its HTTP connections. Raises PulsarUnreachableError and TopicError."""

    def __init__(self, options: BridgeOptions, *, patience_s: float = 5.0) -> None:
        """`patience_s`: for how long a service that does not answer is asked again."""
        self._options = options
        self._topics = options.topic_names
        self._pattern = options.topics_pattern
        self._url = options.admin_url
        self._patience_s = patience_s
        self._http = httpx.Client(
            base_url=f"{options.admin_url}/admin/v2",
            headers=dict(http_headers(options, patience_s=patience_s)),
            # without https no certificates are loaded: that takes longer than to ask
            verify=_verification(options)
            if _is_encrypted(options.admin_url)
            else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            timeout=httpx.Timeout(options.operation_timeout_seconds, connect=min(5, options.operation_timeout_seconds)),
        )
        self._encrypted: httpx.Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()
        if self._encrypted is not None:
            self._encrypted.close()

    def topics(self) -> list[str]:
        """The topics that the options name; with a pattern, those that there are now, by name."""
        if self._pattern is None:
            return list(self._topics)
        namespace, name = self._pattern.rsplit("/", 1)
        path = "/" + self._path(namespace)
        listed = [*self._list(f"{path}/partitioned"), *self._list(path)]
        wanted = re.compile(name)
        names = {topic_of(each)[0] for each in listed}
        return sorted(each for each in names if wanted.fullmatch(each.rsplit("/", 1)[1]))

    def topic_partitions(self) -> list[str]:
        """Names of the topics' partitions in order; the topic itself when it has none."""
        return [each for topic in self.topics() for each in self._partitions(topic)]

    def last_position(self, topic: str) -> Position:
        """The last entry of a topic partition; an entry of -1 when there is nothing in it."""
        answer = self._of_partition(topic, "lastMessageId")
        return BEGINNING if answer is None else _position(answer)

    def position_before(self, topic: str, time_ms: int) -> Position:
        """The entry before the first one that was published at this time or later; the last one when there is none."""
        answer = self._of_partition(topic, f"messageid/{time_ms}")
        if answer is None:
            return BEGINNING
        found, last = _position(answer), self.last_position(topic)
        return last if found > last else Position(found.ledger, found.entry - 1)

    def ledgers(self, topic: str) -> list[Ledger]:
        """The ledgers of a topic partition that still exist, in order."""
        return self.storage(topic)[0]

    def storage(self, topic: str) -> tuple[list[Ledger], Mapping[str, Position]]:
        """The ledgers of a topic partition, and how far each durable subscription has acknowledged all."""
        answer = self._of_partition(topic, "internalStats") or {"ledgers": [], "cursors": {}}
        ledgers = [
            Ledger(
                ledger=cast("int", each["ledgerId"]),
                entries=cast("int", each["entries"]),
                size_bytes=cast("int", each["size"]),
            )
            for each in cast("Sequence[Json]", answer["ledgers"])
        ]
        if ledgers and not ledgers[-1].entries:  # the one that is written to
            ledgers[-1] = replace(
                ledgers[-1],
                entries=cast("int", answer["currentLedgerEntries"]),
                size_bytes=cast("int", answer["currentLedgerSize"]),
            )
        cursors = cast("Mapping[str, Json]", answer["cursors"])
        return ledgers, {name: Position.parse(str(each["markDeletePosition"])) for name, each in cursors.items()}

    def creation(self, topic: str) -> str | None:
        """When a topic partition was made, as text: another one of this name has another. None: Pulsar does not tell."""
        response = self._patiently("GET", f"/{self._path(topic)}/internal-info")
        told = cast("Json", response.json()).get("creationDate") if response.is_success and response.content else None
        return None if told is None else str(told)

    def keep_subscription(self, topic: str, subscription: str, position: Position) -> None:
        """Move a durable subscription to behind a position, made before if it is not there: older data may go."""
        path = f"/{self._path(topic)}/subscription/{subscription}"
        made = self._patiently("PUT", path, {"ledgerId": -1, "entryId": -1})
        if made.status_code != httpx.codes.CONFLICT:
            self._checked(path, topic, made)
        if position == BEGINNING:
            return
        body = {
            "ledgerId": position.ledger,
            "entryId": position.entry,
            "partitionIndex": topic_of(topic)[1],
            "isExcluded": True,
        }
        self._checked(path, topic, self._patiently("POST", f"{path}/resetcursor", body))

    def properties(self, topic: str) -> Mapping[str, str]:
        """What was noted of a topic, by name."""
        return cast("Mapping[str, str]", self._get(f"/{self._path(topic)}/properties", topic))

    def set_property(self, topic: str, name: str, value: str) -> None:
        """Note something of a topic, beside what was noted before."""
        path = f"/{self._path(topic)}/properties"
        self._checked(path, topic, self._patiently("PUT", path, {name: value}))

    def schemas(self, topic: str) -> list[Json]:
        """Every version of a topic's schema as the registry gives it: version, type, data, properties."""
        answer = self._get(f"/schemas/{topic.removeprefix('persistent://')}/schemas", topic)
        return list(cast("Sequence[Json]", answer["getSchemaResponses"]))

    def _partitions(self, topic: str) -> list[str]:
        answer = self._get(f"/{self._path(topic)}/partitions", topic)
        count = cast("int", answer["partitions"])
        return [f"{topic}-partition-{i}" for i in range(count)] if count else [topic]

    def _of_partition(self, topic: str, what: str) -> Json | None:
        """None for a partition of a topic that has no data: the broker deletes it when it is idle, with a 404."""
        try:
            return self._get(f"/{self._path(topic)}/{what}", topic)
        except TopicError:
            if topic_of(topic)[1] < 0:
                raise
            return None

    @staticmethod
    def _path(topic: str) -> str:
        return topic.replace("://", "/", 1)

    def _list(self, path: str) -> Sequence[str]:
        return cast("Sequence[str]", self._get(path, self._pattern or ""))

    def _get(self, path: str, topic: str) -> Json:
        return self._checked(path, topic, self._patiently("GET", path))

    def _checked(self, path: str, topic: str, response: httpx.Response) -> Json:
        if response.status_code == httpx.codes.NOT_FOUND:
            raise TopicError(topic, f"does not exist ({_reason(response)}); create it or check the option topic")
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            why = ended(self._options) or _reason(response)
            reason = f"refuses access to {topic} ({why}); check authPluginClassName and authParams"
            raise PulsarUnreachableError(self._url, reason)
        if not response.is_success:
            raise PulsarUnreachableError(self._url, f"answers {response.status_code} to {path} ({_reason(response)})")
        return cast("Json", response.json()) if response.content else {}

    def _patiently(self, method: str, path: str, body: Json | None = None) -> httpx.Response:
        """Ask again while nobody answers or the broker is starting or handing the topic over."""

        def ask() -> httpx.Response:
            return redirected(lambda address: self._client(address).request(method, address, json=body), path)

        try:
            return patiently(ask, self._patience_s)
        except (RedirectError, httpx.InvalidURL) as error:
            raise PulsarUnreachableError(self._url, str(error)) from None
        except httpx.TransportError as error:
            raise self._no_answer(error) from None

    def _client(self, address: str) -> httpx.Client:
        """Another one where an admin service in the clear redirects to an encrypted one."""
        if _is_encrypted(self._url) or not _is_encrypted(address):
            return self._http
        if self._encrypted is None:
            self._encrypted = httpx.Client(
                headers=self._http.headers, verify=_verification(self._options), timeout=self._http.timeout
            )
        return self._encrypted

    def _no_answer(self, error: httpx.TransportError) -> PulsarUnreachableError:
        refusal = certificate_refusal(str(error))
        check = "start it or check the option adminUrl"
        if refusal:
            check = "check tlsTrustCertsFilePath and tlsHostnameVerificationEnable"
        asked = error.request.url.copy_with(path="/", query=None)
        who = "the admin service"
        if (asked.host, asked.port) != (self._http.base_url.host, self._http.base_url.port):
            who += f" redirects to {str(asked).rstrip('/')}, which"
        return PulsarUnreachableError(self._url, f"{who} does not answer ({refusal or error}); {check}")


def _position(message_id: Json) -> Position:
    return Position(cast("int", message_id["ledgerId"]), cast("int", message_id["entryId"]))


def _reason(response: httpx.Response) -> str:
    try:
        return str(response.json()["reason"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"


def _is_encrypted(address: str) -> bool:
    return address.startswith("https://")


def _verification(options: BridgeOptions) -> ssl.SSLContext:
    context = trusting(options)
    context.check_hostname = options.tls_hostname_verification_enable and not options.tls_allow_insecure_connection
    if options.tls_allow_insecure_connection:
        context.verify_mode = ssl.CERT_NONE
    certificate = http_certificate(options)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context
