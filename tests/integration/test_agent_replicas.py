"""Two nodes, RF 2: each replica's agent publishes its own event, and both have the same digest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from cdc.agent_process import AgentProcess
from cdc.sandbox import Sandbox
from tests.servers.cassandra_session import cluster_of, make_keyspace
from tests.topics.events_topic import EventsTopic, TopicEvent, wait_until

_STATEMENTS = [
    "INSERT INTO replicas.t (pk, ck, v, l, s) VALUES (1, 1, 'a', ['x', 'y'], 'static')",
    "INSERT INTO replicas.t (pk, ck, v) VALUES (1, 2, 'b') USING TTL 5000",
    "UPDATE replicas.t SET l = l + ['z'], m['k'] = 5 WHERE pk = 1 AND ck = 1",
    "UPDATE replicas.t SET m = {'a': 1, 'b': 2}, u = {street: 's', zip: 1} WHERE pk = 2 AND ck = 1",
    "DELETE v FROM replicas.t WHERE pk = 1 AND ck = 1",
    "DELETE FROM replicas.t WHERE pk = 1 AND ck = 2",
    "INSERT INTO replicas.t (pk, ck, v) VALUES (3, 3, 'once') IF NOT EXISTS",
    "BEGIN BATCH INSERT INTO replicas.t (pk, ck, v) VALUES (4, 1, 'b1'); DELETE FROM replicas.t WHERE pk = 4 AND ck > 5;"
    " UPDATE replicas.t SET s = 'b' WHERE pk = 4; APPLY BATCH",
    "DELETE FROM replicas.t WHERE pk = 1 AND ck >= 3 AND ck < 7",
    "DELETE FROM replicas.t WHERE pk = 2",
]


def test_replicas_agree_on_every_digest(
    two_nodes: Sandbox, two_agents: list[AgentProcess], open_topic: Callable[[str, str], EventsTopic]
) -> None:
    """Every kind of change comes once from each node, and only node and position differ."""
    node = two_nodes.node
    with cluster_of(node) as cluster:
        session = cluster.connect()
        make_keyspace(session, "replicas", 2)
        session.execute("CREATE TYPE replicas.address (street text, zip int)")
        session.execute(
            "CREATE TABLE replicas.t (pk int, ck int, v text, s text static, l list<text>, m map<text, int>, u address,"
            " PRIMARY KEY (pk, ck)) WITH cdc = true"
        )
        both = {each.address for each in two_nodes.nodes}
        for statement in _STATEMENTS:
            # The nodes take a node that paused for some seconds for dead, and then refuse writes at ALL.
            wait_until(lambda: all(each.live_nodes() == both for each in two_nodes.nodes), "both nodes are alive")
            session.execute(SimpleStatement(statement, consistency_level=ConsistencyLevel.ALL))
    # Each node has two events for the first insert, three for the batch, and one for each other statement.
    events = open_topic("replicas", "t").wait_for(26)
    by_node: dict[str, list[TopicEvent]] = defaultdict(list)
    for each in events:
        by_node[str(each.message.node_id)].append(each)
    first, second = by_node.values()
    assert [each.status()["node_id"] in by_node for each in two_agents] == [True, True]
    assert sorted(map(_content, first)) == sorted(map(_content, second))
    assert len({each.event.digest for each in first}) == len(first) == 13


def _content(each: TopicEvent) -> tuple[str, bytes, str]:
    event = each.event
    return event.kind.value, event.digest, f"{event.key!r} {event.columns} {event.writetime_us} {event.bounds}"
