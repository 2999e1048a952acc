"""TLS to Cassandra for Spark's jobs: errors in the files are reported before a connection."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from schemas.errors import ConfigError
from spark_bridge.jobs.cassandra_tls import CassandraTls


def test_a_key_without_a_certificate_is_refused() -> None:
    """If it were ignored, the connection would have no certificate, and the node's error would not give the reason."""
    with pytest.raises(ConfigError, match=r"tls\.key: /etc/key\.pem is the key of no certificate"):
        CassandraTls(key="/etc/key.pem").context()


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    """The message has the file's path."""
    file = tmp_path / "trusted.pem"
    file.write_text("nothing")
    with pytest.raises(ConfigError, match=rf"tls\.trusted: {file} holds no certificates in PEM"):
        CassandraTls(trusted=str(file)).context()


def test_certificates_are_asked_for_whether_or_not_the_name_is_checked() -> None:
    """Without a check of the host name, the node must still have a certificate of a trusted authority."""
    context = CassandraTls(verify_hostname=False).context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)
