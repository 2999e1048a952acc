"""Choice of the decoder for a segment's sections, by the segment's header.

Cassandra source: o.a.c.db.commitlog.CommitLogSegmentReader (its segmenters), o.a.c.security.EncryptionContext. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from change_agent.commitlog.compression import decompressor_of
from change_agent.commitlog.descriptor import CommitLogDescriptor
from change_agent.commitlog.encryption import AES_BLOCK_SIZE, AES_KEY_SIZES, SectionDecryptor
from change_agent.errors import Damage, KeyStoreError, MalformedSegmentError, SegmentKeyError, UnsupportedEncodingError

__all__ = ["DEFAULT_MAX_SEGMENT_SIZE", "KeyProvider", "SectionDecoder", "SegmentOptions", "section_decoder"]

DEFAULT_MAX_SEGMENT_SIZE: Final = 256 * 1024 * 1024
_CIPHER: Final = "AES/CBC/PKCS5Padding"

# encoded bytes, their decoded length -> decoded bytes; raises MalformedSegmentError
SectionDecoder = Callable[[bytes, int], bytes]


class KeyProvider(Protocol):
    """Source of the keys of encrypted segments."""

    def secret_key(self, alias: str) -> bytes:
        """The bytes of a key. Raises KeyStoreError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOptions:
    """Options for reading segments.

    `keys` are for encrypted segments. `max_segment_size` limits the memory, in bytes, of an entry of a plain segment,
    and of a compressed or encrypted segment: a few bytes can claim to be gigabytes.
    """

    keys: KeyProvider | None = None
    max_segment_size: int = DEFAULT_MAX_SEGMENT_SIZE


def section_decoder(descriptor: CommitLogDescriptor, keys: KeyProvider | None) -> SectionDecoder | None:
    """The decoder of a segment's sections; None if they are plain.

    The header of an encrypted segment may also name a compressor, which has no effect.

    Raises UnsupportedEncodingError, SegmentKeyError, MalformedSegmentError.
    """
    if descriptor.encryption is not None:
        return _decryptor(descriptor, descriptor.encryption, keys)
    if descriptor.compression is not None:
        return decompressor_of(descriptor.compression)
    return None


def _decryptor(descriptor: CommitLogDescriptor, cipher: str, keys: KeyProvider | None) -> SectionDecryptor:
    if cipher.lower() != _CIPHER.lower():
        raise UnsupportedEncodingError(f"encrypted ({cipher})", _CIPHER)
    try:
        iv = bytes.fromhex(descriptor.encryption_parameters.get("encIV", ""))
    except ValueError as error:
        raise MalformedSegmentError(
            "the segment's header has an encIV that is not hexadecimal", damage=Damage.HEADER, position=0
        ) from error
    if len(iv) != AES_BLOCK_SIZE:
        raise MalformedSegmentError(
            f"the segment's header has an encIV of {len(iv)} bytes instead of 16", damage=Damage.HEADER, position=0
        )
    alias = descriptor.encryption_parameters["encKeyAlias"]
    if keys is None:
        raise SegmentKeyError(alias, "give transparent_data_encryption_options (cdc decode: --commitlog-options)")
    try:
        key = keys.secret_key(alias)
    except KeyStoreError as error:
        raise SegmentKeyError(alias, error.reason) from error
    if len(key) not in AES_KEY_SIZES:
        raise SegmentKeyError(alias, f"it has {len(key)} bytes and is no AES key")
    return SectionDecryptor(key, iv)
