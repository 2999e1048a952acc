"""Decryption of sections: blocks that were compressed with LZ4, then encrypted with AES.

    Section => {Block}
    Block   => EncryptedLength PlainLength Encrypted
      EncryptedLength => Int32, of Encrypted: a multiple of the cipher's block
      PlainLength     => Int32, of Plain
      Encrypted       => bytes; decrypted, without padding: Plain
    Plain   => UncompressedLength Lz4
      UncompressedLength => Int32

All blocks have the same initialization vector, which is in the segment's header.
Cassandra source: o.a.c.security.EncryptionUtils, o.a.c.db.commitlog.EncryptedSegment.write. Pure.
"""

from __future__ import annotations

import struct
from typing import Final

from change_agent.commitlog.compression import decompress_lz4
from change_agent.errors import MalformedSegmentError
from change_agent.security.block_cipher import aes, decrypt_cbc

__all__ = ["AES_BLOCK_SIZE", "AES_KEY_SIZES", "SectionDecryptor"]

AES_BLOCK_SIZE: Final = 16
AES_KEY_SIZES: Final = (16, 24, 32)
_LENGTHS: Final = struct.Struct(">ii")
_LENGTH: Final = struct.Struct(">i")


class SectionDecryptor:
    """Decrypts the sections of one segment."""

    def __init__(self, key: bytes, iv: bytes) -> None:
        self._algorithm: Final = aes(key)
        self._iv: Final = iv

    def __call__(self, encrypted: bytes, length: int) -> bytes:
        """The `length` bytes of the decrypted section. Raises MalformedSegmentError."""
        blocks, position, total = [], 0, 0
        while position < len(encrypted):
            block, position = self._block(encrypted, position, length - total)
            blocks.append(block)
            total += len(block)
        if total != length:
            raise MalformedSegmentError(f"a section claims {length} bytes and its blocks hold {total}")
        return b"".join(blocks)

    def _block(self, encrypted: bytes, position: int, space: int) -> tuple[bytes, int]:
        start = position + _LENGTHS.size
        if start > len(encrypted):
            raise MalformedSegmentError("a section ends inside the header of an encrypted block")
        size, plain_size = _LENGTHS.unpack_from(encrypted, position)
        if size <= 0 or size % AES_BLOCK_SIZE or start + size > len(encrypted):
            raise MalformedSegmentError(f"an encrypted block claims {size} bytes, which cannot be")
        plain = decrypt_cbc(self._algorithm, self._iv, encrypted[start : start + size])
        if plain is None or len(plain) != plain_size or plain_size < _LENGTH.size:
            raise MalformedSegmentError("a block cannot be decrypted: the key is another one, or the bytes are damaged")
        (length,) = _LENGTH.unpack_from(plain)
        if not 0 <= length <= space:
            raise MalformedSegmentError(
                f"an encrypted block claims to be {length} bytes, where its section has {space}"
            )
        return decompress_lz4(plain[_LENGTH.size :], length), start + size
