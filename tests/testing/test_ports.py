"""A port of a test is reserved for it alone, whether a server listens there or not."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack

import pytest

from holdfast.testing import ports
from holdfast.testing.ports import LOOPBACK, Port
from holdfast.testing.servers import Server, available, missing
from tests.support.clusters import Cluster

KINDS = sorted(available())


def is_free(number):
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, number))
        except OSError:
            return False
        return True


pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux lets a server listen on a port that is held"
)


def test_a_reserved_port_is_given_only_once():
    """Otherwise two processes would start two servers there, and the second would fail."""
    with Port(beside=10_000) as port:
        assert not is_free(port.number)
        assert not is_free(port.number + 10_000)

    assert is_free(port.number)
    assert is_free(port.number + 10_000)


def test_a_pair_of_ports_is_reserved_whole_or_not_at_all(monkeypatch):
    """The cluster bus is ten thousand above; a half that stayed reserved would be lost for all others."""
    with Port() as taken:
        half, below = taken.number - 1000, ports.secrets.randbelow
        first = iter([half - ports._LEAST])
        monkeypatch.setattr(ports.secrets, "randbelow", lambda most: next(first, None) or below(most))
        with Port(beside=1000) as found:
            assert next(first, None) is None  # it was tried
            assert found.number != half
            assert is_free(half)


def test_no_client_is_given_the_port_of_a_server():
    """The kernel gives clients ports of its own range, also that of a server which is about to start."""
    first, last = map(int, ports._RANGE.read_text().split())
    with ExitStack() as held:
        chosen = {held.enter_context(Port(beside=10_000)).number for _ in range(50)}

    assert len(chosen) == 50
    assert not [number for number in chosen if first <= number <= last or first <= number + 10_000 <= last]


@pytest.mark.skipif(not KINDS, reason=missing())
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_keeps_its_port_while_it_is_down(kind):
    """It restarts on the same port, which no other process must take in between."""
    with Server(kind) as server:
        server.kill()
        down = is_free(server.port)
        server.start()
        assert server.command("PING") == b"PONG"

    assert not down
    assert is_free(server.port)


@pytest.mark.skipif(not KINDS, reason=missing())
def test_a_cluster_that_was_never_started_gives_its_ports_back():
    """A cluster that cannot start must not leave reserved ports."""
    cluster = Cluster(KINDS[0])
    numbers = [server.port for server in cluster.servers]
    cluster.close()

    assert [number for number in numbers if not is_free(number) or not is_free(number + 10_000)] == []
