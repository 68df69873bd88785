"""A new run of a server: a single server may have forgotten everything, replicated ones have lost little."""

import pytest

from holdfast.engines.redis.server_identity import KnownServers


class Node:
    """A node with nothing but a URL."""

    def __init__(self, url):
        self.url = url


def greeting(run_id):
    return f"# Server\r\nrun_id:{run_id}\r\n"


def greet(known_servers, node, run_id):
    known_servers.identity_of(node).record_greeting(greeting(run_id), 0, 0)


@pytest.mark.parametrize(("follows", "restarts"), [(False, 1), (True, 0)])
def test_a_new_run_is_an_event_and_a_restart_only_of_a_single_server(follows, restarts):
    """With replicas, another run has the replicated data: no client has to wait for the leases of the former one."""
    known_servers, node = KnownServers(follows=follows), Node("redis://a")
    for run_id in ("one", "one", "two"):
        greet(known_servers, node, run_id)
    greet(known_servers, node, "two")

    assert known_servers.restarts == restarts
    assert [(event.kind, event.detail) for event in known_servers.events()] == [
        ("engine_restarted", "redis://a: run one has ended, run two answers")
    ]
    assert known_servers.events() == []


def test_each_server_has_its_own_runs_and_replicas():
    """Two masters of a cluster are not two runs of one server."""
    known_servers, nodes = KnownServers(follows=True), [Node("redis://a"), Node("redis://b")]
    runs = list(zip(("one", "two"), nodes, strict=True))
    for run_id, node in runs:
        greet(known_servers, node, run_id)
        known_servers.identity_of(node).add_replicas(run_id, frozenset({f"replica of {run_id}"}))

    assert known_servers.events() == []
    assert [len(known_servers.identity_of(node).known_replicas(run_id)) for run_id, node in runs] == [1, 1]
    assert known_servers.identity_of(nodes[0]).known_replicas("three") == frozenset()


def test_an_error_as_the_greeting_changes_nothing():
    """A user without the right to INFO gets an error, which has no run id; the next one is compared with the last."""
    known_servers, node = KnownServers(follows=False), Node("redis://a")
    greet(known_servers, node, "one")
    known_servers.identity_of(node).record_greeting(PermissionError("NOPERM"), 0, 0)
    greet(known_servers, node, "one")

    assert (known_servers.restarts, known_servers.events()) == (0, [])


def test_a_change_of_the_servers_is_one_event():
    """The first list of servers is no change, nor is the same list again."""
    known_servers = KnownServers(follows=True)
    for servers in (("a", "b"), ("a", "b"), (), ("a", "c"), ("a", "c")):
        known_servers.record_servers(servers)

    assert [event.detail for event in known_servers.events()] == ["a, b answered before, a, c now"]
