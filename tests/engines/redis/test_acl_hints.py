"""A right that is missing is told by its name, in the words that grant it: on every kind of server that is here.

Servers word it differently, and older ones tell only the line of a script. So each kind is asked, also in `make test`.
"""

import logging

import pytest
from minimal_acl import CHANNELS, COMMANDS, FOR_POOLS, KEYS, TO_CONFIRM, grant
from redis_faces import Place

from holdfast import Unavailable
from holdfast.testing import eventually
from holdfast.testing.servers import available

GRANT = "; to grant it: ACL SETUSER ... "
EVERY_KIND = pytest.mark.parametrize("kind", sorted(available()))
RIGHTS = (KEYS, *CHANNELS, *COMMANDS, *FOR_POOLS)


@pytest.fixture
def place(kind, new_server, loop):
    place = Place(new_server(kind), "blocking", loop)
    yield place
    place.close()


def refusal(place, work, *rights, at=""):
    """What somebody with these rights is advised to be granted; all that is said, if nothing is."""
    grant([place.server], *rights)
    client = place.connect(f"redis://app:pw@127.0.0.1:{place.server.port}{at}")
    with pytest.raises(Unavailable) as trouble:
        work(client)
    client.close()
    assert trouble.value.reason == "no permission"
    assert "credentials" not in trouble.value.detail
    return trouble.value.detail.rpartition(GRANT)[2]


def taken(client):
    client.lock("x").acquire(timeout=0)


def confirmed(client):
    client.lock("x", confirm="replicas").acquire(timeout=0)


def filled(client):
    client.pool("x").set_items(["a"])


def counted(client):
    client.pool("x").stats()


@EVERY_KIND
def test_a_missing_command_is_told_by_its_name(place):
    """As it is said by a connection, by itself, and in a script: there Redis tells no more than a line."""
    works = {
        "+evalsha": taken,
        "+time": taken,
        "+get": taken,
        "+set": taken,
        "+client|setname": taken,
        TO_CONFIRM: confirmed,
    }

    told = {right: refusal(place, work, *(each for each in RIGHTS if each != right)) for right, work in works.items()}
    told["+select"] = refusal(place, taken, *(each for each in RIGHTS if each != "+select"), at="/3")
    place.server.command("SCRIPT", "FLUSH")
    told["+eval"] = refusal(place, taken, *(each for each in RIGHTS if each != "+eval"))

    assert told == {right: right for right in told}


@EVERY_KIND
@pytest.mark.parametrize(("work", "right"), [(filled, "+hset"), (counted, "+hlen")])
def test_where_a_line_does_not_tell_the_command_all_that_it_may_be_are_told(place, work, right):
    """A line of a pool's script writes with whatever command it was given; another one has two of them."""
    advice = refusal(place, work, *(each for each in RIGHTS if each != right))

    assert right in advice.split()
    assert {*advice.split()} <= {*RIGHTS}


@EVERY_KIND
def test_missing_keys_are_told_by_what_ours_begin_with(place):
    """No wider than they have to be: with a namespace, those of the namespace."""
    rights = (*CHANNELS, *COMMANDS)

    told = [refusal(place, taken, "~other:*", *rights, at=at) for at in ("", "?namespace=tenant")]

    assert told == ["~hf2:*", "~hf2:tenant:*"]


@EVERY_KIND
def test_what_wake_ups_lack_is_in_the_log(place, caplog):
    """Nobody is refused for it, so it is said once, where people look for what is slow."""
    grant([place.server], *(each for each in RIGHTS if each != "&hf2:wake:*"))
    holder, waiter = (place.connect(f"redis://app:pw@127.0.0.1:{place.server.port}") for _ in range(2))
    held = holder.lock("x", ttl=1).acquire()

    with caplog.at_level(logging.WARNING, "holdfast"):
        waiting = place.start(lambda: waiter.lock("x", ttl=1).acquire(timeout=20))
        eventually(lambda: [line for line in caplog.messages if "wake-ups are late" in line], 10)
    held.release()
    waiting.result().release()

    assert [line.rpartition(GRANT)[2] for line in caplog.messages if "wake-ups are late" in line] == ["&hf2:wake:*"]
