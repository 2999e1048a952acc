"""PulsarService: what a line's operator asks Pulsar's admin service: topics, their statistics and policies, sources, the worker."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx

from cdc.health.line_config import LineConfig
from change_agent.configuration.pulsar_auth import PulsarAuth
from schemas.certificate_refusal import certificate_refusal
from schemas.client_credentials import TokenIssueError
from schemas.errors import CdcError, ConfigError
from schemas.redirects import RedirectError, redirected
from schemas.topics import rest_path

__all__ = ["NotThereError", "PulsarService", "PulsarServiceError", "auth_of"]

_TIMEOUT_S: Final = 10.0
# It ends the process of an instance first.
_RESTART_TIMEOUT_S: Final = 60.0
_MOST_SHOWN: Final = 300


class PulsarServiceError(CdcError):
    """The admin service does not answer, or refuses."""


class NotThereError(PulsarServiceError):
    """What was asked about does not exist."""


class PulsarService:
    """Owns an HTTP client, for any thread; each question may wait for Pulsar. Raises PulsarServiceError."""

    def __init__(self, config: LineConfig, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.url: Final = config.pulsar_admin_url
        self.namespace: Final = config.namespace
        self._auth: Final = auth_of(config)
        # A proxy of the user's network knows nothing of brokers.
        self._http: Final = httpx.Client(
            base_url=f"{self.url}/admin", timeout=timeout_s, verify=_tls(config, self._auth), trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def ask(self, path: str) -> Any:
        """What is there, such as `/v2/clusters`; None for an empty answer."""
        answer = self._call("GET", path)
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise PulsarServiceError(f"{self.url} answers something else than JSON to {path}") from error

    def version(self) -> str:
        """The broker's release."""
        return self._call("GET", "/v2/brokers/version").text.strip()

    def clock_s(self) -> float:
        """What time it is there, in seconds of the epoch, to within one."""
        return parsedate_to_datetime(self._call("GET", "/v2/brokers/version").headers["Date"]).timestamp() + 0.5

    def ask_of_topic(self, topic: str, path: str) -> Any:
        """A question of `schemas.topic_policies`."""
        return self.ask(f"/v2{path}")

    def topics(self, namespace: str) -> list[str]:
        """Full names of the namespace's topics, partitioned ones by their own name."""
        partitioned = list(self.ask(f"/v2/persistent/{namespace}/partitioned"))
        others = [each for each in self.ask(f"/v2/persistent/{namespace}") if "-partition-" not in each]
        return sorted({*partitioned, *others})

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has, 0 for one without. Raises NotThereError."""
        return int(self.ask(f"/v2/persistent/{rest_path(topic)}/partitions")["partitions"])

    def stats(self, topic: str) -> Mapping[str, Any]:
        """Of the topic as a whole, backlogs and their ages included. Raises NotThereError."""
        what = "partitioned-stats?perPartition=true&" if self.partitions(topic) else "stats?"
        options = "getPreciseBacklog=true&getEarliestTimeInBacklog=true"
        found: Mapping[str, Any] = self.ask(f"/v2/persistent/{rest_path(topic)}/{what}{options}")
        return found

    def last_entry(self, topic: str) -> tuple[int, int]:
        """Ledger and entry of a topic partition's last message. Raises NotThereError."""
        found = self.ask(f"/v2/persistent/{rest_path(topic)}/lastMessageId")
        return int(found["ledgerId"]), int(found["entryId"])

    def sources(self) -> list[str]:
        """Names of all sources of the line's namespace."""
        return sorted(self.ask(f"/v3/sources/{self.namespace}"))

    def source(self, name: str) -> Mapping[str, Any]:
        """Its configuration. Raises NotThereError."""
        found: Mapping[str, Any] = self.ask(f"/v3/sources/{self.namespace}/{name}")
        return found

    def source_status(self, name: str) -> Mapping[str, Any]:
        """How its instances do. Raises NotThereError."""
        found: Mapping[str, Any] = self.ask(f"/v3/sources/{self.namespace}/{name}/status")
        return found

    def restart_source(self, name: str) -> None:
        """`pulsar-admin sources restart`."""
        self._call("POST", f"/v3/sources/{self.namespace}/{name}/restart", timeout_s=_RESTART_TIMEOUT_S)

    def peek(self, topic: str, subscription: str, count: int) -> list[bytes]:
        """Up to so many of the messages that wait for a subscription of a topic partition; they stay."""
        found = []
        for position in range(1, count + 1):
            path = f"/v2/persistent/{rest_path(topic)}/subscription/{quote(subscription, safe='')}/position/{position}"
            try:
                found.append(self._call("GET", path).content)
            except PulsarServiceError:
                break
        return found

    def _call(self, method: str, path: str, timeout_s: float | None = None) -> httpx.Response:
        timeout = self._http.timeout if timeout_s is None else httpx.Timeout(timeout_s)

        def ask(address: str) -> httpx.Response:
            return self._http.request(method, address, headers=headers, timeout=timeout)

        try:
            headers = {} if self._auth is None else self._auth.http_headers()
            answer = redirected(ask, path)
        except (RedirectError, TokenIssueError, ConfigError, httpx.InvalidURL) as error:
            raise PulsarServiceError(f"{self.url}: {error}") from error
        except (httpx.HTTPError, OSError) as error:
            reason = str(error) or type(error).__name__
            if refusal := certificate_refusal(reason):
                reason = f"{refusal}; check tlsTrustCertsFilePath and sslHostnameVerificationEnable"
            raise PulsarServiceError(f"{self.url} does not answer ({reason})") from error
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise NotThereError(f"{path.partition('?')[0]} does not exist ({_reason(answer)})")
        if not answer.is_success:
            hint = "" if self._auth is None else self._auth.problem()
            text = f"{self.url} answers {answer.status_code} to {method} {path.partition('?')[0]} ({_reason(answer)})"
            raise PulsarServiceError(text + hint)
        return answer


def auth_of(config: LineConfig) -> PulsarAuth | None:
    """The credentials for the broker and its admin service. Raises ConfigError."""
    if config.pulsar_auth_plugin_class_name is None:
        return None
    params = config.pulsar_auth_params
    return PulsarAuth(config.pulsar_auth_plugin_class_name, "" if params is None else params.get_secret_value())


def _tls(config: LineConfig, auth: PulsarAuth | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=_text(config.tls_trust_certs_file_path))
    context.check_hostname = config.ssl_hostname_verification_enable and not config.ssl_allow_insecure_connection
    if config.ssl_allow_insecure_connection:
        context.verify_mode = ssl.CERT_NONE
    if auth is not None:
        auth.use_certificate(context)
    return context


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _reason(answer: httpx.Response) -> str:
    try:
        reason = str(answer.json()["reason"])
    except (ValueError, KeyError, TypeError):
        reason = " ".join(answer.text.split()) or answer.reason_phrase
    return reason if len(reason) <= _MOST_SHOWN else f"{reason[:_MOST_SHOWN]}..."
