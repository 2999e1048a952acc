"""TLS to Cassandra for Spark's jobs: what is wrong with the files is said before anything connects."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from schemas.errors import ConfigError
from spark_bridge.jobs.cassandra_tls import CassandraTls


def test_a_key_without_a_certificate_is_refused() -> None:
    """Left out it would connect without our certificate, and the node would say only that it wants one."""
    with pytest.raises(ConfigError, match=r"tls\.key: /etc/key\.pem is the key of no certificate"):
        CassandraTls(key="/etc/key.pem").context()


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    """The message has the file's path."""
    file = tmp_path / "trusted.pem"
    file.write_text("nothing")
    with pytest.raises(ConfigError, match=rf"tls\.trusted: {file} holds no certificates in PEM"):
        CassandraTls(trusted=str(file)).context()


def test_certificates_are_asked_for_whether_or_not_the_name_is_checked() -> None:
    """Without the name, a node must still have a certificate of an authority that is trusted."""
    context = CassandraTls(verify_hostname=False).context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)
