"""What the nodes said is found in the driver's own exceptions, whichever of its forms they have."""

from __future__ import annotations

from cassandra import AuthenticationFailed, OperationTimedOut
from cassandra.cluster import NoHostAvailable

from clients.node_errors import node_errors, one_line


def test_each_nodes_error_is_taken_out_of_that_for_all_nodes() -> None:
    """In the order in which the nodes were asked: the first is the one that messages show."""
    first, second = AuthenticationFailed("bad credentials"), ConnectionRefusedError(111, "Connection refused")
    error = NoHostAvailable("Unable to connect to any servers", {"127.0.0.1:9042": first, "127.0.0.2:9042": second})
    assert node_errors(error, NoHostAvailable) == [first, second]


def test_an_error_in_which_no_node_speaks_stands_for_itself() -> None:
    """The driver also gives names of nodes instead of a map, or nothing; a time-out's map tells less than its text."""
    named = NoHostAvailable("Unable to connect to any servers using keyspace 'ks'", ["127.0.0.1"])
    empty = NoHostAvailable("Unable to complete the operation against any hosts", {})
    late = OperationTimedOut(errors={"127.0.0.1:9042": "Client request timeout"}, last_host="127.0.0.1:9042")
    other = ConnectionRefusedError(111, "Connection refused")
    for error in (named, empty, late, other):
        assert node_errors(error, NoHostAvailable) == [error]


def test_a_text_is_one_line_and_never_empty() -> None:
    """A log's line is a message's; an exception without a text is named."""
    assert one_line(ValueError("not here,\n  nor there ")) == "not here, nor there"
    assert one_line(TimeoutError()) == "TimeoutError"
    assert one_line(ValueError(" \n")) == "ValueError"
