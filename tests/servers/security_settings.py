"""Settings with which a test's node or Pulsar requires certificates, passwords and tokens, and the tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Final

from cdc.sandbox.options import Json
from tests.servers.certificates import STORE_PASSWORD

__all__ = ["HTTPS_PORT", "TLS_PORT", "node_tls", "pulsar_tls", "pulsar_tokens", "token"]

# Fixed ports are possible, because the sandbox's Pulsar has its own address.
TLS_PORT: Final = 6651
HTTPS_PORT: Final = 8443
_TOKEN_KEY: Final = b"not a secret: it is for a test's own server"


def token(role: str, *, ends_at_s: int | None = None) -> str:
    """A JWT (HS256) of this role. `ends_at_s`: when it expires, in seconds since the epoch."""

    def part(document: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=")

    claims: dict[str, object] = {"sub": role} if ends_at_s is None else {"sub": role, "exp": ends_at_s}
    signed = part({"alg": "HS256"}) + b"." + part(claims)
    signature = base64.urlsafe_b64encode(hmac.new(_TOKEN_KEY, signed, hashlib.sha256).digest()).rstrip(b"=")
    return (signed + b"." + signature).decode()


def node_tls(folder: Path, *, optional: bool) -> dict[str, Json]:
    """Settings of a node that requires a certificate of clients with TLS. With `optional` false it requires TLS of all.

    `folder`: the folder of a CertificateAuthority that has issued `node`.
    """
    return {
        "client_encryption_options": {
            "enabled": True,
            "optional": optional,
            "require_client_auth": True,
            "store_type": "PKCS12",
            "keystore": str(folder / "node.p12"),
            "keystore_password": STORE_PASSWORD,
            "truststore": str(folder / "ca.p12"),
            "truststore_password": STORE_PASSWORD,
        }
    }


def pulsar_tls(folder: Path) -> dict[str, str]:
    """Settings of a Pulsar that has two further ports with TLS. The authority in `folder` must have issued `broker`."""
    return {
        "brokerServicePortTls": str(TLS_PORT),
        "webServicePortTls": str(HTTPS_PORT),
        "tlsCertificateFilePath": str(folder / "broker.pem"),
        "tlsKeyFilePath": str(folder / "broker.key"),
        "tlsTrustCertsFilePath": str(folder / "ca.pem"),
    }


def pulsar_tokens(*, super_users: str, certificates_too: bool = False) -> dict[str, str]:
    """Settings of a Pulsar with authorization by role. Roles log in with tokens of `token` or with certificates."""
    provider = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": f"{provider}Tls,{provider}Token" if certificates_too else f"{provider}Token",
        "tokenSecretKey": "data:;base64," + base64.b64encode(_TOKEN_KEY).decode(),
        "superUserRoles": super_users,
    }
