"""Which sentinel to trust: one that was cut off names a replaced server, and that server still says it is a primary."""

import threading
import time

import pytest
from redis_faces import Place

from holdfast import Unavailable, config
from holdfast.engines import open_engine
from holdfast.engines.redis.address import topology_of
from holdfast.testing import eventually
from holdfast.testing.servers import Server, available
from tests.support.sentinels import Sentinels

KIND = next(iter(available()), "valkey")
HOST = "127.0.0.1"


@pytest.fixture
def divided():
    """Three sentinels; the first one watches another primary than the others."""
    with Sentinels(KIND) as sentinels, Server(KIND) as stranger:
        liar = sentinels.sentinels[0]
        liar.command("SENTINEL", "REMOVE", sentinels.service)
        liar.command("SENTINEL", "MONITOR", sentinels.service, HOST, stranger.port, 2)
        eventually(lambda: int(liar.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[1]) == stranger.port, 10)
        yield sentinels, stranger


def test_a_change_of_servers_is_delivered_while_clients_come_and_go():
    """The listening thread delivers it: an error there would end the thread."""
    engine, over, trouble = open_engine(config.settings("redis+sentinel://127.0.0.1:1/main")), threading.Event(), []

    def come():
        transports = []
        while not over.is_set():
            transports.append(engine.transport(owns=False))
            if len(transports) == 50:
                transports.clear()

    coming = threading.Thread(target=come)
    coming.start()
    until = time.monotonic() + 0.7
    while time.monotonic() < until and not trouble:
        try:
            engine._topology_changed()
        except RuntimeError as error:
            trouble.append(error)
    over.set()
    coming.join()
    engine.close()

    assert trouble == []


def test_no_sentinel_is_missing_while_another_thread_moves_it_to_the_end():
    """Two threads connect and one listens: each always finds all sentinels."""
    primary, over, seen = topology_of(config.settings("redis+sentinel://h1/main")).only, threading.Event(), set()
    (sentinel,) = primary._sentinels

    def put_last():
        while not over.is_set():
            primary._move_to_end(sentinel)

    putting = threading.Thread(target=put_last)
    putting.start()
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        seen.add(len(primary._sentinels))
    over.set()
    putting.join()

    assert seen == {1}


def through(sentinels, *which):
    """Return the URL of some of the sentinels, in that order."""
    hosts = ",".join(f"{HOST}:{sentinels.sentinels[number].port}" for number in which)
    return f"redis+sentinel://{hosts}/{sentinels.service}"


def test_one_sentinel_is_not_trusted_against_the_others(divided, face, loop):
    """The first one that answers would lead to a second lock domain, in which every lease is free."""
    sentinels, stranger = divided
    honest = sentinels.sentinels[1]
    place = Place(sentinels, face, loop)
    lease = place.connect(through(sentinels, 0, 1, 2)).lock("x", ttl=20).acquire(timeout=10)

    assert stranger.command("EXISTS", "hf2:{x}") == 0
    port = int(honest.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[1])
    primary = next(server for server in sentinels.servers if server.port == port)
    assert primary.command("EXISTS", "hf2:{x}") == 1
    lease.release()
    place.close()


def test_sentinels_without_a_majority_are_not_trusted(divided, face, loop):
    """The two name different servers: no lease is granted, and no command goes to either server."""
    sentinels, stranger = divided
    place = Place(sentinels, face, loop)
    client = place.connect(through(sentinels, 0, 1))

    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=0)

    assert trouble.value.reason == "moving"
    assert "name several primaries" in str(trouble.value)
    assert [server.command("DBSIZE") for server in (stranger, *sentinels.servers)] == [0] * 4
    place.close()


def test_sentinels_that_are_away_do_not_count(divided, face, loop):
    """Two of three are dead: the third one is trusted if its server confirms that it is a primary."""
    sentinels, stranger = divided
    for sentinel in sentinels.sentinels[:2]:
        sentinel.kill()
    place = Place(sentinels, face, loop)

    place.connect(through(sentinels, 0, 1, 2)).lock("x").acquire(timeout=10).release()

    assert stranger.command("DBSIZE") == 0
    place.close()


def test_the_error_of_a_sentinel_at_a_server_url_names_the_right_url(sentinels, face, loop):
    """Both have a host and a port, and only one of them stores leases."""
    place = Place(sentinels.sentinels[0], face, loop)
    client = place.connect(f"redis://{HOST}:{sentinels.sentinels[0].port}")
    try:
        with pytest.raises(Unavailable, match=r"redis\+sentinel://") as trouble:
            client.lock("x").acquire(timeout=0)
    finally:
        place.close()
    assert (trouble.value.reason, trouble.value.retryable) == ("other topology", False)
