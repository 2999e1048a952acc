"""Options of the data source: names in any case, all problems in one error, hidden secrets."""

from __future__ import annotations

import pickle

import pytest

from schemas.errors import ConfigError
from spark_bridge.topics.options import BridgeOptions, batch_options

GIVEN = {"serviceUrl": "pulsar://h:6650", "adminUrl": "http://h:8080/", "topic": "data-shop.orders"}


def problems(options: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        BridgeOptions.from_mapping(options)
    return [str(problem) for problem in error.value.problems]


def test_defaults_and_completed_names() -> None:
    """Three options are enough. A short topic name is completed as Pulsar does, and a URL loses its trailing slash."""
    options = BridgeOptions.from_mapping(GIVEN)
    assert options.topic == "persistent://public/default/data-shop.orders"
    assert options.admin_url == "http://h:8080"
    assert (options.starting_offsets, options.min_partitions, options.numbers) == ("earliest", 1, "decimal")
    assert (options.receiver_queue_size, options.operation_timeout_seconds) == (2_000, 30)


def test_names_are_taken_in_any_case() -> None:
    """Spark passes options in lower case."""
    options = BridgeOptions.from_mapping(
        {name.lower(): value for name, value in GIVEN.items()} | {"MINPARTITIONS": "4"}
    )
    assert options.min_partitions == 4


def test_every_problem_is_reported_in_one_error() -> None:
    """The error has unknown names with the nearest known one, wrong values, and missing options."""
    assert problems({"servicUrl": "x", "adminUrl": "h:8080", "minPartitions": "0", "startingOffsets": "first"}) == [
        "servicUrl: is no option of cassandra_cdc; did you mean serviceUrl?",
        "topic: is missing (or topics, or topicsPattern)",
        "serviceUrl: is missing",
        "adminUrl: must be the admin service's address and begin with http:// or https://",
        "startingOffsets: must be 'earliest', 'latest', a time with its zone such as '2026-11-21T05:00:00Z', or a JSON"
        " object of positions",
        "minPartitions: Input should be greater than or equal to 1",
    ]


def test_an_option_that_resembles_nothing_is_answered_with_all_names() -> None:
    """Without a similar name, the whole list helps most."""
    (problem,) = problems(GIVEN | {"zzz": "1"})
    assert problem.startswith("zzz: is no option of cassandra_cdc; the options are serviceUrl, adminUrl, topic, ")


@pytest.mark.parametrize(
    "topic", ["", "a,b", "persistent://t/n", "persistent://t/n/x/y", "non-persistent://t/n/x", "persistent:///n/x"]
)
def test_what_is_no_topic_name_is_refused(topic: str) -> None:
    """The option takes one persistent topic, in full or short form."""
    (problem,) = problems(GIVEN | {"topic": topic})
    assert problem.startswith("topic: ")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            {"authParams": "token:x"},
            "options: authPluginClassName and authParams are given together or not at all",
        ),
        (
            {"authParams": "x", "authPluginClassName": "com.example.Mine"},
            "options: authPluginClassName is one of org.apache.pulsar.client.impl.auth.AuthenticationToken, "
            "org.apache.pulsar.client.impl.auth.AuthenticationTls, "
            "org.apache.pulsar.client.impl.auth.AuthenticationBasic, "
            "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2",
        ),
    ],
)
def test_authentication_is_whole_and_known(more: dict[str, str], problem: str) -> None:
    """Incomplete options, or a plugin that the Python client does not have, are refused."""
    assert problems(GIVEN | more) == [problem]


def test_parameters_of_oauth2_are_reported_with_the_other_problems() -> None:
    """They are all in one error, without their values."""
    plugin = "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2"
    params = '{"issuer_url": "tell-nobody"}'
    assert problems(GIVEN | {"authPluginClassName": plugin, "authParams": params, "minPartitions": "0"}) == [
        "authParams: has no private_key, where the file with client_id and client_secret is",
        "authParams: has an issuer_url that is no address such as https://auth.example.com",
        "minPartitions: Input should be greater than or equal to 1",
    ]


def test_another_topic_is_read_as_a_whole() -> None:
    """A rebuild of `rows-` reads each of its keys: the starting position for the data topic does not apply."""
    given = GIVEN | {"startingOffsets": "latest", "endingOffsets": '{"data-shop.orders": "1:2"}', "minPartitions": "4"}
    assert BridgeOptions.from_mapping(given).of_whole_topic("persistent://p/n/rows-shop.orders").as_texts() == {
        **GIVEN,
        "adminUrl": "http://h:8080",
        "topic": "persistent://p/n/rows-shop.orders",
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "minPartitions": "4",
    }


def test_a_read_that_ends_takes_the_options_of_a_stream() -> None:
    """Options of micro-batches are left out, in any case of letters; the others stay unchanged."""
    given = GIVEN | {
        "MAXROWSPERTRIGGER": "5",
        "maxBytesPerTrigger": "6",
        "checkpointLocation": "/c",
        "numbers": "string",
    }
    assert batch_options(given) == GIVEN | {"numbers": "string"}


def test_secrets_do_not_print() -> None:
    """A log may show the options, and must not show their secret. It is still in options pickled for a task."""
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    options = BridgeOptions.from_mapping(GIVEN | {"authPluginClassName": plugin, "authParams": "token:tell-nobody"})
    assert "tell-nobody" not in repr(options)
    assert "tell-nobody" not in str(options)
    copy = pickle.loads(pickle.dumps(options))
    assert copy.auth_params.get_secret_value() == "token:tell-nobody"


@pytest.mark.parametrize(
    ("given", "topics"),
    [
        ({}, ("persistent://public/default/cdc-dead-letters",)),
        ({"eventsTopicPrefix": "cdc-"}, ("persistent://public/default/cdc-dead-letters",)),
        ({"eventsTopicPrefix": "persistent://acme/cdc/cdc-events-"}, ("persistent://acme/cdc/cdc-dead-letters",)),
        ({"eventsTopicPrefix": "acme/cdc/e-", "deadLettersTopic": "dead"}, ("persistent://public/default/dead",)),
        ({"deadLettersTopic": "dead, a/b/c"}, ("persistent://public/default/dead", "persistent://a/b/c")),
    ],
)
def test_dead_letters_are_looked_for_where_the_connector_writes_them(
    given: dict[str, str], topics: tuple[str, ...]
) -> None:
    """They are in the namespace of the events topics, unless topics are named."""
    assert BridgeOptions.from_mapping({**GIVEN, **given}).dead_letters == topics


@pytest.mark.parametrize("topic", [{}, {"topic": "data-shop.orders"}, {"TOPICS": "a,b"}, {"topicsPattern": "a("}])
def test_requests_that_are_about_no_topic_need_none(topic: dict[str, str]) -> None:
    """A stand-in `none` was the name of a topic that may exist. Other options are checked as always."""
    given = {"serviceUrl": "pulsar://h:6650", "adminUrl": "http://h:8080", "minPartitions": "4", **topic}
    options = BridgeOptions.without_topic(given)
    assert (options.topic_names, options.min_partitions) == ((), 4)
    assert options.of_topic("persistent://public/default/t").only_topic == "persistent://public/default/t"
    with pytest.raises(ConfigError, match="topic: must name the one topic"):
        assert options.only_topic
    with pytest.raises(ConfigError, match="--admin-url: must be the admin service's address"):
        BridgeOptions.without_topic({**given, "adminUrl": "h:1"}, {"adminUrl": "--admin-url"})
