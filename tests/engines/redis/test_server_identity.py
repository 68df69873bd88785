"""What a new run of a server means: everything may be forgotten where there is one, and little where there are more."""

import pytest

from holdfast.engines.redis.server_identity import KnownServers


class Node:
    """Something to be seen."""

    def __init__(self, url):
        self.url = url


def greeting(run_id):
    return f"# Server\r\nrun_id:{run_id}\r\n"


def greet(known_servers, node, run_id):
    known_servers.of(node).greeted(greeting(run_id), 0, 0)


@pytest.mark.parametrize(("follows", "restarts"), [(False, 1), (True, 0)])
def test_a_new_run_is_told_and_counts_only_where_nobody_takes_its_place(follows, restarts):
    """With replicas another run has what was replicated: nobody is to wait out what was heard of the former one."""
    known_servers, node = KnownServers(follows=follows), Node("redis://a")
    for run_id in ("one", "one", "two"):
        greet(known_servers, node, run_id)
    greet(known_servers, node, "two")

    assert known_servers.restarts == restarts
    assert [(events.kind, events.detail) for events in known_servers.events()] == [
        ("engine_restarted", "redis://a: run one has ended, run two answers")
    ]
    assert known_servers.events() == []


def test_each_server_has_runs_and_replicas_of_its_own():
    """Two masters of a cluster are not two runs of one server."""
    known_servers, nodes = KnownServers(follows=True), [Node("redis://a"), Node("redis://b")]
    for run_id, node in zip(("one", "two"), nodes, strict=True):
        greet(known_servers, node, run_id)
        known_servers.of(node).listed(run_id, frozenset({f"replica of {run_id}"}))

    assert known_servers.events() == []
    assert [len(known_servers.of(node).known(run_id)) for run_id, node in zip(("one", "two"), nodes, strict=True)] == [
        1,
        1,
    ]
    assert known_servers.of(nodes[0]).known("three") == frozenset()


def test_a_user_who_may_not_ask_is_told_nothing():
    """An error is no run id, and the next answer is compared with the last one that was."""
    known_servers, node = KnownServers(follows=False), Node("redis://a")
    greet(known_servers, node, "one")
    known_servers.of(node).greeted(PermissionError("NOPERM"), 0, 0)
    greet(known_servers, node, "one")

    assert (known_servers.restarts, known_servers.events()) == (0, [])


def test_servers_that_change_are_told_once():
    """The first time that they are named nothing has changed; nor when the same ones are named again."""
    known_servers = KnownServers(follows=True)
    for servers in (("a", "b"), ("a", "b"), (), ("a", "c"), ("a", "c")):
        known_servers.moved(servers)

    assert [events.detail for events in known_servers.events()] == ["a, b answered before, a, c now"]
