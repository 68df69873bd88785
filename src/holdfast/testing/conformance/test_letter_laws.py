"""Messages to the owner of a key: in order, each once, none lost on its way, and none for somebody else."""

import pytest

from holdfast import LeaseLost, NotAcquired, NotFound, Unavailable
from holdfast.commands import FetchMail, SendToOwner
from holdfast.core.registry import mailbox
from holdfast.testing.conformance.faces import together

pytestmark = pytest.mark.capability("registry")


@together
@pytest.mark.acceptance("A4-9")
def test_messages_reach_the_owner_in_order_and_an_unknown_key_is_told(face):
    """Whoever has the connection need not be whoever runs the conversation; nothing vanishes in silence."""
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
        theirs.send("44", "to nobody")
    assert refusal.value.name == "conversations/44"
    lease.release()
    with pytest.raises(NotFound):
        theirs.send("42", "too late")
    other.release()


def test_a_message_whose_answer_was_lost_is_read_once(face):
    """It is sent again, and the owner knows both copies for one."""
    client = face.connect()
    directory = client.registry("conversations")
    wire = face.wire(client)
    lease = face.connect().registry("conversations").claim("42")

    wire.lose_reply(SendToOwner, times=2)
    directory.send("42", "once")
    directory.send("42", "twice")
    assert len(wire.commands(SendToOwner)) == 4
    assert [lease.receive(timeout=5) for _ in range(2)] == ["once", "twice"]
    assert lease.receive(timeout=0) is None
    peer, copy = face.peer(), SendToOwner("conversations\0k42", "letter", "a copy comes after the first was read")
    peer.say(copy)
    assert lease.receive(timeout=5) == copy.text
    peer.say(copy)
    assert lease.receive(timeout=0) is None
    lease.release()


def test_the_next_owner_does_not_read_the_letters_of_the_last(face):
    """They were for another; and whoever lost the key is told instead of left waiting."""
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
    """What was accepted is read: a letter leaves its box when its owner says that it has it, not before."""
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


def test_a_box_holds_so_many_messages_and_gives_them_in_parts(face):
    """One more is refused and told; what is read makes room."""
    lease = face.connect().registry("conversations").claim("42")
    others, peer = face.connect().registry("conversations"), face.peer()

    for number in range(1000):
        peer.say(SendToOwner("conversations\0k42", f"letter {number}", str(number)))
    with pytest.raises(NotAcquired) as refusal:
        others.send("42", "one too many")
    assert refusal.value.reason == "its owner has 1000 messages to read"
    assert [lease.receive(timeout=0) for _ in range(1000)] == [str(number) for number in range(1000)]
    assert lease.receive(timeout=0) is None
    others.send("42", "there is room")
    assert lease.receive(timeout=5) == "there is room"
    lease.release()


def test_whoever_waits_for_a_message_is_rung(face, monkeypatch):
    """It need not look to find it. Here it would look once an hour."""
    monkeypatch.setattr(mailbox, "_LOOK_NS", 3600 * 10**9)
    client = face.connect()
    lease = client.registry("conversations").claim("42")
    others, wire = face.connect().registry("conversations"), face.wire(client)

    for text in ("the first ring", "another"):
        before = len(wire.commands(FetchMail))
        waiting = face.start(lease.receive, timeout=3000)
        wire.until_sent(FetchMail, before + 1)
        others.send("42", text)
        assert waiting.result() == text
    lease.release()


@together
def test_a_message_whose_ring_was_lost_is_found_by_looking(face):
    """Rings make things faster, nothing else."""
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
def test_whoever_waits_for_a_message_waits_out_an_engine_in_trouble(face):
    """As long as the key is its own. Without patience it is told at once."""
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
    """Also not what has arrived before: the next owner may be at work."""
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
