"""A certificate authority for tests, and its certificates, as PEM files and as PKCS12 key stores for Java."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

__all__ = ["STORE_PASSWORD", "CertificateAuthority"]

STORE_PASSWORD = "changeit"


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


class CertificateAuthority:
    """Writes to a folder: `ca.pem`, `ca.p12` (a trust store), and for each name `NAME.pem`, `NAME.key`, `NAME.p12`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = rsa.generate_private_key(65537, 2048)
        builder = self._builder(_name("test authority"), self._key).add_extension(
            x509.BasicConstraints(True, None), True
        )
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.trusted = folder / "ca.pem"
        self.trusted.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        trusted = [pkcs12.PKCS12Certificate(self._certificate, b"ca")]
        protection = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
        (folder / "ca.p12").write_bytes(pkcs12.serialize_java_truststore(trusted, protection))

    def issue(self, name: str, address: str | None = None) -> None:
        """Issue a certificate with this common name and, if it is given, the address of a host."""
        key = rsa.generate_private_key(65537, 2048)
        hosts = [] if address is None else [x509.IPAddress(ipaddress.ip_address(address))]
        builder = self._builder(_name(name), key).add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name), *hosts]), False
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        (self.folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (self.folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        protection = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
        (self.folder / f"{name}.p12").write_bytes(
            pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, [self._certificate], protection)
        )

    def _builder(self, subject: x509.Name, key: rsa.RSAPrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(_name("test authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
        )
