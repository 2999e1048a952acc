"""What the bridge asks Pulsar's admin service: does the topic exist, where does it end, which schemas has it had.

REST of Pulsar 4: /admin/v2/persistent/{topic}/partitions, lastMessageId, internalStats; /admin/v2/schemas/{topic}/schemas.
The admin service is asked because a client's look-up of a missing topic would create it.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, cast

import httpx
import tenacity

from spark_bridge.authentication import http_certificate, http_headers
from spark_bridge.errors import PulsarUnreachableError, TopicError
from spark_bridge.options import BridgeOptions
from spark_bridge.positions import BEGINNING, Ledger, Position

__all__ = ["PulsarAdmin"]

Json = Mapping[str, object]


class PulsarAdmin:
    """Questions about one topic; owns its HTTP connections. Raises PulsarUnreachableError and TopicError."""

    def __init__(self, options: BridgeOptions, *, patience_s: float = 5.0) -> None:
        """`patience_s`: for how long a service that does not answer is asked again."""
        self._topic = options.topic
        self._url = options.admin_url
        self._patience_s = patience_s
        self._http = httpx.Client(
            base_url=f"{options.admin_url}/admin/v2",
            headers=dict(http_headers(options)),
            verify=_verification(options),
            timeout=httpx.Timeout(options.operation_timeout_seconds, connect=min(5, options.operation_timeout_seconds)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def topic_partitions(self) -> list[str]:
        """Names of the topic's partitions in order; the topic itself when it has none."""
        answer = self._get(f"/{self._path(self._topic)}/partitions")
        count = cast("int", answer["partitions"])
        return [f"{self._topic}-partition-{i}" for i in range(count)] if count else [self._topic]

    def last_position(self, topic: str) -> Position:
        """The last entry of a topic partition; an entry of -1 when there is nothing in it."""
        answer = self._of_partition(topic, "lastMessageId")
        if answer is None:
            return BEGINNING
        return Position(cast("int", answer["ledgerId"]), cast("int", answer["entryId"]))

    def ledgers(self, topic: str) -> list[Ledger]:
        """The ledgers of a topic partition that still exist, in order."""
        answer = self._of_partition(topic, "internalStats") or {"ledgers": []}
        ledgers = [
            Ledger(ledger=cast("int", each["ledgerId"]), entries=cast("int", each["entries"]))
            for each in cast("Sequence[Json]", answer["ledgers"])
        ]
        if ledgers and not ledgers[-1].entries:
            ledgers[-1] = Ledger(ledger=ledgers[-1].ledger, entries=cast("int", answer["currentLedgerEntries"]))
        return ledgers

    def schemas(self) -> list[Json]:
        """Every version of the topic's schema as the registry gives it: version, type, data, properties."""
        path = self._topic.removeprefix("persistent://")
        answer = self._get(f"/schemas/{path}/schemas")
        return list(cast("Sequence[Json]", answer["getSchemaResponses"]))

    def _of_partition(self, topic: str, what: str) -> Json | None:
        """None for a partition of the topic that has no data: the broker deletes it when it is idle, with a 404."""
        try:
            return self._get(f"/{self._path(topic)}/{what}")
        except TopicError:
            if topic == self._topic:
                raise
            return None

    @staticmethod
    def _path(topic: str) -> str:
        return topic.replace("://", "/", 1)

    def _get(self, path: str) -> Json:
        response = self._patiently(lambda: self._http.get(path))
        if response.status_code == httpx.codes.NOT_FOUND:
            raise TopicError(self._topic, f"does not exist ({_reason(response)}); create it or check the option topic")
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            reason = (
                f"refuses to tell about {self._topic} ({_reason(response)}); check authPluginClassName and authParams"
            )
            raise PulsarUnreachableError(self._url, reason)
        if response.is_error:
            raise PulsarUnreachableError(self._url, f"answers {response.status_code} to {path} ({_reason(response)})")
        return cast("Json", response.json())

    def _patiently(self, ask: Callable[[], httpx.Response]) -> httpx.Response:
        """Ask again while nobody answers or the broker is starting or handing the topic over."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._patience_s),
            wait=tenacity.wait_exponential(multiplier=0.1, max=2),
            retry=tenacity.retry_if_exception_type(httpx.TransportError)
            | tenacity.retry_if_result(lambda response: response.status_code >= 500),
            retry_error_callback=_last_outcome,
        )
        try:
            return retrying(ask)
        except httpx.TransportError as error:
            reason = f"the admin service does not answer ({error}); start it or check the option adminUrl"
            raise PulsarUnreachableError(self._url, reason) from None


def _last_outcome(state: tenacity.RetryCallState) -> httpx.Response:
    assert state.outcome is not None
    return cast("httpx.Response", state.outcome.result())


def _reason(response: httpx.Response) -> str:
    try:
        return str(response.json()["reason"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"


def _verification(options: BridgeOptions) -> ssl.SSLContext | bool:
    if not options.admin_url.startswith("https://"):
        return True
    context = ssl.create_default_context(cafile=options.tls_trust_certs_file_path)
    context.check_hostname = options.tls_hostname_verification_enable and not options.tls_allow_insecure_connection
    if options.tls_allow_insecure_connection:
        context.verify_mode = ssl.CERT_NONE
    certificate = http_certificate(options)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context
