"""Thousands of leases in one process, and the commands of one lease."""

import re
import threading
import time

import pytest
from redis_faces import ACQUIRES, calls_of, lengthy

import holdfast
from holdfast.commands import Acquire, Granted, ReleaseLease, Renew, Renewed
from holdfast.core.step import run
from holdfast.engines.interface import COMMANDS_PER_WRITE
from holdfast.testing import eventually

MANY = 3000
SLOW_US = 2000


@pytest.mark.parametrize("face", ["blocking"])
def test_thousands_of_leases_are_renewed_in_bounded_batches(new_server, place_on):
    """The keeper uses one thread, one connection, and no script that blocks the server for long."""
    server = new_server(arguments=("--slowlog-log-slower-than", str(SLOW_US), "--slowlog-max-len", "1000"))
    place = place_on(server)
    proxy = place.proxy()
    client = place.connect(proxy.url)
    leases = [client.lock(f"n{number}", ttl=6).acquire() for number in range(MANY)]
    server.command("CONFIG", "RESETSTAT")
    server.command("SLOWLOG", "RESET")
    proxy.reset()

    eventually(lambda: len({e.name for e in place.events if e.kind == "renewed"}) == MANY, 30, "all to be renewed")

    stats = server.command("INFO", "commandstats").decode()
    evalsha = next(line for line in stats.splitlines() if line.startswith("cmdstat_evalsha"))
    each_us = float(evalsha.split("usec_per_call=")[1].split(",")[0])
    round_trips = proxy.round_trips
    renewals = [sent for sent in proxy.sent if calls_of(Renew)(sent.words)]
    keepers = [thread for thread in threading.enumerate() if thread.name == "holdfast-keeper"]
    slow = [entry for entry in server.command("SLOWLOG", "GET", "1000") if entry[3][0].upper() == b"EVALSHA"]
    names = server.command("CLIENT", "LIST").count(b" name=holdfast ")
    for lease in leases:
        lease.release()

    assert each_us < SLOW_US / 10
    assert len(slow) <= MANY / 100  # a busy machine delays the server too
    assert len(keepers) == 1
    assert len({sent.connection for sent in renewals}) == 1
    assert names == 2
    assert MANY / COMMANDS_PER_WRITE <= round_trips < MANY / 10
    assert place.kinds("lost", "renewed_late", "renewal_failed") == []


@pytest.mark.acceptance("C-12")
def test_an_uncontended_pair_costs_two_round_trips(place):
    """One round trip acquires and one releases; there is no other command."""
    proxy = place.proxy()
    client = place.connect(proxy.url)
    client.lock("x").acquire().release()
    time.sleep(0.05)
    proxy.reset()

    for _ in range(10):
        client.lock("x").acquire().release()

    time.sleep(0.05)
    assert (proxy.round_trips, proxy.requests, proxy.replies) == (20, 20, 20)
    assert proxy.count(ACQUIRES) == proxy.count(calls_of(ReleaseLease)) == 10
    assert proxy.connections == 0


def test_a_refused_attempt_costs_one_round_trip(place):
    """`try_acquire` of a held name is one command and one answer, without an undo."""
    proxy = place.proxy()
    client, holder = place.connect(proxy.url), place.connect()
    held = holder.lock("x").acquire()
    assert client.lock("x").try_acquire() is None
    proxy.reset()

    assert client.lock("x").try_acquire() is None

    time.sleep(0.2)
    assert (proxy.round_trips, proxy.requests) == (1, 1)
    held.release()


@pytest.mark.acceptance("A0-13")
def test_short_work_under_a_long_ttl_sends_no_renewal(place):
    """No renewal is due, so the keeper sends nothing and opens no connection."""
    proxy = place.proxy()
    client = place.connect(proxy.url)
    for _ in range(3):
        lease = client.lock("x", ttl=30).acquire()
        time.sleep(0.05)
        lease.release()

    assert proxy.count(calls_of(Renew)) == 0
    assert proxy.connections == 1


@pytest.mark.acceptance("A0-18", "A0-16")
def test_an_invalid_name_and_a_closed_client_send_nothing(place):
    """The refusal comes before any command, and a closed client opens no connection."""
    from holdfast import Closed, InvalidName

    proxy = place.proxy()
    client = place.connect(proxy.url)
    with pytest.raises(InvalidName):
        client.lock("")
    assert proxy.connections == 0
    lock = client.lock("x")
    lock.acquire().release()
    client.close()
    proxy.reset()

    with pytest.raises(Closed):
        lock.acquire()
    with pytest.raises(Closed):
        client.show("x")

    time.sleep(0.05)
    assert (proxy.requests, proxy.connections) == (0, 0)
    eventually(lambda: proxy.open == 0)


def test_all_waiters_of_a_client_share_one_subscription(place):
    """A client bounds its connections for waiting, and never uses one per lock."""
    client, holder = place.connect(), place.connect()
    held = [holder.lock(f"n{number}").acquire() for number in range(20)]
    waiting = [place.start(lambda number=number: client.lock(f"n{number}").acquire(timeout=20)) for number in range(20)]
    for number in range(20):
        place.until_queued(holder, f"n{number}", 1)

    # A waiter in line is about to listen, or blocks on its wake-up key and listens later.
    channels = eventually(lambda: place.server.command("PUBSUB", "CHANNELS", "hf2:*"), what="a subscription")
    for lease in held:
        lease.release()
    for one in waiting:
        one.result().release()

    assert len(channels) == 1


def test_the_most_urgent_leases_are_renewed_first_and_not_too_many_at_a_time():
    """Nearly lost leases must not wait for the answers of thousands of others."""
    with holdfast.connect("memory://urgent") as client:
        calm = [client.lock(f"calm/{number}", ttl=60).acquire() for number in range(1100)]
        urgent = [client.lock(f"urgent/{number}", ttl=20).acquire() for number in range(3)]
        keeper, asked = client._client.keeper, []
        send_all = keeper._send_all

        def counted(commands, **how):
            asked.append([command.name for command in commands if isinstance(command, Renew)])
            return send_all(commands, **how)

        keeper._send_all = counted
        keeper._renew_all_now = True
        keeper.wake_by(0)
        eventually(lambda: sum(map(len, asked)) >= 1103, 10, "all to be renewed")

        assert set(asked[0][:3]) == {lease.name for lease in urgent}
        assert max(map(len, asked)) <= 1000
        for lease in (*calm, *urgent):
            lease.release()


@lengthy
def test_ten_thousand_leases_over_three_masters_are_three_batches_a_tick(clustered, monkeypatch):
    """Each server gets its own renewals in one batch, in writes of a hundred."""
    client = clustered.connect(f"{clustered.server.url}?socket_timeout=60")  # even on a busy machine
    transport, writes = client._client.keeper._transport, []
    send_all = transport._send_all

    async def counted(connections, commands, count, limit_s):
        writes.append((connections.node.url, count))
        return await send_all(connections, commands, count, limit_s)

    names = [f"many/{number}" for number in range(10_000)]
    taken = [Acquire(name, f"token-{number}", "owner", 60_000, wait=False) for number, name in enumerate(names)]
    assert {type(answer) for answer in run(transport.apply_all(taken))} == {Granted}
    asked = [Renew(name, f"token-{number}", 60_000) for number, name in enumerate(names)]
    run(transport.apply_all(asked[:100]))  # now every server knows the script
    for server in clustered.server.masters():
        server.command("CONFIG", "RESETSTAT")
    monkeypatch.setattr(transport, "_send_all", counted)

    answers = run(transport.apply_all(asked))

    assert {type(answer) for answer in answers} == {Renewed}
    batches = [url for at, (url, _) in enumerate(writes) if at == 0 or writes[at - 1][0] != url]
    assert len(batches) == len(set(batches)) == 3
    assert sum(count for _, count in writes) == 10_000
    assert len(writes) <= 3 * (10_000 // 3 // 100 + 5)
    stats = [server.command("INFO", "commandstats").decode() for server in clustered.server.masters()]
    counts = [int(re.search(r"cmdstat_evalsha:calls=(\d+)", text)[1]) for text in stats]
    assert sum(counts) == 10_000
    run(transport.apply_all([ReleaseLease(name, f"token-{number}") for number, name in enumerate(names)]))
    run(transport.close())
