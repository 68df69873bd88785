"""What a new run of a server means: everything may be forgotten where there is one, and little where there are more."""

import pytest

from holdfast.engines.redis.server_identity import KnownServers


class Node:
    """Something to be seen."""

    def __init__(self, url):
        self.url = url


def greeting(run_id):
    return f"# Server\r\nrun_id:{run_id}\r\n"


def greet(witness, node, run_id):
    witness.of(node).greeted(greeting(run_id), 0, 0)


@pytest.mark.parametrize(("follows", "epoch"), [(False, 1), (True, 0)])
def test_a_new_run_is_told_and_counts_only_where_nobody_takes_its_place(follows, restarts):
    """With replicas another run has what was replicated: nobody is to wait out what was heard of the former one."""
    witness, node = KnownServers(follows=follows), Node("redis://a")
    for run_id in ("one", "one", "two"):
        greet(witness, node, run_id)
    greet(witness, node, "two")

    assert witness.restarts == restarts
    assert [(events.kind, events.detail) for events in witness.events()] == [
        ("engine replaced", "redis://a: run one has ended, run two answers")
    ]
    assert witness.events() == []


def test_each_server_has_runs_and_replicas_of_its_own():
    """Two masters of a cluster are not two runs of one server."""
    witness, nodes = KnownServers(follows=True), [Node("redis://a"), Node("redis://b")]
    for run_id, node in zip(("one", "two"), nodes, strict=True):
        greet(witness, node, run_id)
        witness.of(node).listed(run_id, frozenset({f"replica of {run_id}"}))

    assert witness.events() == []
    assert [len(witness.of(node).known(run_id)) for run_id, node in zip(("one", "two"), nodes, strict=True)] == [1, 1]
    assert witness.of(nodes[0]).known("three") == frozenset()


def test_a_user_who_may_not_ask_is_told_nothing():
    """An error is no run id, and the next answer is compared with the last one that was."""
    witness, node = KnownServers(follows=False), Node("redis://a")
    greet(witness, node, "one")
    witness.of(node).greeted(PermissionError("NOPERM"), 0, 0)
    greet(witness, node, "one")

    assert (witness.restarts, witness.events()) == (0, [])


def test_servers_that_change_are_told_once():
    """The first time that they are named nothing has changed; nor when the same ones are named again."""
    witness = KnownServers(follows=True)
    for servers in (("a", "b"), ("a", "b"), (), ("a", "c"), ("a", "c")):
        witness.moved(servers)

    assert [events.detail for events in witness.events()] == ["a, b answered before, a, c now"]
