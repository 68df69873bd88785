"""How a registry key changes its owner: reserved for a successor, taken with its group, released at a stop."""

import pytest

from holdfast import LeaseLost, NotAcquired
from holdfast.commands import Acquire, ClaimEntry, Released, ReleaseEntry, ReleaseLease
from holdfast.core.step import run
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together

pytestmark = pytest.mark.capability("registry")


@together
@pytest.mark.acceptance("A4-21")
def test_a_handed_off_key_is_reserved_for_its_successor(face):
    """No other process can claim the key meanwhile, and the fence grows; any process can if no successor comes."""
    first, second, third = (face.connect(label=f"server {n}").registry("conversations") for n in (1, 2, 3))
    lease = first.claim("42")

    lease.hand_off("server 2", within=30)
    held = third.claim("42")
    assert not held
    assert held.owner.label == "server 2"
    assert 0 < held.remaining <= 30
    assert not first.claim("42")
    assert first.owner("42") is None
    taken = second.claim("42")
    assert taken.fence > lease.fence
    assert third.claim("42").owner.label == "server 2"
    taken.hand_off("absent", within=30)
    assert not third.take("42")
    forced = third.take("42", force=True)
    assert forced.fence > taken.fence
    forced.hand_off("absent", within=0.3)
    eventually(lambda: third.claim("42"), 10, "a key whose successor did not come").release()


def test_a_block_is_never_entered_without_owning_the_key(face):
    """A program may use a claim as a block without a check; then the error names the other owner."""
    ours, theirs = (face.connect(label=f"server {n}").registry("conversations") for n in (1, 2))
    lease = ours.claim("42")

    with pytest.raises(NotAcquired) as refusal, theirs.claim("42"):
        raise AssertionError("entered")
    assert (refusal.value.name, refusal.value.fence) == ("conversations/42", lease.fence)
    assert refusal.value.holder == str(lease.holder)
    assert not theirs.claim("42").reserved
    lease.hand_off("server 3", within=60)
    with pytest.raises(NotAcquired) as refusal, theirs.claim("42"):
        raise AssertionError("entered")
    assert (refusal.value.holder, refusal.value.reason) == ("server 3", "handed off to another")
    held = theirs.claim("42")
    assert (held.reserved, str(held.owner)) == (True, "server 3")
    with pytest.raises(NotAcquired):
        run(_entered(held))


async def _entered(held):
    async with held:
        raise AssertionError("entered")


def test_a_successor_that_came_and_released_keeps_nothing(face):
    """The reservation ends when the successor comes. After its release any process can claim the key."""
    first, second, third = (face.connect(label=f"server {n}").registry("conversations") for n in (1, 2, 3))
    first.claim("42").hand_off("server 2", within=3000)
    assert not third.claim("42")

    second.claim("42").release()

    lease = third.claim("42")
    assert lease
    lease.release()


def test_a_second_copy_of_a_hand_off_reserves_nothing(face):
    """The first copy did the work; the second one must not change later events."""
    second, third = (face.connect(label=f"server {n}").registry("conversations") for n in (2, 3))
    peer, name, indexes = face.peer(), "conversations\0k42", ("k",)
    end = ReleaseEntry(ReleaseLease(name, "t"), indexes, "server 2", 3_000_000)
    peer.say(ClaimEntry(Acquire(name, "t", "{}", 60_000, wait=False), indexes))

    assert peer.say(end) == Released()
    held = second.claim("42")
    assert peer.say(end) == Released()
    held.release()

    lease = third.claim("42")
    assert lease
    assert peer.say(end) != Released()
    assert [each.key for each in third.list()] == ["42"]
    lease.release()


def test_a_taken_key_counts_for_its_group(face):
    """Otherwise force could exceed the limit of a group."""
    ours, theirs = face.connect().registry("conversations"), face.connect().registry("conversations")
    lost = ours.claim("42", group="ann", limit=1)

    lease = theirs.take("42", force=True, group="ann", limit=1)

    assert [each.key for each in theirs.list(group="ann")] == ["42"]
    lease.release()
    with pytest.raises(LeaseLost):
        lost.release()


def test_a_stopping_server_releases_all_its_keys(face):
    """The release is immediate and covers only its own keys; the result names keys that were lost before."""
    client = face.connect()
    ours, others = (each.registry("conversations", ttl=3000) for each in (client, face.connect()))
    elsewhere = [client.registry("conversations 2").claim("42"), client.lock("conversations").acquire(timeout=5)]
    leases = [ours.claim(key) for key in ("42", "43", "a:b")]
    joined = ours.join("other", "socket 1")
    theirs = others.claim("other")
    taken = others.take("43", force=True)

    assert ours.release_all() == ["43"]

    assert [each.key for each in others.list()] == ["43", "other"]
    assert others.members("other") == []
    assert not leases[0].lost
    assert ours.release_all() == []
    assert not any(lease.lost for lease in elsewhere)
    for lease in (*elsewhere, theirs, taken, leases[0], joined):
        lease.release()
