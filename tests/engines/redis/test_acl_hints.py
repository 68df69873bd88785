"""The error of a missing permission contains the ACL rule that grants it, on every kind of server.

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
RIGHTS = (*KEYS, *CHANNELS, *COMMANDS, *FOR_POOLS)


@pytest.fixture
def place(kind, new_server, loop):
    place = Place(new_server(kind), "blocking", loop)
    yield place
    place.close()


def refusal(place, work, *rights, at=""):
    """Return the ACL rule that the error suggests, or the whole error without one."""
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
def test_the_hint_names_a_missing_command(place):
    """The test covers a connection, a plain command and a script, for which Redis reports only a line number."""
    works = {
        "+evalsha": taken,
        "+time": taken,
        "+get": taken,
        "+set": taken,
        "+client|setname": taken,
        TO_CONFIRM: confirmed,
    }

    hints = {right: refusal(place, work, *(each for each in RIGHTS if each != right)) for right, work in works.items()}
    hints["+select"] = refusal(place, taken, *(each for each in RIGHTS if each != "+select"), at="/3")
    place.server.command("SCRIPT", "FLUSH")
    hints["+eval"] = refusal(place, taken, *(each for each in RIGHTS if each != "+eval"))

    assert hints == {right: right for right in hints}


@EVERY_KIND
@pytest.mark.parametrize(("work", "right"), [(filled, "+hset"), (counted, "+hlen")])
def test_the_hint_lists_all_commands_of_an_ambiguous_line(place, work, right):
    """A line of a script may use several commands, so the hint lists all of them."""
    advice = refusal(place, work, *(each for each in RIGHTS if each != right))

    assert right in advice.split()
    assert {*advice.split()} <= {*RIGHTS}


@EVERY_KIND
def test_the_hint_names_the_key_pattern(place):
    """The pattern is as narrow as possible: with a namespace it contains the namespace."""
    rights = (*CHANNELS, *COMMANDS)

    hints = [refusal(place, taken, "~other:*", *rights, at=at) for at in ("", "?namespace=tenant")]

    assert hints == ["~hf2:*", "~hf2:tenant:*"]


@EVERY_KIND
def test_missing_permissions_for_wake_ups_are_logged(place, caplog):
    """The client works without it, so one log line explains the slow wake-ups."""
    grant([place.server], *(each for each in RIGHTS if each != "&hf2:wake:*"))
    holder, waiter = (place.connect(f"redis://app:pw@127.0.0.1:{place.server.port}") for _ in range(2))
    held = holder.lock("x", ttl=1).acquire()

    with caplog.at_level(logging.WARNING, "holdfast"):
        waiting = place.start(lambda: waiter.lock("x", ttl=1).acquire(timeout=20))
        eventually(lambda: [line for line in caplog.messages if "wake-ups are late" in line], 10)
    held.release()
    waiting.result().release()

    assert [line.rpartition(GRANT)[2] for line in caplog.messages if "wake-ups are late" in line] == ["&hf2:wake:*"]
