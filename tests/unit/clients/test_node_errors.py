"""node_errors: finds the nodes' own errors in each form of the driver's exceptions."""

from __future__ import annotations

from cassandra import AuthenticationFailed, OperationTimedOut
from cassandra.cluster import NoHostAvailable

from clients.node_errors import node_errors, one_line


def test_each_nodes_error_is_taken_out_of_that_for_all_nodes() -> None:
    """They are in the order of the requests. Messages show the first one."""
    first, second = AuthenticationFailed("bad credentials"), ConnectionRefusedError(111, "Connection refused")
    error = NoHostAvailable("Unable to connect to any servers", {"127.0.0.1:9042": first, "127.0.0.2:9042": second})
    assert node_errors(error, NoHostAvailable) == [first, second]


def test_an_error_in_which_no_node_speaks_stands_for_itself() -> None:
    """The driver may return names of nodes, or nothing. The map of a timeout has less information than its text."""
    named = NoHostAvailable("Unable to connect to any servers using keyspace 'ks'", ["127.0.0.1"])
    empty = NoHostAvailable("Unable to complete the operation against any hosts", {})
    late = OperationTimedOut(errors={"127.0.0.1:9042": "Client request timeout"}, last_host="127.0.0.1:9042")
    other = ConnectionRefusedError(111, "Connection refused")
    for error in (named, empty, late, other):
        assert node_errors(error, NoHostAvailable) == [error]


def test_a_text_is_one_line_and_never_empty() -> None:
    """A line of the log is one message. An exception without a text is shown by its type."""
    assert one_line(ValueError("not here,\n  nor there ")) == "not here, nor there"
    assert one_line(TimeoutError()) == "TimeoutError"
    assert one_line(ValueError(" \n")) == "ValueError"
