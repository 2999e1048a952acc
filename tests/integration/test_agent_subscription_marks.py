"""Several agents make a subscription at the same time; its mark stays when the broker loads the topic again."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pytest

from cdc.rest import rest
from change_agent.errors import PublishError
from change_agent.publishing import events_topics
from change_agent.publishing.events_topics import EventsTopics
from tests.servers.interface import PulsarServer
from tests.topics.events_topic import wait_until

_TOPICS = 20
_AGENTS = 3


@pytest.fixture
def agents(pulsar: PulsarServer) -> Iterator[list[EventsTopics]]:
    """The connections of several agents to the same broker."""
    made = [
        EventsTopics(
            admin_url=pulsar.admin_url,
            auth=None,
            tls=ssl.create_default_context(),
            subscription="sub",
            partitions=2,
            create=True,
        )
        for _ in range(_AGENTS)
    ]
    yield made
    for each in made:
        each.close()


def test_agents_that_make_a_subscription_together_agree_about_it_when_the_topic_is_loaded_again(
    agents: list[EventsTopics], pulsar: PulsarServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A mark that changes by itself would be taken for a removed subscription and reported as a gap."""
    caplog.set_level(logging.DEBUG, events_topics.__name__)
    topics = [f"persistent://public/default/cdc-events-marks.t{number}" for number in range(_TOPICS)]
    start = Barrier(_AGENTS)
    noted: set[tuple[str, str]] = set()

    def ensure(agent: EventsTopics) -> None:
        for topic in topics:
            start.wait(180)
            wait_until(partial(_is_ensured, agent, topic, noted), f"{topic} is made")

    with ThreadPoolExecutor(_AGENTS) as pool:
        list(pool.map(ensure, agents))
    for topic in topics:
        if f"gets no mark: {topic}:" in caplog.text:  # An agent's next look at the topic sets the mark.
            wait_until(partial(_is_marked, agents[0], topic, noted), f"{topic} is marked")
    marks = _marks(agents[0], topics)
    for topic in topics:
        path = topic.replace("://", "/")
        rest().put(f"{pulsar.admin_url}/admin/v2/{path}/unload").raise_for_status()
    found = _marks(agents[1], topics)
    assert None not in marks.values()
    assert found == marks
    assert noted == set(marks.items())


def _marks(agent: EventsTopics, topics: Sequence[str]) -> dict[str, str | None]:
    """Marks by topic, once the broker answers about each topic."""
    found: dict[str, str | None] = {}

    def are_known() -> bool:
        try:
            found.update({topic: agent.check(topic).mark for topic in topics})
        except PublishError:
            return False
        return True

    wait_until(are_known, "the broker answers about the topics")
    return found


def _is_marked(agent: EventsTopics, topic: str, noted: set[tuple[str, str]]) -> bool:
    """Return whether the topic has a mark. The request that set it got no answer, but may have succeeded."""
    [mark] = _marks(agent, [topic]).values()
    if mark is None:
        agent.mark(topic)
        return False
    noted.add((topic, mark))
    return True


def _is_ensured(agent: EventsTopics, topic: str, noted: set[tuple[str, str]]) -> bool:
    """Return whether the agent has ensured the topic. It may have to try again while another one makes it."""
    try:
        mark = agent.ensure(topic).mark
    except PublishError:
        return False
    if mark is not None:
        noted.add((topic, mark))
    return True
