"""The connector's options: DataStax's names, every problem at once, secrets never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import ConfigError
from source_connector.configuration.config import SourceConfig, hidden_columns_of

PULSAR = {"getServiceUrl": "pulsar://broker:6650", "getAuthParams": "token:secret"}
NEEDED: dict[str, object] = {
    "contactPoints": "10.0.0.1, 10.0.0.2",
    "loadBalancing": {"localDc": "dc1"},
    "keyspace": "Shop",
    "table": "orders",
}


def config(**options: object) -> SourceConfig:
    return parsed(**options)[0]


def parsed(**options: object) -> tuple[SourceConfig, tuple[str, ...]]:
    return SourceConfig.from_mapping(
        {**NEEDED, **{name.replace("__", "."): each for name, each in options.items()}}, PULSAR
    )


def problems(options: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        SourceConfig.from_mapping(options, PULSAR)
    return str(raised.value).splitlines()


@pytest.mark.parametrize(("pattern", "reason"), [("a{99999999999}", "repetition number"), (5000 * "(", "")])
def test_a_pattern_that_python_cannot_compile_is_a_problem_of_its_option(pattern: str, reason: str) -> None:
    """This holds for each exception of the regular expression compiler."""
    (problem,) = problems({**NEEDED, "columns": pattern})
    assert problem.startswith("columns: is no regular expression: ")
    assert reason in problem


def test_options_may_be_nested_as_deep_as_json_goes() -> None:
    """Pulsar passes the options as they were written."""
    nested: object = 1
    for _ in range(5000):
        nested = {"a": nested}
    (problem,) = problems({**NEEDED, "a": nested})
    assert problem.endswith("is not an option of this connector")


def test_defaults_are_those_of_datastax_where_it_has_the_option() -> None:
    """The case of table names is kept."""
    found = config()
    assert (found.keyspace, found.contact_points, found.local_dc, found.port) == (
        "Shop",
        ("10.0.0.1", "10.0.0.2"),
        "dc1",
        9042,
    )
    assert (found.cache_max_digests, found.cache_max_capacity, found.cache_expire_after_ms) == (3, 32767, 60000)
    assert (found.subscription, found.columns, found.consistency) == ("sub", ".*", "LOCAL_QUORUM")
    assert found.topics == ("persistent://public/default/cdc-events-Shop.orders",)
    assert (found.pulsar_service_url, found.pulsar_auth_params.get_secret_value()) == (
        "pulsar://broker:6650",
        "token:secret",
    )


@pytest.mark.parametrize(
    ("given", "topics"),
    [
        ("mine", ("persistent://public/default/mine",)),
        (["a/b/c", "persistent://x/y/z"], ("persistent://a/b/c", "persistent://x/y/z")),
        ("one, two", ("persistent://public/default/one", "persistent://public/default/two")),
    ],
)
def test_events_topics_may_be_one_or_several(given: object, topics: tuple[str, ...]) -> None:
    """The option is a list, or one text with commas; short names are completed."""
    assert config(events={"topic": given}).topics == topics


@pytest.mark.parametrize("tables", [{"keyspace": "ks", "table": "t"}, {"tables": "ks.t"}], ids=["one", "templates"])
@pytest.mark.parametrize(
    ("events", "prefix"),
    [
        (["cdc-events-", "events-"], "public/default/cdc-events-"),
        (["events-", "cdc-events-"], "public/default/cdc-events-"),
        (["a/b/dse-", "x/y/cdc-events-"], "x/y/cdc-events-"),
        (["events-", "x/y/ours-", "more-"], "x/y/ours-"),
        (["x/y/events-"], "x/y/events-"),
    ],
)
def test_topics_of_the_connector_are_beside_those_of_our_agents(
    tables: dict[str, str], events: list[str], prefix: str
) -> None:
    """Their names do not change when the topic of DataStax's agents is removed from the option."""
    names = "{keyspace}.{table}" if "tables" in tables else "ks.t"
    given = {
        "contactPoints": "c",
        "loadBalancing.localDc": "dc1",
        **tables,
        "events.topic": [f"{each}{names}" for each in events],
    }
    found, _ = SourceConfig.from_mapping(given, {"getServiceUrl": "pulsar://broker:6650"})
    (place,) = found.selection.named()
    assert found.changes_topic == f"persistent://{prefix}schema-changes"
    assert place.expiry_topic == f"persistent://{prefix}expiry-ks.t"
    assert found.dead_letters_topic == f"persistent://{prefix.rpartition('/')[0]}/cdc-dead-letters"


def test_numbers_may_be_text_and_come_as_floats() -> None:
    """Pulsar's JSON has only one number type."""
    assert config(port="9043").port == 9043
    assert config(port=9043.0).port == 9043


def test_all_problems_are_told_at_once_a_line_each() -> None:
    """The errors include missing, wrong, unknown and unsupported options."""
    found = problems(
        {
            "port": "many",
            "cahe.max.digest": 4,
            "outputFormat": "xml",
            "auth": {"provider": "plain", "username": "u"},
            "columns": "(",
            "ssl.openssl.keyCertChain": "a.pem",
        }
    )
    assert sorted(found) == sorted(
        [
            "keyspace: is required",
            "table: is required",
            "contactPoints: is required",
            "loadBalancing.localDc: is required",
            "port: input should be a valid integer, unable to parse string as an integer (got 'many')",
            "cahe.max.digest: is not an option of this connector; did you mean cache.max.digest?",
            "outputFormat: input should be 'key-value-avro', 'key-value-json' or 'json' (got 'xml')",
            "auth.password: is required by auth.provider PLAIN",
            "columns: is no regular expression: missing ), unterminated subpattern at position 0",
            "ssl.openssl.privateKey: ssl.openssl.keyCertChain and ssl.openssl.privateKey go together",
        ]
    )


def test_options_without_a_meaning_here_give_one_warning() -> None:
    """So a configuration of DataStax's connector can be used unchanged."""
    found, warnings = parsed(
        batch__size=200,
        query={"executors": 10},
        jmx=True,
        **{"datastax-java-driver": {"advanced": {"metrics": {"node": {"enabled": ["pool.size"]}}}}},
    )
    assert found.port == 9042
    assert warnings == (
        "options without a meaning for this connector are ignored: batch.size, "
        "datastax-java-driver.advanced.metrics.node.enabled, jmx, query.executors",
    )


def test_another_subscription_type_is_accepted_with_a_warning() -> None:
    """The connector reads packed events in the order of their topic partition, whatever this option says."""
    assert parsed(events__subscription__type="Failover")[1] == ()
    assert parsed(events__subscription__type="Key_Shared")[1] == (
        "events.subscription.type: Key_Shared is for topics of DataStax's agents; events of ours are read with a "
        "Failover subscription, which keeps the order of each topic partition",
    )


def test_secrets_are_not_shown() -> None:
    """Neither the configuration nor its errors show them."""
    found = config(auth={"provider": "PLAIN", "username": "u", "password": "hunter2"})
    assert "hunter2" not in repr(found) and "token:secret" not in repr(found)
    wrong = problems({**NEEDED, "auth.password": ["hunter2"], "auth.provider": "none"})
    assert len(wrong) == 1 and "hunter2" not in wrong[0]


_LOGIN: dict[str, object] = {**NEEDED, "auth": {"provider": "PLAIN", "username": "u"}}


def test_a_secret_may_stand_in_a_file_of_its_own_or_in_the_environment(tmp_path: Path) -> None:
    """As in the agent, the file option is the option's name and `File`, and the variable is `CDC_` and the name in
    capitals. The option wins over both."""
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    environment = {
        "CDC_AUTH_PASSWORD": "of the worker",
        "CDC_PULSAR_AUTH_PARAMS": "token:worker",
        "CDC_SSL_KEYSTORE_PASSWORD": "k",
        "CDC_SSL_TRUSTSTORE_PASSWORD": "t",
    }
    from_file, _ = SourceConfig.from_mapping({**_LOGIN, "auth.passwordFile": str(file)}, PULSAR, environment)
    assert from_file.auth_password.get_secret_value() == "hunter2"
    from_worker, _ = SourceConfig.from_mapping(_LOGIN, PULSAR, environment)
    found = [
        from_worker.auth_password,
        from_worker.pulsar_auth_params,
        from_worker.ssl_key_store_password,
        from_worker.ssl_trust_store_password,
    ]
    assert [each.get_secret_value() for each in found] == ["of the worker", "token:worker", "k", "t"]
    given, _ = SourceConfig.from_mapping({**_LOGIN, "auth.password": "mine"}, PULSAR, environment)
    assert given.auth_password.get_secret_value() == "mine"
    assert "hunter2" not in repr(from_file) and "worker" not in repr(from_worker)


def test_a_secret_that_cannot_be_read_is_told_by_its_file_option(tmp_path: Path) -> None:
    """The file is missing or no text, or the secret is given twice; the error does not show the secret."""
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    assert problems({**_LOGIN, "auth.passwordFile": "/no/such"}) == [
        "auth.passwordFile: /no/such cannot be read (No such file or directory)"
    ]
    assert problems({**_LOGIN, "auth.passwordFile": str(binary)}) == [
        f"auth.passwordFile: {binary} cannot be read (it is not UTF-8 text)"
    ]
    assert problems({**_LOGIN, "auth.password": "hunter2", "auth.passwordFile": "x", "auth.paswordFile": "y"}) == [
        "auth.passwordFile: has no meaning beside auth.password; set one of the two",
        "auth.paswordFile: is not an option of this connector; did you mean auth.passwordFile?",
    ]


@pytest.mark.parametrize("value", ["hunter2", "base64:aHVudGVyMg=="])
def test_a_secret_in_the_place_of_its_file_is_not_shown(value: str) -> None:
    """The error is in `sources status` and in the instance's log."""
    (problem,) = problems({**_LOGIN, "auth.passwordFile": value})
    assert value not in problem and "hunter2" not in problem
    assert problem == (
        "auth.passwordFile: is no file that can be read (No such file or directory); give the file's full path, which "
        "begins with /"
    )


def test_what_would_be_left_aside_in_silence_is_told() -> None:
    """A login or certificates without a provider give a warning; a certain mistake is refused."""
    assert parsed(auth__username="u", ssl__truststore__path="/t.jks")[1] == (
        "auth.username: has no effect without auth.password",
        "ssl.*: has no effect without ssl.provider JDK or OpenSSL; Cassandra is spoken to in plain text",
    )
    wrong = {
        **NEEDED,
        "destination": "x-{keyspace}.{table}",
        "queryExecutionTimeout": "inf",
        "contactPoints": "a,b:9042",
    }
    assert sorted(problems(wrong)) == [
        "contactPoints: each entry is a name or an address, the port is a separate option (got 'b:9042')",
        "destination: has a meaning with tables only; one table's records go where the source is deployed to",
        "queryExecutionTimeout: input should be a finite number (got 'inf')",
    ]
    assert config(contactPoints="::1").contact_points == ("::1",)


def test_a_broker_that_is_not_told_is_asked_for() -> None:
    """The option is required if the host cannot find out the address."""
    with pytest.raises(ConfigError, match="pulsarServiceUrl: is required"):
        SourceConfig.from_mapping(NEEDED, {})


def test_options_win_over_what_the_host_found_out() -> None:
    """They may give another address of the broker, or other credentials."""
    assert config(pulsarServiceUrl="pulsar://other:6650").pulsar_service_url == "pulsar://other:6650"


_KEY = 32 * "k"


def test_columns_are_hidden_by_patterns_and_a_key_from_the_secrets(tmp_path: Path) -> None:
    """Pulsar passes `--secrets` as options; a file or an environment variable also works."""
    given = {**NEEDED, "columns": {"hash": "Shop.orders.email, *.*.id", "truncate": ["Shop.orders.note:9"]}}
    file = tmp_path / "key"
    file.write_text(_KEY + "\n")
    for more, environment in (
        ({"columns.hashKey": _KEY}, {}),
        ({"columns.hashKeyFile": str(file)}, {}),
        ({}, {"CDC_COLUMNS_HASH_KEY": _KEY}),
    ):
        found, warnings = SourceConfig.from_mapping({**given, **more}, PULSAR, environment)
        hidden = found.hidden
        assert hidden is not None and not warnings
        assert (hidden.hash_key, hidden.mask, hidden.has_range_markers) == (_KEY.encode(), "****", True)
        assert [each.text for each in hidden.patterns] == ["Shop.orders.email", "*.*.id", "Shop.orders.note:9"]
        assert _KEY not in repr(found) + repr(hidden)
    assert config().hidden is None
    assert parsed(columns__hashKey=_KEY)[1] == ("columns.hashKey: has no effect without columns.hash",)


def test_everything_that_is_wrong_with_hidden_columns_is_told_at_once() -> None:
    """Errors that need no tables: wrong forms, tables that the source does not serve, a missing or too short key."""
    wrong = {
        **NEEDED,
        "columns.hash": "email, Shop.orders.email",
        "columns.drop": "Shop.order.ssn, *.*.pin",
        "columns.truncate": "Shop.orders.note",
    }
    lines = [
        "columns.drop: Shop.order.ssn matches none of this source's tables (Shop.orders)",
        "columns.hash: each entry is keyspace.table.column, where * and ? match any characters (got 'email')",
        "columns.truncate: each entry is keyspace.table.column:length (got 'Shop.orders.note')",
    ]
    remedy = "(`openssl rand -hex 32` makes one)"
    assert problems(wrong) == [
        *lines,
        f"columns.hashKey: is required by columns.hash: a secret text of at least 32 bytes {remedy}",
    ]
    short = problems({**wrong, "columns.hashKey": "hunter2"})
    assert short == [*lines, f"columns.hashKey: has 7 bytes, and needs at least 32 {remedy}"]
    assert "hunter2" not in str(short)
    assert problems({**wrong, "columns.hashKeyFile": "/no/such"}) == [
        "columns.hashKeyFile: /no/such cannot be read (No such file or directory)",
        *lines,
    ]


def test_a_pattern_may_name_any_table_of_several() -> None:
    """Conflicts between two patterns are not known before the tables are."""
    of_many = {name: each for name, each in NEEDED.items() if name not in ("keyspace", "table")}
    of_many |= {"tables": "shop.*, bank.accounts"}
    given = {**of_many, "columns.drop": "shop.users.ssn, *.*.pin, bank.*.iban"}
    assert SourceConfig.from_mapping(given, PULSAR)[0].hidden is not None
    assert problems({**of_many, "columns.drop": "bank.users.ssn"}) == [
        "columns.drop: bank.users.ssn matches none of this source's tables (shop.*, bank.accounts)"
    ]


def test_what_a_source_hides_is_told_by_its_options_alone() -> None:
    """`verify` needs this without a broker, and perhaps without the other secrets of the source."""
    options = {
        "keyspace": "Shop",
        "table": "orders",
        "auth.passwordFile": "/elsewhere",
        "columns": {"hash": "Shop.orders.id"},
    }
    found = hidden_columns_of(options, {"CDC_COLUMNS_HASH_KEY": _KEY})
    assert found is not None and found.hash_key == _KEY.encode()
    assert hidden_columns_of({"keyspace": "Shop", "table": "orders", "columns": ".*"}, {}) is None
    with pytest.raises(ConfigError, match=r"columns.hashKey: is required by columns.hash"):
        hidden_columns_of(options, {})
