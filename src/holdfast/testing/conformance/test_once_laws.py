"""Once: at most one success for a key, and nothing is lost when the work fails or its process dies."""

import threading
import time

import pytest

from holdfast import Closed, InvalidConfig, InvalidName, LeaseLost, NotAcquired, NotFound, PayloadMismatch
from holdfast.commands import Acquire, BeginOnce, FinishOnce, MarkDone, Released, ReleaseLease, Undo, WaiterHeartbeat
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import passing, together, until_waiters

pytestmark = pytest.mark.capability("once")

KEYS = ["42", "a:b:c", "with spaces", "ключ/✓", "{tag}", "/"]


class Work:
    """Something that must not be done twice."""

    def __init__(self, gives=None):
        self.times = 0
        self.gives = gives
        self.began, self.go = threading.Event(), threading.Event()
        self.go.set()

    def __call__(self):
        self.times += 1
        self.began.set()
        assert self.go.wait(20)
        return self.gives


def test_work_is_done_once_and_its_result_is_given_again(face):
    """Whoever comes later gets what the first one got, from any client."""
    ours, theirs = (face.connect().once("payments", window=60) for _ in range(2))
    work = Work({"paid": [7, None, "ünicode"]})

    assert ours.call("42", work) == {"paid": [7, None, "ünicode"]}
    assert [once.call("42", work) for once in (ours, theirs, ours)] == [{"paid": [7, None, "ünicode"]}] * 3
    assert work.times == 1
    assert ours.seen("42")
    assert theirs.seen("42")
    assert not ours.seen("43")


def test_a_success_is_two_round_trips_and_a_duplicate_one(face):
    """Looking for the note and taking the lease are one step; so are leaving the note and giving the lease back."""
    client = face.connect()
    once = client.once("payments")
    wire = face.wire(client)

    once.call("42", Work(1))
    assert [type(command) for command in wire.commands()] == [BeginOnce, FinishOnce]
    once.call("42", Work(1))
    assert [type(command) for command in wire.commands()] == [BeginOnce, FinishOnce, BeginOnce]


def test_a_block_is_false_when_the_work_has_been_done(face):
    """`first` is the lease of whoever is first; the others have nothing to hold and nothing to give back."""
    once = face.connect().once("payments")

    with pytest.raises(RuntimeError, match="inside its block"):
        bool(once.first("42"))
    with once.first("42") as first:
        assert first
        assert first.fence > 0
        first.check()
        first.result = 7
    with once.first("42") as second:
        assert not second
        assert second.result == 7
    with once.first("43") as other:
        assert other.fence > 0
    assert once.call("43", Work(1)) is None, "a block that says nothing has given nothing"


@pytest.mark.acceptance("G-9")
def test_a_failure_clears_the_way_for_the_next_try(face):
    """The sender tries again, and is not told that it was a duplicate."""
    once = face.connect().once("payments")
    work = Work("done")

    for _ in range(2):
        with pytest.raises(ZeroDivisionError), once.first("42"):
            1 / 0  # noqa: B018
        assert not once.seen("42")
    assert once.call("42", work) == "done"
    assert work.times == 1


@pytest.mark.acceptance("G-9")
@together
def test_whoever_comes_while_it_is_done_is_told_or_waits(face):
    """Without patience: who is at it. With patience: what it gave."""
    work = Work("slowly")
    work.go.clear()
    ours, theirs = face.connect(label="worker 7").once("payments"), face.connect().once("payments")

    running = face.start(ours.call, "42", work)
    assert work.began.wait(20)
    with pytest.raises(NotAcquired) as refusal:
        theirs.call("42", Work())
    assert "worker 7" in refusal.value.holder
    assert not theirs.seen("42")
    waiting = [face.start(theirs.call, "42", work, timeout=30) for _ in range(3)]
    with pytest.raises(NotAcquired):
        theirs.call("42", work, timeout=0.1)
    work.go.set()
    assert [each.result() for each in (running, *waiting)] == ["slowly"] * 4
    assert work.times == 1


def test_whoever_runs_out_of_patience_after_the_work_was_done_gets_what_it_gave(timed):
    """The lease is offered to somebody who sleeps. That the work was done is known all the same, and is the answer."""
    ours, theirs, sleeper = timed.connect().once("payments"), timed.connect(), timed.peer()
    first, wire = ours.first("42"), timed.wire(theirs)
    stand_in_line = Acquire("payments/42", "sleeper", "{}", 30_000, wait=True)

    with first:
        sleeper.say(stand_in_line)
        waiting = timed.start(theirs.once("payments").call, "42", Work("again"), timeout=10)
        until_waiters(theirs, "payments/42", 2)
        for passes in (3.5, 3, 3):  # and nobody is silent for so long that it would lose its place
            marks = len(wire.commands(WaiterHeartbeat))
            timed.clock.advance(passes)
            sleeper.say(stand_in_line)
            eventually(lambda marks=marks: len(wire.commands(WaiterHeartbeat)) > marks, what="a mark")
        first.result = "done"
    assert not waiting.done()
    timed.clock.advance(0.6)

    assert waiting.result() == "done"
    until_waiters(theirs, "payments/42", 0)


@together
def test_whoever_waits_does_the_work_if_the_first_one_fails(face):
    """The lease goes to the next in line, who finds no note."""
    once = face.connect().once("payments")
    work = Work("done")

    with pytest.raises(ZeroDivisionError), once.first("42"):
        waiting = face.start(face.connect().once("payments").call, "42", work, timeout=30)
        time.sleep(0.1)
        1 / 0  # noqa: B018
    assert waiting.result() == "done"
    assert work.times == 1


@pytest.mark.acceptance("A4-16")
def test_after_its_window_it_may_be_done_again(timed):
    """A note counts for the window, and is then forgotten."""
    once = timed.connect().once("payments", window=60)
    work = Work(1)

    once.call("42", work)
    timed.clock.advance(59.9)
    once.call("42", work)
    assert work.times == 1
    timed.clock.advance(0.2)
    assert not once.seen("42")
    once.call("42", work)
    assert work.times == 2


@together
@pytest.mark.acceptance("A4-16")
def test_the_window_ends_on_every_engine(face):
    """By the engine's clock."""
    once = face.connect().once("payments", window=0.4)
    work = Work(1)

    once.call("42", work)
    eventually(lambda: not once.seen("42"), 10, "the end of the window")
    once.call("42", work)
    assert work.times == 2


def test_a_crash_frees_the_key_after_the_lease_and_not_after_the_window(face):
    """Whoever dies at work leaves no note."""
    once = face.connect().once("payments", window=3600, lease=0.5)
    peer = face.peer()
    peer.say(BeginOnce(Acquire("payments/42", "dead", "{}", 500, wait=False)))

    with pytest.raises(NotAcquired):
        once.call("42", Work())
    work = Work("done")
    assert once.call("42", work, timeout=20) == "done"
    assert work.times == 1


@pytest.mark.acceptance("A4-15")
def test_the_same_key_with_another_payload_is_a_mistake_and_no_duplicate(face):
    """Also while the first one is at work. Keys of other names, and other keys, are other things."""
    client = face.connect()
    once = client.once("payments")

    with once.first("42", payload={"amount": 1, "to": "ann"}):
        with pytest.raises(PayloadMismatch):
            once.call("42", Work(), payload={"amount": 2, "to": "ann"}, timeout=5)
        with pytest.raises(NotAcquired):
            once.call("42", Work(), payload={"to": "ann", "amount": 1})
    with pytest.raises(PayloadMismatch) as refusal:
        once.call("42", Work(), payload=b"other")
    assert refusal.value.name == "payments/42"
    assert not refusal.value.retryable
    assert once.call("42", Work(), payload={"to": "ann", "amount": 1}) is None
    assert once.call("42", Work()) is None, "whoever gives no payload asks for none"
    for name in ("refunds", "payments/42"):
        assert client.once(name).call("42", Work("other"), payload=b"other") == "other"
    for number, key in enumerate(KEYS[1:]):
        assert once.call(key, Work(number), payload=key) == number


def test_what_a_client_says_of_itself_is_no_payload(face):
    """Its info may have any keys."""
    ours, theirs = face.connect(info={"payload": "orders"}).once("payments"), face.connect().once("payments")

    with ours.first("42"), pytest.raises(NotAcquired):
        theirs.call("42", Work(), payload={"amount": 1})


@pytest.mark.parametrize("reached", [True, False])
def test_lost_answers_change_nothing(face, reached):
    """Both commands carry the token: said twice, they mean the same."""
    client = face.connect()
    once = client.once("payments")
    wire = face.wire(client)
    work = Work(7)

    wire.lose_reply(BeginOnce, times=1, reached=reached)
    wire.lose_reply(FinishOnce, times=1, reached=reached)
    assert once.call("42", work) == 7
    assert (len(wire.commands(BeginOnce)), len(wire.commands(FinishOnce))) == (2, 2)
    wire.lose_reply(BeginOnce, times=1, reached=reached)
    assert once.call("42", work) == 7
    assert work.times == 1


def test_a_second_copy_of_the_end_brings_back_nothing(face):
    """The first copy released and left the note; what happened to that since is not the second one's to change."""
    once, peer = face.connect().once("payments"), face.peer()
    end = FinishOnce(ReleaseLease("payments/42", "t"), MarkDone("payments/42", '{"result":"old"}', 60_000))
    peer.say(BeginOnce(Acquire("payments/42", "t", "{}", 60_000, wait=False)))

    assert [peer.say(end), once.seen("42")] == [Released(), True]
    once.forget("42")
    assert [peer.say(end), once.seen("42")] == [Released(), False]
    with once.first("42") as first:
        peer.say(end)
        first.result = "new"
    peer.say(end)
    assert once.call("42", Work()) == "new"


def test_whoever_has_patience_asks_for_so_long_if_answers_are_lost(timed):
    """Not only for as long as one exchange may take."""
    client = timed.connect()
    wire = timed.wire(client)

    wire.lose_reply(BeginOnce)
    with passing(timed.clock):
        running = timed.start(client.once("payments").call, "42", Work(7), timeout=1000)
        eventually(
            lambda: (asked := wire.moments(BeginOnce)) and asked[-1] > asked[0] + 5, what="five seconds of asking"
        )
        wire.heal()
        assert running.result() == 7


@together
def test_a_lost_lease_leaves_no_note_and_is_told(face):
    """Somebody else may be at it by now; what the work gave is in the error."""
    client = face.connect()
    once = client.once("payments")

    def work():
        client.break_lease("payments/42", "by hand")
        return 7

    with pytest.raises(LeaseLost) as loss:
        once.call("42", work)
    assert loss.value.result == 7
    assert loss.value.reason == "broken"
    assert not once.seen("42")


def test_a_long_work_is_renewed_like_any_other(timed):
    """The lease's ttl is how soon a crash is noticed, not how long the work may take."""
    once = timed.connect().once("payments", lease=3)

    with once.first("42") as first:
        for _ in range(20):
            timed.clock.advance(1)
            eventually(lambda: first.remaining() > 1.5, what="a renewal")
    assert once.seen("42")


def test_a_result_that_cannot_be_kept_is_given_once(face):
    """The work is done and stays done; whoever asks again is told that its result is not there."""
    once = face.connect().once("payments")
    thing = object()

    assert once.call("42", Work(thing)) is thing
    assert once.call("43", Work("x" * 70_000)) == "x" * 70_000
    for key in ("42", "43"):
        assert once.seen(key)
        with pytest.raises(NotFound):
            once.call(key, Work())


def test_a_function_is_made_to_do_its_work_once_for_each_key(face):
    """The key is filled from the arguments."""
    once = face.connect().once("invoices")
    done = []

    @once("{customer}/{number}")
    def invoice(number, customer="ann"):
        done.append((customer, number))
        return len(done)

    assert [invoice(1), invoice(number=1), invoice(2), invoice(1, "bob"), invoice(2)] == [1, 1, 2, 3, 2]
    assert done == [("ann", 1), ("ann", 2), ("bob", 1)]
    assert invoice.__name__ == "invoice"


def test_what_was_done_can_be_forgotten_by_hand(face):
    """The way out, for people who know better."""
    once = face.connect().once("payments")
    work = Work(1)

    once.call("42", work)
    once.forget("42")
    assert not once.seen("42")
    once.call("42", work)
    assert work.times == 2


def test_only_one_of_many_at_once_does_the_work(face):
    """Whoever is not first waits, and gets what the first one got."""
    onces = [face.connect().once("payments") for _ in range(3)]
    work = Work("done")

    running = [face.start(once.call, "42", work, timeout=30) for once in onces for _ in range(3)]

    assert [each.result(40) for each in running] == ["done"] * 9
    assert work.times == 1


def test_an_interrupted_beginning_holds_nothing(face):
    """What no caller owns is undone."""
    client = face.connect()
    once = client.once("payments")
    wire = face.wire(client)

    class Stop(BaseException):
        pass

    wire._faults.clear()
    wire.fail(BeginOnce, times=1, error=Stop())
    with pytest.raises(Stop):
        once.call("42", Work())
    eventually(lambda: wire.commands(Undo), what="an undo")
    assert once.call("42", Work(1)) == 1


def test_senseless_settings_are_refused_before_anything_is_sent(face):
    """Names, keys, lengths of time and payloads."""
    client = face.connect()
    once = client.once("payments")
    wire = face.wire(client)

    for options in ({"window": 0}, {"window": -1}, {"lease": 0.1}, {"lease": "30"}):
        with pytest.raises(InvalidConfig) as refusal:
            client.once("payments", **options)
        assert refusal.value.setting == next(iter(options))
    for name in ("", 7, None):
        with pytest.raises(InvalidName):
            client.once(name)
        for use in (once.first, once.seen, once.forget, lambda key: once.call(key, Work())):
            with pytest.raises(InvalidName):
                use(name)
    with pytest.raises(InvalidConfig) as refusal:
        once.first("42", payload=object())
    assert refusal.value.setting == "payload"
    with pytest.raises(InvalidConfig, match="callable"):
        once.call("42", 5)
    with pytest.raises(InvalidConfig):
        once.first("42", timeout=-1)
    assert wire.commands() == []
    client.close()
    with pytest.raises(Closed):
        once.call("42", Work())


def test_a_grant_that_comes_too_late_is_asked_for_again(face):
    """An answer that took longer than the lease lasts proves nothing; the caller is not told that it failed."""
    client = face.connect()
    once = client.once("payments", lease=0.5)
    wire = face.wire(client)
    there, go = wire.hold(BeginOnce)

    running = face.start(once.call, "42", Work(7))
    assert there.wait(20)
    time.sleep(0.6)
    go.set()

    assert running.result() == 7
    assert len(wire.commands(BeginOnce)) == 2
