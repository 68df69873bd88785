"""A forked child sends nothing on its parent's connections, and the parent keeps its leases."""

import gc
import os
import time

import pytest
from redis_faces import calls_of

from holdfast import LeaseLost
from holdfast.commands import Acquire, Renew, WaiterHeartbeat
from holdfast.testing import eventually
from holdfast.testing.resp import pack

WAIT_S = 20


def in_child(work):
    """Run a function in a forked child; its exit code is 0 after success."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def ended_well(child):
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child did not end")


def silent(proxy):
    before = proxy.bytes_up
    time.sleep(0.2)
    return proxy.bytes_up == before


def test_a_child_that_ends_sends_nothing_on_inherited_connections(slow):
    """Bytes of two processes on one socket would mix up the answers."""
    proxy = slow.proxy()
    client, other = slow.connect(proxy.url), slow.connect()
    blocker = other.lock("y").acquire()
    lease = client.lock("x", ttl=30).acquire()
    waiting = slow.start(lambda: client.lock("y").acquire(timeout=20))
    slow.until_queued(other, "y", 1)
    eventually(lambda: proxy.count(lambda words: words[0] == b"SUBSCRIBE"))
    eventually(lambda: silent(proxy), what="silence")  # a new listener checks once more
    proxy.reset()
    standing = proxy.open

    def child():
        assert lease.lost
        assert lease.lost.reason == "forked"
        gc.collect()

    assert ended_well(in_child(child))

    time.sleep(0.1)
    # The parent may send heartbeats and checks, also on a new connection, which begins with commands that are no
    # scripts. A child that ends would release or unsubscribe.
    sent = [
        sent.words
        for sent in proxy.sent
        if not (calls_of(WaiterHeartbeat)(sent.words) or calls_of(Acquire)(sent.words))
    ]
    assert [words for words in sent if words[0] in (b"EVALSHA", b"EVAL", b"QUIT", b"UNSUBSCRIBE")] == []
    assert proxy.bytes_up == sum(len(pack(*sent.words)) for sent in proxy.sent)
    assert proxy.open >= standing  # the child must not close connections of its parent
    lease.check()
    blocker.release()
    waiting.result().release()
    lease.release()
    assert slow.kinds("lost") == []


def test_a_child_that_continues_opens_its_own_connections(sync):
    """The child may use the same client object, but never the parent's sockets."""
    proxy = sync.proxy()
    client = sync.connect(proxy.url)
    lease = client.lock("x", ttl=1.5).acquire()
    sync.until("renewed")
    inherited = {sent.connection for sent in proxy.sent}

    def child():
        with pytest.raises(LeaseLost):
            lease.check()
        assert client.lock("x").try_acquire() is None
        client.lock("from the child").acquire(timeout=5).release()
        client.close()

    assert ended_well(in_child(child))
    renewed = len(sync.kinds("renewed"))
    sync.until("renewed", renewed + 1)

    of_child = [sent for sent in proxy.sent if b"hf2:{from the child}" in sent.words]
    assert of_child
    assert {sent.connection for sent in of_child} & inherited == set()
    renewals = {sent.connection for sent in proxy.sent if calls_of(Renew)(sent.words)}
    assert renewals <= inherited
    lease.check()
    lease.release()
    assert sync.kinds("lost") == []


def test_a_lease_of_the_child_belongs_to_the_child(sync):
    """The child is another client with its own holder, token and subscription."""
    client = sync.connect()
    client.lock("warm").acquire().release()
    reads, writes = os.pipe()

    def child():
        lease = client.lock("y", ttl=20).acquire()
        os.write(writes, f"{lease.fence} {lease.holder.pid} {os.getpid()}\n".encode())
        time.sleep(0.3)
        lease.release()
        client.close()

    pid = in_child(child)
    os.close(writes)
    fence, owner, own = map(int, os.read(reads, 100).split())
    os.close(reads)

    assert owner == own == pid
    assert client.show("y").holder.pid == pid
    assert ended_well(pid)
    with client.lock("y", timeout=5) as lease:
        assert lease.fence > fence


@pytest.mark.parametrize("face", ["blocking"])
def test_a_child_connects_to_many_servers_by_itself(grouped):
    """The child may use the known topology, but not the connections, subscriptions and threads of its parent."""
    client, names = grouped.connect(), [f"x{number}" for number in range(6)]
    held = [client.lock(name, ttl=20).acquire(timeout=5) for name in names]

    def child():
        assert all(lease.lost.reason == "forked" for lease in held)
        assert all(client.lock(name).try_acquire() is None for name in names)
        for name in names:
            client.lock(f"child/{name}").acquire(timeout=5).release()
        assert client.close(timeout=5) == ()

    assert ended_well(in_child(child))

    for lease in held:
        lease.check()
        lease.release()
    client.lock("child/x1").acquire(timeout=5).release()
    assert grouped.kinds("unavailable", "lost") == []
