"""Requests of Pulsar's functions workers, as bytes."""

from __future__ import annotations

__all__ = ["source_request"]


def _field(number: int, value: bytes | int) -> bytes:
    """A field of a protobuf message, of fewer than 128 bytes."""
    return bytes([number << 3, value]) if isinstance(value, int) else bytes([number << 3 | 2, len(value)]) + value


def source_request(name: str, *, state: int | None = None) -> bytes:
    """A `ServiceRequest` about a source of public/default. `state`: that of its instance 0; 1 is STOPPED."""
    details = b"".join(_field(n, text) for n, text in enumerate((b"public", b"default", name.encode()), 1))
    states = b"" if state is None else _field(5, _field(1, 0) + _field(2, state))
    return _field(1, 0) + _field(2, b"id") + _field(3, _field(1, details) + _field(3, 7) + states)
