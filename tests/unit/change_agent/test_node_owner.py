"""NodeOwner: when an agent waits at its start for another agent of its node."""

from __future__ import annotations

import threading

import pytest

from change_agent.errors import NodeTakenError, PublishError
from change_agent.metrics import AgentMetrics
from change_agent.publishing.node_owner import NodeOwner


class _Broker:
    """A broker that gives these answers in order, and repeats the last one."""

    def __init__(self, *answers: PublishError | None) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []
        self.metrics = AgentMetrics()
        self.standby: list[int] = []
        self.stopping = threading.Event()

    def claim(self, node_id: str) -> None:
        self.asked.append(node_id)
        self.standby.append(self.metrics.standby)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is not None:
            raise answer

    def owner(self) -> NodeOwner:
        return NodeOwner(self.claim, lambda: "node-1", self.metrics, self.stopping)


def test_an_agent_waits_for_another_one_of_its_node(caplog: pytest.LogCaptureFixture) -> None:
    """The log reports it once, and the metric shows it while the agent waits."""
    broker = _Broker(NodeTakenError("topic", "taken"), NodeTakenError("topic", "taken"), None)
    broker.owner().wait()
    assert (broker.asked, broker.standby, broker.metrics.standby) == (["node-1"] * 3, [0, 1, 1], 0)
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == ["topic: taken"]


def test_a_broker_that_cannot_say_it_is_not_waited_for() -> None:
    """The broker is away, or the topic cannot be used. Nothing can be published then, and reading may begin."""
    broker = _Broker(PublishError("topic", "Timeout"))
    broker.owner().wait()
    assert (broker.asked, broker.metrics.standby) == (["node-1"], 0)


def test_an_agent_that_waits_for_another_one_goes_on_waiting_while_the_broker_cannot_say_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A failure of the broker does not prove that the other agent has ended."""
    broker = _Broker(NodeTakenError("topic", "taken"), PublishError("topic", "Timeout"), None)
    broker.owner().wait()
    assert (len(broker.asked), broker.standby, broker.metrics.standby) == (3, [0, 1, 1], 0)
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        "topic: taken",
        "topic: Timeout; this agent waits until the broker says that the other one has ended",
    ]


def test_a_stop_ends_the_wait() -> None:
    """The other agent still runs."""
    broker = _Broker(NodeTakenError("topic", "taken"))
    threading.Timer(0.2, broker.stopping.set).start()
    broker.owner().wait()
    assert (broker.asked, broker.metrics.standby) == (["node-1"], 1)
