"""The Cassandra variants whose commit logs are tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from cdc.sandbox.options import Json

__all__ = ["CIPHER", "ENCODED_VARIANTS", "PLAIN_VARIANTS", "STORE_PASSWORD", "VARIANTS", "Variant", "encryption"]

_KEY_STORES: Final = Path(__file__).parents[1] / "golden" / "key_stores"
STORE_PASSWORD: Final = "store-secret"
CIPHER: Final = "AES/CBC/PKCS5Padding"
_KEY_PASSWORDS: Final = {"keys.jceks": "key-secret"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A Cassandra line, the version of its commit log, and settings in addition to the sandbox's."""

    line: str
    version: int
    settings: Mapping[str, Json] = field(default_factory=dict)

    @property
    def encoding(self) -> str | None:
        """The encoding in the headers of its segments: the cipher, or the compressor's class, or None."""
        if "transparent_data_encryption_options" in self.settings:
            return CIPHER
        compressors = self.settings.get("commitlog_compression")
        return cast(list[dict[str, str]], compressors)[0]["class_name"] if compressors else None

    def with_settings(self, *settings: Mapping[str, Json]) -> Variant:
        """Return the variant with additional settings."""
        return Variant(
            line=self.line,
            version=self.version,
            settings={name: value for each in (self.settings, *settings) for name, value in each.items()},
        )


def compression(class_name: str, **parameters: str) -> dict[str, Json]:
    """The setting that compresses the commit log."""
    return {"commitlog_compression": [{"class_name": class_name, "parameters": [dict(parameters)]}]}


def encryption(key_store: str, chunk_length_kb: int = 64) -> dict[str, Json]:
    """The setting that encrypts the commit log, with a key of tests/golden/key_stores."""
    parameters: dict[str, Json] = {
        "keystore": str(_KEY_STORES / key_store),
        "keystore_password": STORE_PASSWORD,
        "store_type": "JCEKS" if key_store.endswith(".jceks") else "PKCS12",
    }
    if key_store in _KEY_PASSWORDS:
        parameters["key_password"] = _KEY_PASSWORDS[key_store]
    return {
        "transparent_data_encryption_options": {
            "enabled": True,
            "chunk_length_kb": chunk_length_kb,
            "cipher": CIPHER,
            "key_alias": "Testing:1",
            "key_provider": [
                {"class_name": "org.apache.cassandra.security.JKSKeyProvider", "parameters": [parameters]}
            ],
        }
    }


PLAIN_VARIANTS: Final[dict[str, Variant]] = {
    "3.11": Variant(line="3.11", version=6),
    "4.0": Variant(line="4.0", version=7),
    "4.1": Variant(line="4.1", version=7),
    "5.0": Variant(line="5.0", version=7),
    "5.0-none": Variant(line="5.0", version=8, settings={"storage_compatibility_mode": "NONE"}),
}

_LZ4: Final = compression("LZ4Compressor")
_SNAPPY: Final = compression("SnappyCompressor")
_DEFLATE: Final = compression("DeflateCompressor")
_ZSTD: Final = compression("ZstdCompressor", compression_level="5")

# Small segments of these variants are kept in tests/golden. One of them has the class with its package, one the high
# compressor, and one both encodings at once; some have small chunks.
ENCODED_VARIANTS: Final[dict[str, Variant]] = {
    "3.11-lz4": PLAIN_VARIANTS["3.11"].with_settings(_LZ4),
    "3.11-snappy": PLAIN_VARIANTS["3.11"].with_settings(_SNAPPY),
    "3.11-deflate": PLAIN_VARIANTS["3.11"].with_settings(_DEFLATE),
    "3.11-jceks": PLAIN_VARIANTS["3.11"].with_settings(encryption("keys.jceks")),
    "4.0-zstd": PLAIN_VARIANTS["4.0"].with_settings(_ZSTD),
    "4.1-lz4": PLAIN_VARIANTS["4.1"].with_settings(
        compression("org.apache.cassandra.io.compress.LZ4Compressor", lz4_compressor_type="high")
    ),
    "4.1-snappy": PLAIN_VARIANTS["4.1"].with_settings(_SNAPPY),
    "4.1-deflate": PLAIN_VARIANTS["4.1"].with_settings(_DEFLATE),
    "4.1-zstd": PLAIN_VARIANTS["4.1"].with_settings(_ZSTD),
    "4.1-p12": PLAIN_VARIANTS["4.1"].with_settings(encryption("keys.p12", chunk_length_kb=1)),
    "5.0-lz4": PLAIN_VARIANTS["5.0"].with_settings(_LZ4),
    "5.0-snappy": PLAIN_VARIANTS["5.0"].with_settings(_SNAPPY),
    "5.0-deflate": PLAIN_VARIANTS["5.0"].with_settings(_DEFLATE),
    "5.0-zstd": PLAIN_VARIANTS["5.0"].with_settings(_ZSTD),
    "5.0-noop": PLAIN_VARIANTS["5.0"].with_settings(compression("NoopCompressor")),
    "5.0-jceks": PLAIN_VARIANTS["5.0"].with_settings(encryption("keys.jceks", chunk_length_kb=1), _LZ4),
    "5.0-none-p12": PLAIN_VARIANTS["5.0-none"].with_settings(encryption("legacy.p12")),
}

# The variants that the integration tests start: each version once, with different encodings. (The bytes of a mutation
# depend only on the version. tests/golden has plain segments of every version, and more encodings.)
VARIANTS: Final[dict[str, Variant]] = {
    "3.11-deflate": ENCODED_VARIANTS["3.11-deflate"],
    "4.0-zstd": ENCODED_VARIANTS["4.0-zstd"],
    "4.1-jceks": PLAIN_VARIANTS["4.1"].with_settings(encryption("keys.jceks")),
    "5.0": PLAIN_VARIANTS["5.0"],
    "5.0-none-lz4": PLAIN_VARIANTS["5.0-none"].with_settings(_LZ4),
}
