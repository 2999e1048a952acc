"""ended_token: finds an expired token. Any other text is left to the broker."""

from __future__ import annotations

import base64
import json

import pytest

from clients.pulsar_auth import ended_token


def _jwt(claims: object) -> str:
    return ".".join(
        base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in ({}, claims, 1)
    )


def test_an_ended_token_is_told_with_its_end() -> None:
    """The time is in UTC, and the message does not show the token."""
    token = _jwt({"sub": "x", "exp": 1_700_000_000})
    assert ended_token(token, 1_700_000_000) == "the token ended at 2023-11-14T22:13:20Z: give a new one"
    assert ended_token(token, 1_699_999_999) is None


@pytest.mark.parametrize(
    "token",
    [
        _jwt({"sub": "x"}),
        _jwt({"exp": "soon"}),
        _jwt({"exp": 1e300}),
        _jwt([1]),
        _jwt(1),
        "",
        "a.b",
        "a.b.c",
        "..",
        "a.é.c",
    ],
)
def test_what_has_no_end_or_is_no_token_is_not_judged(token: str) -> None:
    """Only the broker can judge such a token."""
    assert ended_token(token, 2_000_000_000) is None
