"""The configuration cases of DataStax's connector, by the names of its own tests: equal refusals and equal meanings."""

from __future__ import annotations

import base64
import ssl
import stat
from pathlib import Path

import pytest

from schemas.errors import ConfigError
from source_connector.configuration.config import SourceConfig
from source_connector.configuration.private_files import as_file
from source_connector.configuration.tls import openssl_ciphers, tls_context
from source_connector.data_format import DataFormat

_STORES = Path(__file__).parents[2] / "golden" / "key_stores"
_PLACE: dict[str, object] = {"contactPoints": "10.0.0.1", "loadBalancing.localDc": "dc1"}
_TABLE: dict[str, object] = {"keyspace": "ks", "table": "t", "pulsarServiceUrl": "pulsar://broker:6650"}
_DRIVER = "datastax-java-driver."
_BUNDLE: dict[str, object] = {"cloud.secureConnectBundle": "/bundle.zip"}


def accepted(options: dict[str, object]) -> tuple[SourceConfig, tuple[str, ...]]:
    return SourceConfig.from_mapping(_TABLE | options)


def refused(options: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        SourceConfig.from_mapping(_TABLE | options)
    return [problem.option for problem in raised.value.problems]


@pytest.mark.parametrize(
    ("case", "option", "value"),
    [
        ("should_error_invalid_port", "port", "foo"),
        ("should_error_invalid_port", "port", 0),
        ("should_error_invalid_cache_only_if_coordinator_match", "cache.only_if_coordinator_match", "foo"),
        ("should_error_invalid_queryExecutionTimeout", "queryExecutionTimeout", 0),
        ("should_error_invalid_metricsHighestLatency", "metricsHighestLatency", "foo"),
        ("should_error_invalid_metricsHighestLatency", "metricsHighestLatency", 0),
        ("should_error_invalid_connectionPoolLocalSize", "connectionPoolLocalSize", -1),
        ("should_error_invalid_maxConcurrentRequests", "maxConcurrentRequests", "0"),
        ("should_error_invalid_compression_type", "compression", "foo"),
        ("should_error_missing_dc_with_contactPoints", "loadBalancing.localDc", None),
        ("should_error_empty_dc_with_contactPoints", "loadBalancing.localDc", ""),
        ("should_reject_invalid_output_format", "outputFormat", "avro"),
        ("further", "batch.size", 0),
        ("further", "query.executors", "many"),
        ("further", "query.maxMobileAvgLatency", 0),
        ("further", "query.minMobileAvgLatency", 0),
        ("further", "jmx", "perhaps"),
        ("further", "ignoreErrors", "Some"),
        ("further", "events.subscription.type", "Sticky"),
        ("further", "auth.provider", "GSSAPI"),
        ("further", "ssl.provider", "BoringSSL"),
        ("further", "query.consistencyLevel", "MOST"),
        ("further", "cache.max.digest", 0),
        ("further", "cache.expire.after.ms", 999),
        ("further", _DRIVER + "basic.request.timeout", "soon"),
        ("further", _DRIVER + "basic.request.timeout", "1.2.3 s"),
        ("further", "ssl.openssl.privateKey", "base64:???"),
    ],
)
def test_a_bad_value_is_refused_with_the_option_named(case: str, option: str, value: object) -> None:
    """This also holds for options without effect: a value that the other connector refuses is a mistake here, too."""
    assert option in refused(_PLACE | {option: value}), case


def test_no_contact_points_of_the_driver_are_a_mistake() -> None:
    """An empty list is refused."""
    option = _DRIVER + "basic.contact-points"
    place = {name: value for name, value in _PLACE.items() if name != "contactPoints"}
    assert option in refused(place | {option: []})


def test_every_bad_value_is_named_at_once() -> None:
    """One error has options without effect, unknown options, and values that break rules of either kind."""
    assert sorted(refused({"port": "foo", "jmx": "x", "compression": "zip", "outputFormat": "avro", "prot": 1})) == [
        "compression",
        "contactPoints",
        "jmx",
        "loadBalancing.localDc",
        "outputFormat",
        "port",
        "prot",
    ]


def test_should_accept_valid_output_format() -> None:
    """All three formats are accepted."""
    for text in ("key-value-avro", "key-value-json", "json"):
        assert accepted(_PLACE | {"outputFormat": text})[0].output_format is DataFormat(text)


def test_should_handle_dc_with_contact_points() -> None:
    """The contact points are one text."""
    found, warnings = accepted({"contactPoints": "127.0.0.1, 127.0.1.1", "loadBalancing.localDc": "local"})
    assert (found.contact_points, found.local_dc, found.port, warnings) == (
        ("127.0.0.1", "127.0.1.1"),
        "local",
        9042,
        (),
    )


def test_should_handle_dc_with_contact_points_driver_prefix() -> None:
    """The options have the driver's own names, nested or not."""
    found, warnings = accepted(
        {
            "datastax-java-driver": {
                "basic": {
                    "contact-points": ["127.0.0.1:9043", "127.0.1.1:9043"],
                    "load-balancing-policy": {"local-datacenter": "local"},
                }
            }
        }
    )
    assert (found.contact_points, found.port, found.local_dc) == (("127.0.0.1", "127.0.1.1"), 9043, "local")
    assert warnings == ()


def test_contact_points_provided_using_connector_and_driver_prefix() -> None:
    """The option with the connector's name wins."""
    found, _ = accepted(
        _PLACE
        | {_DRIVER + "basic.contact-points": "x:1", _DRIVER + "basic.load-balancing-policy.local-datacenter": "y"}
    )
    assert (found.contact_points, found.local_dc, found.port) == (("10.0.0.1",), "dc1", 9042)


def test_should_handle_port_and_max_concurrent_requests_and_instance_name() -> None:
    """Numbers may be numbers, texts, or the floats of Pulsar's JSON."""
    found, warnings = accepted(_PLACE | {"port": 5725.0, "maxConcurrentRequests": "129", "name": "i1", "task.id": "2"})
    assert found.port == 5725
    assert warnings == (
        "options without a meaning for this connector are ignored: maxConcurrentRequests, name, task.id",
    )


@pytest.mark.parametrize("value", ["None", "All", "Driver", "none", "ALL", "true", "false", True, False])
def test_should_handle_ignore_errors(value: object) -> None:
    """DataStax's connector parses the option and never uses it; here it is accepted."""
    assert accepted(_PLACE | {"ignoreErrors": value})[1] != ()


def test_should_handle_deprecated_settings() -> None:
    """They come together: options with a meaning keep it, and the others give one warning."""
    found, warnings = accepted(
        _PLACE
        | {
            "queryExecutionTimeout": 45,
            "connectionPoolLocalSize": 6,
            "compression": "snappy",
            "jmx": False,
            "metricsHighestLatency": 40,
            "jmxConnectorDomain": "x",
        }
    )
    assert found.read_timeout_s == 45
    assert len(warnings) == 1
    assert "compression, connectionPoolLocalSize, jmx, jmxConnectorDomain, metricsHighestLatency" in warnings[0]


@pytest.mark.parametrize("name", ["cloud.secureConnectBundle", _DRIVER + "basic.cloud.secure-connect-bundle"])
def test_should_handle_secure_connect_bundle(name: str) -> None:
    """The bundle is given by its name or the driver's name, without another address of the cluster."""
    found, _ = accepted({name: "/bundle.zip"})
    assert (found.secure_connect_bundle, found.contact_points, found.local_dc) == ("/bundle.zip", (), "")


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("contactPoints", "10.0.0.1", "contactPoints"),
        ("loadBalancing.localDc", "dc1", "loadBalancing.localDc"),
        (_DRIVER + "basic.load-balancing-policy.local-datacenter", "dc1", "loadBalancing.localDc"),
        ("ssl.provider", "JDK", "ssl.provider"),
    ],
)
def test_should_throw_when_secure_connect_bundle_and_another_provided(option: str, value: str, named: str) -> None:
    """contact_points, local_dc, local_dc_driver_setting, ssl_setting: the bundle contains them."""
    assert refused(_BUNDLE | {option: value}) == [named]


@pytest.mark.parametrize(
    "options",
    [
        {"jmx": True},
        {_DRIVER + "advanced.metrics.session.enabled": ["cql-requests"], "jmx": True},
        {_DRIVER + "advanced.connection.pool.local.size": 4},
        {_DRIVER + "basic.request.page-size": "99"},
        {_DRIVER + "advanced.metrics.node.enabled": ["a", "b"]},
    ],
    ids=[
        "should_fill_with_default_metrics_settings_if_jmx_enabled",
        "should_override_default_metrics_settings",
        "should_set_default_driver_setting",
        "should_use_java_driver_setting",
        "should_transform_list_setting_to_indexed_typesafe_setting",
    ],
)
def test_settings_of_the_java_driver_are_accepted(options: dict[str, object]) -> None:
    """There is no Java driver here, so they give one warning."""
    assert len(accepted(_PLACE | options)[1]) == 1


@pytest.mark.parametrize(
    ("given", "seconds"), [("5 seconds", 5), ("500 ms", 0.5), ("2 minutes", 120), ("1500", 1.5), (250, 0.25)]
)
def test_the_timeout_of_the_driver_is_ours(given: object, seconds: float) -> None:
    """The value has the driver's notation of durations."""
    assert accepted(_PLACE | {_DRIVER + "basic.request.timeout": given})[0].read_timeout_s == seconds


def test_the_login_of_the_driver_is_ours() -> None:
    """A plain text login has the driver's names."""
    found, _ = accepted(
        _PLACE
        | {_DRIVER + "advanced.auth-provider.username": "u", _DRIVER + "advanced.auth-provider.password": "hunter2"}
    )
    assert (found.auth_provider, found.auth_username, found.auth_password.get_secret_value()) == (
        "PLAIN",
        "u",
        "hunter2",
    )


@pytest.mark.parametrize(
    "provider", [{}, {"auth.provider": "None"}, {"auth.provider": ""}], ids=["left out", "None", "empty"]
)
def test_a_name_and_a_password_are_a_login(provider: dict[str, object]) -> None:
    """This holds for each provider, as in DataStax's connector, and for each source of the password."""
    found, warnings = accepted(_PLACE | provider | {"auth.username": "u", "auth.password": "hunter2"})
    assert (found.auth_provider, found.auth_username, warnings) == ("PLAIN", "u", ())
    from_worker, _ = SourceConfig.from_mapping(
        _TABLE | _PLACE | {"auth.username": "u"}, {}, {"CDC_AUTH_PASSWORD": "hunter2"}
    )
    assert from_worker.auth_provider == "PLAIN"
    assert accepted(_PLACE | {"auth.password": "hunter2"})[0].auth_provider == "None"


@pytest.mark.parametrize(
    ("case", "option"),
    [
        ("should_unpack_base64_secureBundle", "cloud.secureConnectBundle"),
        ("should_unpack_base64_secureBundle_legacy_name", _DRIVER + "basic.cloud.secure-connect-bundle"),
    ],
)
def test_a_bundle_may_be_base64(case: str, option: str) -> None:
    """It becomes a file that only this user can read, and that is deleted after its use."""
    found, _ = accepted({option: "base64:" + base64.b64encode(b"zip").decode()})
    with as_file(found.secure_connect_bundle, ".zip") as name:
        path = Path(name)
        assert (path.read_bytes(), path.suffix, stat.S_IMODE(path.stat().st_mode)) == (b"zip", ".zip", 0o600), case
    assert not path.exists()
    assert "emlw" not in repr(found)


def _base64(name: str) -> str:
    return "base64:" + base64.b64encode((_STORES / name).read_bytes()).decode()


@pytest.mark.parametrize("suffix", ["jks", "p12"])
@pytest.mark.parametrize("of", [_base64, lambda name: str(_STORES / name)], ids=["base64", "path"])
def test_java_key_stores_are_used(suffix: str, of: object) -> None:
    """should_unpack_base64_ssl_keystore and ..._trustore: both kinds of Java's key stores, as files and as base64."""
    assert callable(of)
    found, _ = accepted(
        _PLACE
        | {
            "ssl.provider": "JDK",
            "ssl.keystore.path": of(f"client.{suffix}"),
            "ssl.keystore.password": "secret12",
            "ssl.truststore.path": of(f"trust.{suffix}"),
            "ssl.truststore.password": "secret12",
            "ssl.cipherSuites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "ssl.hostnameValidation": False,
        }
    )
    context = tls_context(found)
    assert context is not None and context.verify_mode is ssl.CERT_REQUIRED and not context.check_hostname
    assert context.cert_store_stats()["x509"] == 1
    assert "ECDHE-RSA-AES128-GCM-SHA256" in {each["name"] for each in context.get_ciphers()}


def test_pem_files_may_be_base64() -> None:
    """should_unpack_base64_ssl_openssl_private_key and ..._cert_chain: an invalid key is refused with its option."""
    chain = {"ssl.provider": "OpenSSL", "ssl.openssl.keyCertChain": _base64("client.pem")}
    found, _ = accepted(_PLACE | chain | {"ssl.openssl.privateKey": _base64("client.pem")})
    with pytest.raises(ConfigError, match=r"^ssl.openssl.keyCertChain: cannot be used"):
        tls_context(found)
    assert refused(_PLACE | chain) == ["ssl.openssl.privateKey"]


@pytest.mark.parametrize(
    ("option", "file", "password"),
    [
        ("ssl.truststore.path", "trust.jks", "other"),
        ("ssl.truststore.path", "client.jks", "secret12"),
        ("ssl.keystore.path", "trust.p12", "secret12"),
        ("ssl.keystore.path", "nothing", "secret12"),
    ],
)
def test_a_key_store_that_cannot_be_used_is_named(option: str, file: str, password: str) -> None:
    """The password is wrong, the content is wrong, or there is no file."""
    found, _ = accepted(
        _PLACE | {"ssl.provider": "JDK", option: str(_STORES / file), option.replace("path", "password"): password}
    )
    with pytest.raises(ConfigError, match=f"^{option}: cannot be used"):
        tls_context(found)


def test_every_store_that_cannot_be_used_is_named_at_once() -> None:
    """Errors of authorities, key and cipher suites are reported together."""
    found, _ = accepted(
        _PLACE
        | {
            "ssl.provider": "JDK",
            "ssl.truststore.path": "/no/such",
            "ssl.keystore.path": "/neither",
            "ssl.cipherSuites": "NO-SUCH-SUITE",
        }
    )
    with pytest.raises(ConfigError) as raised:
        tls_context(found)
    assert [problem.option for problem in raised.value.problems] == [
        "ssl.truststore.path",
        "ssl.cipherSuites",
        "ssl.keystore.path",
    ]


def test_should_unpack_base64_auth_keytab() -> None:
    """Kerberos is for DSE only and not supported: the provider's name is refused, and the key tab is not checked."""
    kerberos = {"auth.provider": "gssapi", "auth.gssapi": {"keyTab": "base64:AAAA", "principal": "p", "service": "dse"}}
    with pytest.raises(ConfigError) as raised:
        accepted(_PLACE | kerberos)
    assert str(raised.value) == (
        "auth.provider: GSSAPI (Kerberos, of DataStax Enterprise only) is not spoken here; use PLAIN, or None with a "
        "certificate (ssl.*)"
    )


def test_names_of_cipher_suites_may_be_those_of_java() -> None:
    """OpenSSL's names stay unchanged; the suites of TLS 1.3 need no setting."""
    names = [
        "TLS_RSA_WITH_AES_128_CBC_SHA",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_AES_128_GCM_SHA256",
        "ECDHE-RSA-AES256-SHA384",
    ]
    assert list(openssl_ciphers(names)) == ["AES128-SHA", "ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-AES256-SHA384"]
