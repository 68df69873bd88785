"""Several things go wrong at once: cases that were found by reading the code with ill will."""

import asyncio
import signal
import threading
import time

import pytest

import holdfast
from holdfast import Closed, InvalidConfig, LeaseLost, Unavailable, aio, failpoints
from holdfast.blocking import Lease
from holdfast.clock import NS
from holdfast.commands import Acquire, Break, Renew, Undo
from holdfast.core.step import run
from holdfast.engines.redis.scripts import SCRIPTS
from holdfast.testing import eventually
from holdfast.testing.servers import Server
from tests.support.proxy import Proxy, script


def unowned(client, name, ttl=0.2):
    """Return a lease that was requested long ago and that no caller has."""
    lease = Lease(*client.lock(name, ttl=ttl)._fields())
    lease._sent_ns = client._client.clock.now_ns() - 60 * NS
    return lease


def refuse(client, kind, *, hangs=False):
    """Have the keeper's exchanges with these commands fail, at once or at the deadline; return what ends that."""
    transport = client._client.keeper._transport
    apply_all, clock = transport.apply_all, client._client.clock

    async def failing(commands, until_ns=None):
        if any(isinstance(command, kind) for command in commands):
            if hangs:
                time.sleep(max(0, until_ns - clock.now_ns()) / NS)  # noqa: ASYNC251 - a blocking transport blocks inside its awaits
            raise Unavailable("test", "unreachable", "refused")
        return await apply_all(commands, until_ns)

    transport.apply_all = failing
    return lambda: setattr(transport, "apply_all", apply_all)


@pytest.fixture
def client(request):
    """A client with an engine of its own."""
    with holdfast.connect(f"memory://{request.node.name}") as client:
        yield client


def test_an_undo_is_sent_as_long_as_its_client_sends_heartbeats(client, request):
    """The heartbeats of its client would keep an ended waiter in line, and it would cost an offer each time."""
    lease = client.lock("x").acquire()
    waiting = threading.Thread(target=lambda: client.lock("x").acquire().release())
    waiting.start()
    ghost = unowned(client, "x")
    run(client._client.transport.apply(Acquire("x", ghost.token, ghost.packed_holder, 200, wait=True)))
    eventually(lambda: len(client.show("x").waiters) == 2)
    heal = refuse(client, Undo)
    client._client.keeper.undo(ghost)
    time.sleep(1.5)
    assert len(client.show("x").waiters) == 2

    heal()

    eventually(lambda: len(client.show("x").waiters) == 1)
    lease.release()
    waiting.join(5)
    assert not waiting.is_alive()


def test_the_keeper_survives_many_undos_that_cannot_be_delivered(client):
    """Any thread may add commands at any moment; if the keeper's thread died, every lease would expire unreported."""
    lease = client.lock("kept", ttl=0.6).acquire()
    heal = refuse(client, Undo)

    def storm():
        for _ in range(300):
            client._client.keeper.undo(unowned(client, "y", ttl=30))
            time.sleep(0.004)

    storms = [threading.Thread(target=storm) for _ in range(3)]
    for one in storms:
        one.start()
    for one in storms:
        one.join()
    heal()

    lease.check()
    assert client._client.keeper.thread.is_alive()
    lease.release()
    eventually(client._client.keeper.idle, 10)


def test_a_loss_is_reported_in_time_though_many_commands_are_pending(client):
    """Undos that hang on a dead connection, one after the other, must not delay the report that a lease is lost."""
    lost_at = []
    lease = client.lock("x", ttl=1.2, on_loss=lambda _: lost_at.append(time.monotonic())).acquire()
    ends = time.monotonic() + lease.remaining()
    heal = refuse(client, Undo | Renew, hangs=True)
    for _ in range(8):
        client._client.keeper.undo(unowned(client, "y", ttl=30))

    eventually(lambda: lost_at, 10)
    heal()

    assert lost_at[0] - ends < 0.5
    with pytest.raises(LeaseLost):
        lease.release()


def test_an_acquire_that_outlasts_close_gets_nothing(tmp_path):
    """A lease that is granted after the end would not be renewed, and its loss would not be reported."""
    url = f"sqlite://{tmp_path}/x.db"
    client, go, errors = holdfast.connect(url), threading.Event(), []
    client.lock("warm").acquire().release()

    def ask(name):
        try:
            client.lock(name, ttl=1).acquire()
        except Closed as error:
            errors.append(error)

    asking = [threading.Thread(target=ask, args=(name,)) for name in ("x", "y")]
    failpoints.arm("sqlite.before-commit", lambda: go.wait(3.5))
    try:
        for one in asking:
            one.start()
            time.sleep(0.1)
        closing = threading.Thread(target=client.close, args=(0,))
        closing.start()
        time.sleep(2.5)
        failpoints.disarm("sqlite.before-commit")
    finally:
        go.set()
        failpoints.disarm("sqlite.before-commit")
    for one in (*asking, closing):
        one.join(10)

    assert len(errors) == 2
    with holdfast.connect(url) as other:
        for name in ("x", "y"):
            other.lock(name, timeout=5).acquire().release()


def test_one_unreadable_record_costs_one_lease(tmp_path):
    """A batch is many commands, and each has its own answer."""
    with holdfast.connect(f"sqlite://{tmp_path}/x.db") as client:
        leases = [client.lock(f"n{number}", ttl=1).acquire() for number in range(4)]
        junk = "UPDATE lease SET body = 'junk' WHERE name = 'n2'"
        client._client.engine.store.database.transact(lambda link: link.execute(junk))
        time.sleep(1.5)

        assert [bool(lease.lost) for lease in leases] == [False, False, True, False]
        for lease in leases:
            if not lease.lost:
                lease.release()


def test_a_break_whose_reply_was_lost_spares_the_next_holder():
    """It is sent again for the same fence, so it cannot end the lease of the next holder."""
    with (
        Server("valkey") as server,
        Proxy("127.0.0.1", server.port) as proxy,
        holdfast.connect(server.url) as stuck,
        holdfast.connect(server.url) as successor,
        holdfast.connect(proxy.url) as op,
    ):
        op.lock("warm").acquire().release()
        server.command("SCRIPT", "LOAD", SCRIPTS[Break].text)
        broken = stuck.lock("x", ttl=1).acquire()
        got = []
        waiting = threading.Thread(target=lambda: got.append(successor.lock("x", ttl=1).acquire()))
        waiting.start()
        eventually(lambda: successor.show("x").waiters)
        proxy.drop_reply(1, script(SCRIPTS[Break].sha))
        op.break_lease("x", "stuck")
        waiting.join(5)
        time.sleep(0.7)

        got[0].check()
        got[0].release()
        with pytest.raises(LeaseLost):
            broken.release()


def test_signals_do_not_stretch_a_timeout():
    """A profiler that interrupts every system call must not turn two seconds into for ever."""
    with Server("valkey") as server, holdfast.connect(server.url) as client:
        client.lock("warm").acquire().release()
        server.freeze()
        before = signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
        began = time.monotonic()
        try:
            with pytest.raises(Unavailable):
                client.lock("x").acquire(timeout=1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            server.thaw()

        assert time.monotonic() - began < 3


def test_a_full_executor_of_the_loop_does_not_stop_a_waiter():
    """The loop's threads belong to the program, which may use them all."""

    async def main(url):
        loop = asyncio.get_running_loop()
        gate = threading.Event()
        async with await aio.connect(url) as holder, await aio.connect(url) as other:
            lease = await holder.lock("x").acquire()
            for _ in range(80):
                loop.run_in_executor(None, gate.wait)
            began = time.monotonic()
            try:
                with pytest.raises(holdfast.NotAcquired):
                    await other.lock("x", timeout=0.3).acquire()
                return time.monotonic() - began
            finally:
                gate.set()
                await lease.release()

    with Server("valkey") as server:
        assert asyncio.run(main(server.url)) < 2


def test_a_leader_is_in_one_block_at_a_time(client):
    """The end of one block would end the term of the other."""
    leader = client.leader("boss", candidate="a")
    with leader, pytest.raises(RuntimeError, match="in use"):
        leader.__enter__()

    with leader as term:
        assert term.fence


def test_a_block_may_be_left_by_another_thread(client):
    """Fixtures and generators enter in one task and leave in another; the lease belongs to neither."""
    lock = client.lock("x", ttl=5)
    entering = threading.Thread(target=lock.__enter__)
    entering.start()
    entering.join()

    lock.__exit__(None, None, None)

    assert client.show("x").holder is None


def test_waiting_for_a_loss_again_and_again_leaves_nothing(client):
    """Programs call `while not lease.lost.wait(1)` for days."""
    with client.lock("x") as lease:
        for _ in range(50):
            assert not lease.lost.wait(0)

        assert lease._wakers == ()


def test_a_loss_that_the_work_has_raised_is_raised_once(client):
    """check() inside the block is the documented way; its error passes as it is."""
    with pytest.raises(LeaseLost) as raised, client.lock("x", ttl=1) as lease:
        client.break_lease("x", "why")
        eventually(lambda: lease.lost)
        lease.check()

    assert raised.value.__cause__ is None
    assert raised.value.detail == "why"


def test_a_generator_cannot_be_decorated(client):
    """Its body would run when it is iterated, long after the lease was released."""

    def numbers():
        yield 1

    async def later():
        return 1

    with pytest.raises(InvalidConfig, match="generator"):
        client.lock("x")(numbers)
    with pytest.raises(InvalidConfig, match="without the lease"):
        client.lock("x")(numbers.__call__)()
    unawaited = later()
    with pytest.raises(InvalidConfig, match="without the lease"):
        client.lock("x")(lambda: unawaited)()
    unawaited.close()


def test_a_lease_in_a_replaced_file_is_lost(tmp_path):
    """Others may hold the lease in the new file by now, so a lease in the old one cannot be trusted."""
    with holdfast.connect(f"sqlite://{tmp_path}/x.db") as client:
        with pytest.raises(LeaseLost) as raised, client.lock("x"):
            for file in tmp_path.iterdir():
                file.unlink()

        assert raised.value.reason == "replaced"


def test_a_sqlite_client_is_refused_in_another_loop_than_its_own(sqlite_url):
    """Its worker thread answers into one loop. The error names the rule, and the client goes on in its own loop."""
    own = asyncio.new_event_loop()

    async def tried(use):
        with pytest.raises(InvalidConfig, match="belongs to the event loop in which it was opened"):
            await use()

    try:
        client = own.run_until_complete(aio.connect(sqlite_url))
        held = own.run_until_complete(client.lock("x").acquire())
        for use in (lambda: client.lock("y").acquire(timeout=1), lambda: client.show("x"), client.close):
            asyncio.run(tried(use))
        assert own.run_until_complete(client.show("x")).fence == held.fence
        own.run_until_complete(held.release())
        own.run_until_complete(client.close(timeout=0))
    finally:
        own.close()
