"""Decryption of whole messages by a block cipher in CBC mode with the padding of PKCS #7 (Java: PKCS5Padding). Pure."""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers import Cipher, CipherAlgorithm
from cryptography.hazmat.primitives.ciphers.modes import CBC

__all__ = ["decrypt_cbc"]


def decrypt_cbc(algorithm: CipherAlgorithm, iv: bytes, encrypted: bytes) -> bytes | None:
    """The plain bytes; None when the length, or the padding behind the plain bytes, is wrong."""
    block = len(iv)
    if not encrypted or len(encrypted) % block:
        return None
    decryptor = Cipher(algorithm, CBC(iv)).decryptor()
    padded = decryptor.update(encrypted) + decryptor.finalize()
    length = padded[-1]
    if not 1 <= length <= block or padded[-length:] != bytes([length]) * length:
        return None
    return padded[:-length]
