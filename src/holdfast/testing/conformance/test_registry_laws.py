"""Registry: one owner per key, every client can look it up, and no claim waits."""

import itertools
import time
from contextlib import suppress

import pytest

from holdfast import Closed, InvalidConfig, InvalidName, LeaseLost, NotAcquired
from holdfast.commands import Acquire, ClaimEntry, ListEntries, ReleaseEntry, Renew
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together

pytestmark = pytest.mark.capability("registry")

KEYS = ["42", "a:b:c", "a:b:c:q", "with spaces", "ключ ✓", "{tag}", "50%", "%3A", "/", "none/None"]


def keys(found):
    return [each.key for each in found]


def test_the_first_claim_owns_the_key_and_others_learn_the_owner(face):
    """A refused claim neither waits nor raises: it returns the owner, so that the client can attach to it."""
    ours, theirs = face.connect(label="server 1"), face.connect(label="server 2")
    lease = ours.registry("conversations").claim("42", {"address": "10.0.0.1"})

    held = theirs.registry("conversations").claim("42")

    assert lease
    assert not held
    assert (held.key, held.fence, held.owner.label, held.info) == (
        "42",
        lease.fence,
        "server 1",
        {"address": "10.0.0.1"},
    )
    assert held.owner.pid == lease.holder.pid
    assert 0 <= held.seconds < 60
    assert 0 < held.remaining <= 15
    assert theirs.registry("conversations").owner("42").fence == lease.fence
    assert theirs.registry("conversations").owner("43") is None
    assert theirs.registry("others").owner("42") is None
    lease.release()
    assert theirs.registry("conversations").owner("42") is None
    again = theirs.registry("conversations").claim("42")
    assert again.fence > lease.fence
    again.release()


@pytest.mark.acceptance("A4-11")
def test_keys_with_any_characters_are_independent(face):
    """Keys may contain any character, and no key collides with the internals of another."""
    registry = face.connect().registry("conversations")
    leases = {key: registry.claim(key) for key in KEYS}

    assert all(leases.values())
    assert keys(registry.list()) == sorted(KEYS)
    for key, lease in leases.items():
        assert registry.owner(key).fence == lease.fence
        assert keys(registry.list(key))[0] == key
        assert not registry.claim(key)
        lease.release()
    assert registry.list() == []


@pytest.mark.large
def test_owned_keys_are_listed_by_prefix_group_and_owner(face):
    """The list is sorted by key and contains only owned keys."""
    ours, theirs = face.connect(label="server 1"), face.connect(label="server 2")
    one, other = ours.registry("conversations"), theirs.registry("conversations")
    leases = [one.claim(f"a/{n}", group="ann") for n in range(3)] + [other.claim("b/1", group="bob"), other.claim("c")]

    assert keys(other.list()) == ["a/0", "a/1", "a/2", "b/1", "c"]
    assert keys(one.list("a/")) == ["a/0", "a/1", "a/2"]
    assert keys(one.list("a/1")) == ["a/1"]
    assert keys(one.list(group="bob")) == ["b/1"]
    assert one.list(group="bob")[0].group == "bob"
    assert one.list(group="carl") == one.list("d") == []
    assert keys(one.list(owner=leases[0].holder)) == ["a/0", "a/1", "a/2", "b/1", "c"], "both are this process"
    assert face.connect().registry("others").list() == []
    leases[1].release()
    assert keys(one.list("a/")) == keys(one.list(group="ann")) == ["a/0", "a/2"]
    for lease in leases:
        lease.release()


def test_a_long_list_comes_in_pages(face):
    """The pages join without gaps and without duplicates."""
    registry = face.connect().registry("conversations")
    leases = [registry.claim(f"{n:04}") for n in range(1100)]

    assert keys(registry.list()) == [f"{n:04}" for n in range(1100)]
    for lease in leases:
        lease.release()


def test_a_group_never_owns_more_than_its_limit(face):
    """Count and claim are one step, so concurrent claims stay within the limit."""
    registries = [face.connect().registry("conversations") for _ in range(3)]
    numbers = itertools.count()

    def start(registry):
        found = []
        for _ in range(4):
            with suppress(NotAcquired):
                found.append(registry.claim(str(next(numbers)), group="ann", limit=5))
        return found

    running = [face.start(start, registry) for registry in registries]
    leases = [lease for each in running for lease in each.result()]

    assert len(leases) == 5
    assert len(registries[0].list(group="ann")) == 5
    leases.pop().release()
    leases.append(registries[0].claim("again", group="ann", limit=5))
    assert not registries[1].claim("again", group="ann", limit=5), "its own key does not count against it"
    other = registries[0].claim("bob's", group="bob", limit=1)
    for lease in (*leases, other):
        lease.release()


def test_an_expired_claim_blocks_no_client(face):
    """An expired entry is not listed, does not count for its group, and its key can be claimed."""
    registry = face.connect().registry("conversations", ttl=5)
    peer = face.peer()
    indexes = ("k", "g:ann")
    peer.say(ClaimEntry(Acquire("conversations\0k42", "dead", "{}", 400, wait=False), indexes, "g:ann", 1))

    with pytest.raises(NotAcquired):
        registry.claim("43", group="ann", limit=1)
    assert keys(registry.list()) == ["42"]
    eventually(lambda: registry.list() == [], 10, "the end of the dead one's claim")
    assert registry.list(group="ann") == []
    lease = registry.claim("42", group="ann", limit=1)
    assert lease
    lease.release()


def test_another_claim_of_a_key_is_not_counted_for_the_group_of_the_last(face):
    """An index entry counts only for the token that wrote it."""
    registry = face.connect().registry("conversations")
    peer = face.peer()
    peer.say(ClaimEntry(Acquire("conversations\0k42", "dead", "{}", 300, wait=False), ("k", "g:ann"), "g:ann", 1))
    eventually(lambda: registry.owner("42") is None, 10, "the end of the dead one's claim")

    lease = registry.claim("42", group="bob", limit=1)
    second = registry.claim("43", group="ann", limit=1)

    assert keys(registry.list(group="ann")) == ["43"]
    assert keys(registry.list(group="bob")) == ["42"]
    lease.release()
    second.release()


@pytest.mark.acceptance("A4-6")
def test_a_failed_start_releases_the_key_at_once(face):
    """Other servers must not attach to a key that never started."""
    registry = face.connect().registry("conversations")

    with pytest.raises(ZeroDivisionError), registry.claim("42"):
        1 / 0  # noqa: B018
    lease = registry.claim("42")
    assert lease
    lease.release()


@pytest.mark.acceptance("A4-5")
def test_only_the_owner_can_release_a_key(face):
    """A late release of a replaced owner changes nothing."""
    ours, theirs = face.connect().registry("conversations"), face.connect().registry("conversations")
    lost = ours.claim("42", group="ann")
    lease = theirs.take("42", force=True, reason="server 1 is gone")

    with pytest.raises(LeaseLost) as loss:
        lost.release()
    assert (loss.value.name, loss.value.reason, loss.value.detail) == ("conversations/42", "broken", "server 1 is gone")
    assert theirs.owner("42").fence == lease.fence
    assert keys(theirs.list()) == ["42"]
    lease.release()


@together
@pytest.mark.acceptance("A4-21")
def test_a_key_taken_by_force_is_lost_for_the_old_owner(face):
    """The fence grows; without force the call only returns the owner."""
    events = []
    ours = face.connect(observer=events.append).registry("conversations", ttl=1)
    theirs = face.connect(label="server 2").registry("conversations", ttl=1)
    lost = ours.claim("42")

    assert not theirs.take("42")
    lease = theirs.take("42", {"by": "hand"}, force=True, reason="by hand")
    assert lease.fence > lost.fence
    eventually(lambda: lost.lost, 10, "word of the loss")
    assert lost.lost.reason == "broken"
    eventually(lambda: [event for event in events if event.kind == "lost"], 10, "the event")
    assert [(event.name, event.fence) for event in events if event.kind == "lost"] == [("conversations/42", lost.fence)]
    assert ours.owner("42").info == {"by": "hand"}
    assert ours.owner("42").owner.label == "server 2"
    lease.release()


def test_members_are_listed_while_they_are_alive(face):
    """Members own nothing; an owner may close a key without members."""
    ours, theirs = face.connect().registry("conversations"), face.connect().registry("conversations")
    leases = [ours.claim(key) for key in ("42", "43")]
    joined = [theirs.join("42", f"socket {n}") for n in range(2)]

    assert ours.members("42") == ["socket 0", "socket 1"]
    assert ours.members("43") == ours.members("4") == []
    assert keys(ours.idle()) == ["43"]
    assert keys(ours.list()) == ["42", "43"], "a member is no owner"
    with pytest.raises(NotAcquired):
        ours.join("42", "socket 1")
    joined[0].release()
    assert ours.members("42") == ["socket 1"]
    with pytest.raises(ZeroDivisionError), joined[1]:
        1 / 0  # noqa: B018
    assert ours.members("42") == []
    assert keys(ours.idle()) == ["42", "43"]
    for lease in leases:
        lease.release()


@together
def test_watch_yields_every_change(face):
    """The watcher gets the present entries, then each claim, move, release and loss."""
    watcher, ours = face.connect().registry("conversations", ttl=9), face.connect().registry("conversations", ttl=9)
    lease = ours.claim("42")
    peer = face.peer()
    changes = watcher.watch(interval=0.05)

    def following():
        change = next(changes)
        return change.kind, change.key

    assert following() == ("claimed", "42")
    other = ours.claim("43")
    assert following() == ("claimed", "43")
    other.release()
    assert following() == ("released", "43")
    taken = ours.take("42", force=True, reason="moved")
    assert following() == ("moved", "42")
    peer.say(ClaimEntry(Acquire("conversations\0k44", "dead", "{}", 2500, wait=False), ("k",)))
    assert following() == ("claimed", "44")
    assert following() == ("lost", "44")
    taken.release()
    assert following() == ("released", "42")
    changes.close()
    with pytest.raises(LeaseLost):
        lease.release()


@pytest.mark.acceptance("A4-2")
def test_a_claim_is_renewed_with_all_others_in_one_batch(timed):
    """A renewal tick is one exchange for each hundred keys of a process."""
    client = timed.connect()
    registry = client.registry("conversations", ttl=15)
    leases = [registry.claim(str(n)) for n in range(50)]
    wire = timed.wire(client)

    for _ in range(12):
        timed.clock.advance(5)
        eventually(lambda: min(lease.remaining() for lease in leases) > 13, what="renewals")
    assert len(wire.commands(Renew)) >= 50 * 11
    assert len(registry.list()) == 50
    for lease in leases:
        lease.release()


@pytest.mark.parametrize("reached", [True, False])
def test_lost_answers_of_claims_change_nothing(face, reached):
    """Both commands carry the token, so a second copy gets the same answer."""
    client = face.connect()
    registry = client.registry("conversations")
    wire = face.wire(client)

    wire.lose_reply(ClaimEntry, times=1, reached=reached)
    lease = registry.claim("42", group="ann", limit=1)
    assert keys(registry.list()) == ["42"]
    wire.lose_reply(ReleaseEntry, times=1, reached=reached)
    lease.release()
    assert (len(wire.commands(ClaimEntry)), len(wire.commands(ReleaseEntry))) == (2, 2)
    assert registry.list() == registry.list(group="ann") == []


def test_a_claim_is_one_round_trip_and_so_is_its_end(face):
    """The same step updates the index."""
    client = face.connect()
    wire = face.wire(client)

    client.registry("conversations").claim("42", group="ann", limit=3).release()

    assert [type(command) for command in wire.commands()] == [ClaimEntry, ReleaseEntry]


def test_invalid_keys_groups_and_settings_are_refused_before_any_command(face):
    """This covers names, keys, members, infos and limits."""
    client = face.connect()
    registry = client.registry("conversations")
    wire = face.wire(client)

    for bad in ("", 7, None, b"42", "n" * 513, "nul\x00", "unpaired \ud800"):
        for use in (registry.claim, registry.owner, registry.members, lambda key: registry.join(key, "m")):
            with pytest.raises(InvalidName):
                use(bad)
        with pytest.raises(InvalidName):
            registry.join("42", bad)
        with pytest.raises(InvalidName):
            client.registry(bad)
        if bad is not None:
            with pytest.raises(InvalidName):
                registry.claim("42", group=bad)
    for info in (7, ["list"], {"a": object()}, {"a": "x" * 5000}):
        with pytest.raises(InvalidConfig) as refusal:
            registry.claim("42", info)
        assert refusal.value.setting == "info"
    for options in ({"limit": 1}, {"limit": -1, "group": "ann"}, {"limit": 1.5, "group": "ann"}):
        with pytest.raises(InvalidConfig) as refusal:
            registry.claim("42", **options)
        assert refusal.value.setting == "limit"
    with pytest.raises(InvalidConfig):
        client.registry("conversations", ttl=0)
    with pytest.raises(InvalidConfig):
        next(registry.watch(interval=0))
    assert wire.commands() == []
    client.close()
    for use in (lambda: registry.claim("42"), lambda: registry.owner("42"), registry.list):
        with pytest.raises(Closed):
            use()


def test_a_list_costs_what_it_finds(face):
    """One command reads the entries; other registries and names cost nothing."""
    client = face.connect()
    others = [client.registry(f"others {n}").claim("42") for n in range(20)]
    lease = client.registry("conversations").claim("42")
    wire = face.wire(client)

    assert keys(client.registry("conversations").list()) == ["42"]
    assert len(wire.commands(ListEntries)) == len(wire.commands()) == 1
    for each in (*others, lease):
        each.release()


def test_a_closed_client_releases_the_keys_of_its_blocks(face):
    """After a clean end the next owner gets the key at once."""
    client = face.connect()
    with client.registry("conversations").claim("42"):
        pass
    client.close()

    registry = face.connect().registry("conversations")
    began = time.monotonic()
    lease = registry.claim("42")
    assert lease
    assert time.monotonic() - began < 10
    lease.release()


def test_invalid_messages_and_successors_are_refused_before_any_command(face):
    """Messages and successors are text of limited length."""
    client = face.connect()
    registry = client.registry("conversations")
    lease = registry.claim("42")
    wire = face.wire(client)

    for message in (None, 7, b"bytes", "x" * 70_000, "unpaired \ud800"):
        with pytest.raises(InvalidConfig) as refusal:
            registry.send("42", message)
        assert refusal.value.setting == "message"
    for successor in (None, 7, "", "l" * 201):
        with pytest.raises(InvalidConfig) as refusal:
            lease.hand_off(successor)
        assert refusal.value.setting == "to"
    with pytest.raises(InvalidConfig):
        lease.hand_off("server 2", within=0)
    assert wire.commands() == []
    lease.release()
