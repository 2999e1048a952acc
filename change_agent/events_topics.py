"""EventsTopics: makes sure, through Pulsar's admin REST interface, that an events topic and its subscription exist.

The subscription comes before the first event: a broker keeps nothing for readers that it does not know.
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import quote

import httpx

from change_agent.errors import PublishError
from schemas.errors import ConfigError

__all__ = ["EventsTopics", "PulsarAuth"]

_log: Final = logging.getLogger(__name__)
_TIMEOUT_S: Final = 15.0
_EARLIEST: Final = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
_DONE: Final = frozenset({200, 204, 409})


class PulsarAuth:
    """Credentials as Pulsar's Java clients name them: plugin class and parameters. Prints no secret.

    The constructor raises ConfigError for what the admin interface cannot use.
    """

    def __init__(self, plugin: str, params: str) -> None:
        self.plugin: Final = plugin
        self.params: Final = params
        self._kind: Final = plugin.rpartition(".")[2].removeprefix("Authentication").lower()
        if self._kind not in ("token", "basic", "tls"):
            reason = f"{plugin} cannot be used for pulsarAdminUrl (token, basic and TLS can)"
            raise ConfigError.of("pulsarAuthPluginClassName", reason)
        if self._kind == "basic":
            self._basic()

    def __repr__(self) -> str:
        return f"PulsarAuth(plugin={self.plugin!r}, params='****')"

    def http_headers(self) -> dict[str, str]:
        """What the admin interface wants to see. A token's file is read each time: it may be replaced. Raises OSError."""
        match self._kind:
            case "token":
                return {"Authorization": f"Bearer {self._token()}"}
            case "basic":
                return {"Authorization": f"Basic {base64.b64encode(self._basic().encode()).decode()}"}
            case _:
                return {}

    def _basic(self) -> str:
        try:
            credentials = json.loads(self.params)
            return f"{credentials['userId']}:{credentials['password']}"
        except (ValueError, KeyError, TypeError):
            # The text may be a password: it must not be shown, nor be the cause of what is.
            raise ConfigError.of("pulsarAuthParams", "must be JSON with userId and password") from None

    def client_certificate(self) -> tuple[str, str] | None:
        """Certificate and key files of AuthenticationTls."""
        if self._kind != "tls":
            return None
        params = dict(part.split(":", 1) for part in self.params.split(",") if ":" in part)
        return params.get("tlsCertFile", ""), params.get("tlsKeyFile", "")

    def _token(self) -> str:
        if self.params.startswith("token:"):
            return self.params.removeprefix("token:")
        for prefix in ("file://", "file:"):
            if self.params.startswith(prefix):
                return Path(self.params.removeprefix(prefix)).read_text(encoding="utf-8").strip()
        return self.params


class EventsTopics:
    """Owns the HTTP client. `ensure` may be called by several threads."""

    def __init__(
        self,
        *,
        admin_url: str,
        auth: PulsarAuth | None,
        trust_certificates: Path | None,
        verify_certificates: bool,
        subscription: str,
        partitions: int,
        create: bool,
    ) -> None:
        context = ssl.create_default_context(cafile=None if trust_certificates is None else str(trust_certificates))
        if not verify_certificates:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate = None if auth is None else auth.client_certificate()
        if certificate is not None:
            try:
                context.load_cert_chain(*certificate)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError.of("pulsarAuthParams", f"the client certificate cannot be used ({error})") from error
        self._auth: Final = auth
        self._client: Final = httpx.Client(base_url=f"{admin_url}/admin/v2", timeout=_TIMEOUT_S, verify=context)
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
            self._require_subscription(topic, path)
        return partitions

    def partitions(self, topic: str) -> int:
        """The number of the topic's partitions, 0 when it has none. Raises PublishError."""
        return int(self._call("GET", topic, f"/persistent/{_path(topic)}/partitions").json().get("partitions", 0))

    def _require_subscription(self, topic: str, path: str) -> None:
        found = self._call("GET", topic, f"/persistent/{path}/subscriptions").json()
        if self._subscription not in found:
            raise PublishError(
                topic, f"has no subscription {self._subscription!r}; create it, or let createTopics be true"
            )

    def _call(self, method: str, topic: str, path: str, json: object = None) -> httpx.Response:
        try:
            headers = {} if self._auth is None else self._auth.http_headers()
            response = self._client.request(method, path, headers=headers, json=json)
        except (httpx.HTTPError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise PublishError(topic, f"Pulsar's admin interface at {self._client.base_url.host}: {reason}") from error
        if response.status_code == httpx.codes.NOT_FOUND and method == "GET":
            raise PublishError(topic, "does not exist; create it, or let createTopics be true")
        if response.status_code not in _DONE:
            raise PublishError(topic, f"{method} {path}: {response.status_code} {_reason(response)}")
        return response


def _path(topic: str) -> str:
    return "/".join(quote(part, safe="") for part in topic.removeprefix("persistent://").split("/"))


def _reason(response: httpx.Response) -> str:
    try:
        return str(response.json().get("reason", ""))[:200]
    except (ValueError, AttributeError):
        return " ".join(response.text.split())[:200]
