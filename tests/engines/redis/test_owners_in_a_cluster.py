"""Owners of streams on all masters of a cluster: a death is heard on each of them, and every stream is owned again."""

from pathlib import Path

import pytest
from hearing import SETTING, WAIT_S, letters
from stream_owner import streams

import holdfast
from holdfast import Expired, NotAcquired
from holdfast.testing import Workers, eventually

POD = Path(__file__).with_name("stream_owner.py")
KEYS = [f"chat-{number}" for number in range(30)]
CHANNEL = "__keyevent@0__:expired"


@pytest.fixture
def quiet(cluster):
    """A cluster whose servers tell of nothing; what a killed pod leaves in its queues is swept up."""
    for server in cluster.servers:
        server.command("CONFIG", "SET", SETTING, "")
    yield cluster
    cluster.heal()
    for server in cluster.servers:
        server.command("CONFIG", "SET", SETTING, "")
    for server in cluster.masters():
        server.command("FLUSHALL")


def listening(server):
    return server.command("PUBSUB", "NUMSUB", CHANNEL)[1]


def heard(owner):
    """Whose owner has died, as this one hears it."""
    told = [owner.next(WAIT_S) for _ in KEYS]
    assert {type(event) for event in told} == {Expired}
    return sorted(event.key for event in told)


def claimed(owner, keys):
    """The streams that it gets, and why it does not get the others."""
    works, refused = {}, []
    for key in keys:
        try:
            works[key] = owner.claim(key)
        except NotAcquired as refusal:
            refused.append(refusal.reason)
    return works, refused


@pytest.mark.acceptance("A1-5", "A1-22")
def test_thirty_streams_of_a_killed_owner_are_owned_again(quiet):
    """Every survivor hears of all of them, from every master; each stream goes to one of them."""
    with Workers() as workers, holdfast.connect(quiet.url) as hf, holdfast.connect(quiet.url) as other:
        whole = streams(hf)
        for key in KEYS:
            whole.publish(key, key=key)
        assert {quiet.owner_of(part.name) for part in whole.parts} == set(quiet.masters())
        pod = workers.start(f"{POD}:own", url=quiet.url).wait_ready(WAIT_S)
        assert sorted(pod.read_line(WAIT_S) for _ in KEYS) == sorted(KEYS)
        with whole.owner("a", events="configure") as first, streams(other).owner("b", events="listen") as second:
            eventually(lambda: [listening(server) for server in quiet.masters()] == [3, 3, 3], WAIT_S)
            assert all(set(letters(server)) == {"E", "x"} for server in quiet.masters())

            pod.kill()

            assert heard(first) == heard(second) == sorted(KEYS)
            mine, refused = claimed(first, KEYS[::2])
            theirs, late = claimed(second, KEYS)
            assert (sorted(mine), refused) == (sorted(KEYS[::2]), [])
            assert (sorted(theirs), late) == (sorted(KEYS[1::2]), ["owned"] * 15)
            assert [listening(server) for server in quiet.masters()] == [2, 2, 2]
            for work in (*mine.values(), *theirs.values()):
                work.done()
            assert whole.check()
        assert [listening(server) for server in quiet.servers] == [0] * 6
