"""Mailbox: messages reach the owner of a key in order, once, without loss, and never the next owner."""

import pytest

from holdfast import LeaseLost, NotAcquired, NotFound, Unavailable
from holdfast.commands import FetchMail, SendToOwner
from holdfast.core.registry import mailbox
from holdfast.testing.conformance.faces import together

pytestmark = pytest.mark.capability("registry")


@together
@pytest.mark.acceptance("A4-9")
def test_messages_reach_the_owner_in_order_and_an_unknown_key_raises(face):
    """A server may receive a message for a key that another server owns; no message vanishes silently."""
    ours, theirs = face.connect().registry("conversations"), face.connect().registry("conversations")
    lease, other = ours.claim("42"), ours.claim("43")

    assert lease.receive(timeout=0) is None
    for text in ("first", "second\nwith two lines", "ünicode", ""):
        theirs.send("42", text)
    theirs.send("43", "other")
    assert [lease.receive(timeout=5) for _ in range(4)] == ["first", "second\nwith two lines", "ünicode", ""]
    assert other.receive(timeout=5) == "other"
    waiting = face.start(lease.receive, timeout=20)
    theirs.send("42", "while it waits")
    assert waiting.result() == "while it waits"
    with pytest.raises(NotFound) as refusal:
        theirs.send("44", "without an owner")
    assert refusal.value.name == "conversations/44"
    lease.release()
    with pytest.raises(NotFound):
        theirs.send("42", "too late")
    other.release()


def test_a_message_whose_answer_was_lost_is_read_once(face):
    """The sender resends it, and the owner recognises both copies as one."""
    client = face.connect()
    registry = client.registry("conversations")
    wire = face.wire(client)
    lease = face.connect().registry("conversations").claim("42")

    wire.lose_reply(SendToOwner, times=2)
    registry.send("42", "once")
    registry.send("42", "twice")
    assert len(wire.commands(SendToOwner)) == 4
    assert [lease.receive(timeout=5) for _ in range(2)] == ["once", "twice"]
    assert lease.receive(timeout=0) is None
    peer, copy = face.peer(), SendToOwner("conversations\0k42", "message", "a copy comes after the first was read")
    peer.say(copy)
    assert lease.receive(timeout=5) == copy.text
    peer.say(copy)
    assert lease.receive(timeout=0) is None
    lease.release()


def test_the_next_owner_does_not_read_messages_of_the_last(face):
    """The messages were for the previous owner; an owner that lost its key gets an error instead of waiting."""
    ours, theirs = face.connect().registry("conversations"), face.connect().registry("conversations")
    lost = ours.claim("42")
    ours.send("42", "for the first")
    lease = theirs.take("42", force=True, reason="moved")

    assert lease.receive(timeout=0) is None
    ours.send("42", "for the second")
    assert lease.receive(timeout=5) == "for the second"
    lease.release()
    with pytest.raises(LeaseLost):
        lost.release()
    with pytest.raises(LeaseLost):
        lost.receive(timeout=0)


@pytest.mark.parametrize("reached", [True, False])
def test_an_answer_that_was_lost_loses_no_message(face, reached):
    """A message leaves the mailbox only when its owner has acknowledged it."""
    client = face.connect()
    lease = client.registry("conversations").claim("42")
    wire = face.wire(client)
    others = face.connect().registry("conversations")

    for text in ("first", "second"):
        others.send("42", text)
    wire.lose_reply(FetchMail, times=1, reached=reached)
    assert lease.receive(timeout=5) == "first"
    others.send("42", "third")
    assert lease.receive(timeout=5) == "second"
    wire.lose_reply(FetchMail, times=1, reached=reached)
    assert lease.receive(timeout=5) == "third"
    assert lease.receive(timeout=0) is None
    lease.release()


def test_a_mailbox_has_a_maximum_and_delivers_in_pages(face):
    """One more message is refused; a read message makes room."""
    lease = face.connect().registry("conversations").claim("42")
    others, peer = face.connect().registry("conversations"), face.peer()

    for number in range(1000):
        peer.say(SendToOwner("conversations\0k42", f"message {number}", str(number)))
    with pytest.raises(NotAcquired) as refusal:
        others.send("42", "one too many")
    assert refusal.value.reason == "its owner has 1000 unread messages"
    assert [lease.receive(timeout=0) for _ in range(1000)] == [str(number) for number in range(1000)]
    assert lease.receive(timeout=0) is None
    others.send("42", "there is room")
    assert lease.receive(timeout=5) == "there is room"
    lease.release()


def test_a_message_wakes_a_waiting_owner(face, monkeypatch):
    """A wake-up ends the wait; without it this owner would check once an hour."""
    monkeypatch.setattr(mailbox, "_POLL_NS", 3600 * 10**9)
    client = face.connect()
    lease = client.registry("conversations").claim("42")
    others, wire = face.connect().registry("conversations"), face.wire(client)

    for text in ("the first wake-up", "another"):
        before = len(wire.commands(FetchMail))
        waiting = face.start(lease.receive, timeout=3000)
        wire.until_sent(FetchMail, before + 1)
        others.send("42", text)
        assert waiting.result() == text
    lease.release()


@together
def test_a_message_without_its_wake_up_is_found_by_polling(face):
    """Wake-ups only make things faster."""
    client = face.connect()
    lease = client.registry("conversations").claim("42")
    others, wire = face.connect().registry("conversations"), face.wire(client)
    wire.wakeups_lost = True

    waiting = face.start(lease.receive, timeout=30)
    wire.until_sent(FetchMail, 1)
    others.send("42", "unheard")
    assert waiting.result() == "unheard"
    lease.release()


@together
def test_a_waiting_owner_waits_for_the_end_of_an_outage(face):
    """It waits while it owns the key; with a timeout of 0 it raises at once."""
    client = face.connect()
    lease = client.registry("conversations").claim("42")
    others, wire = face.connect().registry("conversations"), face.wire(client)
    wire.fail(FetchMail)

    with pytest.raises(Unavailable):
        lease.receive(timeout=0)
    before = len(wire.commands(FetchMail))
    waiting = face.start(lease.receive, timeout=30)
    wire.until_sent(FetchMail, before + 1)
    others.send("42", "after the trouble")
    wire.heal()
    assert waiting.result() == "after the trouble"
    lease.release()


def test_an_owner_that_lost_its_key_reads_no_more(face):
    """It does not even read earlier messages: the next owner may be at work."""
    ours, theirs = face.connect().registry("conversations"), face.connect().registry("conversations")
    lost = ours.claim("42")
    for text in ("first", "second"):
        theirs.send("42", text)
    assert lost.receive(timeout=5) == "first"

    lease = theirs.take("42", force=True)
    with pytest.raises(LeaseLost):
        lost.release()
    with pytest.raises(LeaseLost):
        lost.receive(timeout=0)
    lease.release()
