"""The listener of a client: a thread, a pipe and a few descriptors, which go when the client closes."""

from __future__ import annotations

import os
import threading

import pytest

import holdfast
from holdfast.core import client as core_client
from holdfast.engines.fifo_listener import LazyFifoListener


def listeners():
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-wakeups"]


@pytest.mark.parametrize("engine", ["file", "sqlite"])
def test_a_waiter_that_starts_to_listen_after_its_client_closed_leaves_no_listener(engine, tmp_path, monkeypatch):
    """Closing waits for running commands, not for ever: a slow disk may outlast it, and leak the listener."""
    url = f"file://{tmp_path}" if engine == "file" else f"sqlite:///{tmp_path}/locks.db"
    listen, ended = LazyFifoListener.listen, []

    def late(listener, ahead, new):
        closing = threading.Thread(target=client.close, args=(0,))
        closing.start()
        closing.join(30)
        ended.append(client._client.closed)
        return listen(listener, ahead, new)

    with holdfast.connect(url) as other, other.lock("x"):
        before = listeners(), len(os.listdir("/dev/fd"))
        client = holdfast.connect(url)
        monkeypatch.setattr(core_client, "WIRE_NS", 50_000_000)
        monkeypatch.setattr(LazyFifoListener, "listen", late)
        with pytest.raises(holdfast.Closed):
            client.lock("x").acquire(timeout=10)
        monkeypatch.undo()

        assert ended == [True]
        assert listeners() == before[0]
        assert list(tmp_path.rglob("*wake*")) == []
        assert len(os.listdir("/dev/fd")) <= before[1]
