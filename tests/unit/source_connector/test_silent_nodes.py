"""Which nodes are asked last."""

from __future__ import annotations

from source_connector.rows.silent_nodes import SilentNodes


def test_a_node_that_leaves_statements_unanswered_comes_last_but_for_a_probe() -> None:
    """The node counts as silent after 2 s. One statement each 5 s probes it, and any answer ends the silence."""
    now = [0.0]
    nodes = SilentNodes(lambda: now[0])
    nodes.asked("a")
    nodes.asked("b")
    nodes.heard("b")
    now[0] = 2.0
    assert not nodes.comes_last("a")
    now[0] = 2.5
    assert [nodes.comes_last(node) for node in "ab"] == [True, False]
    now[0] = 7.6
    assert [nodes.comes_last("a") for _ in range(3)] == [False, True, True]
    nodes.heard("a")
    assert not nodes.comes_last("a")


def test_a_node_that_answers_is_never_silent_however_much_it_is_asked() -> None:
    """The time counts from the first statement after its last answer; a node without open statements is not silent."""
    now = [0.0]
    nodes = SilentNodes(lambda: now[0])
    for _ in range(50):
        nodes.asked("a")
        nodes.asked("a")
        now[0] += 1.0
        nodes.heard("a")
        assert not nodes.comes_last("a")
    now[0] += 100
    assert not nodes.comes_last("a")
