"""Idle connections that several threads take and close at the same time."""

import socket
import sys
import threading

import pytest

from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.transport_blocking import ConnectionPool


class Pair:
    """A node that leads to this process: the other end of a socket pair."""

    url, wire_s = "redis://pair", 0.2

    def open_socket(self, _limit_s):
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours


@pytest.mark.finding("S11")
@pytest.mark.parametrize("line", range(1, 5))
def test_threads_that_close_the_same_idle_connections_raise_nothing(line):
    """When a server fails, every thread that notices it closes the idle connections: each is closed once.

    The second thread closes them right before the first one executes a line.
    """
    pool = ConnectionPool(Pair(), identity=None, retired=False)
    connections = [RedisConnection(pool.node) for _ in range(3)]
    for connection in connections:
        pool.give_back(connection)
    second, lines = threading.Thread(target=pool.close_idle), []

    def trace(frame, event, _argument):
        if frame.f_code is not ConnectionPool.close_idle.__code__:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == line:
                second.start()
                second.join(10)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        pool.close_idle()
    finally:
        sys.settrace(before)
    assert second.ident is not None, "the second thread did not run"
    assert all(connection._socket.fileno() == -1 for connection in connections)
