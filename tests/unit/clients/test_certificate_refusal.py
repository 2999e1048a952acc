"""certificate_refusal: finds the reason in a client's message about a refused certificate."""

from __future__ import annotations

import pytest

from clients.tls import certificate_refusal


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[Errno 1] Tried connecting to [('127.0.0.1', 9042)]. Last error: [SSL: CERTIFICATE_VERIFY_FAILED] certificate "
            "verify failed: IP address mismatch, certificate is not valid for '127.0.0.1'. (_ssl.c:1006)",
            "certificate verify failed: IP address mismatch, certificate is not valid for '127.0.0.1'",
        ),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate (_ssl.c:1028)",
            "certificate verify failed: unable to get local issuer certificate",
        ),
        ("certificate verify failed: certificate has expired.", "certificate verify failed: certificate has expired"),
        ("[Errno 111] Connection refused", None),
    ],
)
def test_the_reason_is_openssls_own(text: str, reason: str | None) -> None:
    """It has neither addresses nor line numbers of OpenSSL's source."""
    assert certificate_refusal(text) == reason
