"""Once: at most one success per idempotency key, and a failure or crash loses no event."""

import threading
import time

import pytest

from holdfast import Closed, InvalidConfig, InvalidName, LeaseLost, NotAcquired, PayloadMismatch
from holdfast.commands import Acquire, BeginOnce, FinishOnce, MarkDone, Released, ReleaseLease, Undo, WaiterHeartbeat
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import passing, together, until_waiters

pytestmark = pytest.mark.capability("once")

KEYS = ["42", "a:b:c", "with spaces", "ключ/✓", "{tag}", "/"]


class Work:
    """Work that must not run twice."""

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


def test_work_runs_once_and_its_result_is_returned_again(face):
    """A later call of any client gets the result of the first."""
    ours, theirs = (face.connect().once("payments", window=60) for _ in range(2))
    work = Work({"paid": [7, None, "ünicode"]})

    assert ours.call("42", work) == {"paid": [7, None, "ünicode"]}
    assert [once.call("42", work) for once in (ours, theirs, ours)] == [{"paid": [7, None, "ünicode"]}] * 3
    assert work.times == 1
    assert ours.seen("42")
    assert theirs.seen("42")
    assert not ours.seen("43")


def test_a_success_is_two_round_trips_and_a_duplicate_one(face):
    """The check for the done marker and the acquire are one step; so are the marker and the release."""
    client = face.connect()
    once = client.once("payments")
    wire = face.wire(client)

    once.call("42", Work(1))
    assert [type(command) for command in wire.commands()] == [BeginOnce, FinishOnce]
    once.call("42", Work(1))
    assert [type(command) for command in wire.commands()] == [BeginOnce, FinishOnce, BeginOnce]


def test_a_block_is_false_when_the_work_has_been_done(face):
    """`first` is a lease for the first caller; the others hold nothing and release nothing."""
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
def test_after_a_failure_the_next_call_runs_the_work(face):
    """A retry after a failure is no duplicate."""
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
def test_a_second_caller_is_refused_or_waits_during_the_work(face):
    """With a timeout of 0 the caller learns the holder; with a longer one it gets the result."""
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


def test_a_caller_whose_timeout_ends_after_the_work_gets_the_result(timed):
    """Another waiter has the offer and sleeps; the done marker still answers this caller."""
    ours, theirs, sleeper = timed.connect().once("payments"), timed.connect(), timed.peer()
    first, wire = ours.first("42"), timed.wire(theirs)
    stand_in_line = Acquire("payments/42", "sleeper", "{}", 30_000, wait=True)

    with first:
        sleeper.say(stand_in_line)
        waiting = timed.start(theirs.once("payments").call, "42", Work("again"), timeout=10)
        until_waiters(theirs, "payments/42", 2)
        for passes in (3.5, 3, 3):  # no waiter is silent for so long that it would lose its place
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
def test_a_waiting_caller_runs_the_work_if_the_first_fails(face):
    """The next waiter gets the lease and finds no done marker."""
    once = face.connect().once("payments")
    work = Work("done")

    with pytest.raises(ZeroDivisionError), once.first("42"):
        waiting = face.start(face.connect().once("payments").call, "42", work, timeout=30)
        time.sleep(0.1)
        1 / 0  # noqa: B018
    assert waiting.result() == "done"
    assert work.times == 1


@pytest.mark.acceptance("A4-16")
def test_after_its_window_the_work_may_run_again(timed):
    """The engine keeps the done marker for the window, and then forgets it."""
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
    """The engine's clock decides the end of the window."""
    once = face.connect().once("payments", window=0.4)
    work = Work(1)

    once.call("42", work)
    eventually(lambda: not once.seen("42"), 10, "the end of the window")
    once.call("42", work)
    assert work.times == 2


def test_a_crash_frees_the_key_after_the_lease_and_not_after_the_window(face):
    """A process that dies during the work leaves no done marker."""
    once = face.connect().once("payments", window=3600, lease=0.5)
    peer = face.peer()
    peer.say(BeginOnce(Acquire("payments/42", "dead", "{}", 500, wait=False)))

    with pytest.raises(NotAcquired):
        once.call("42", Work())
    work = Work("done")
    assert once.call("42", work, timeout=20) == "done"
    assert work.times == 1


@pytest.mark.acceptance("A4-15")
def test_the_same_key_with_another_payload_is_an_error(face):
    """This holds during the work too. Other names and other keys are independent."""
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
    assert once.call("42", Work()) is None, "a call without a payload compares none"
    for name in ("refunds", "payments/42"):
        assert client.once(name).call("42", Work("other"), payload=b"other") == "other"
    for number, key in enumerate(KEYS[1:]):
        assert once.call(key, Work(number), payload=key) == number


def test_the_info_of_a_client_is_no_payload(face):
    """The info of a client may have any keys."""
    ours, theirs = face.connect(info={"payload": "orders"}).once("payments"), face.connect().once("payments")

    with ours.first("42"), pytest.raises(NotAcquired):
        theirs.call("42", Work(), payload={"amount": 1})


@pytest.mark.parametrize("reached", [True, False])
def test_lost_answers_change_nothing(face, reached):
    """Both commands carry the token, so a second copy gets the same answer."""
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


def test_a_second_copy_of_the_finish_changes_nothing(face):
    """The first copy released and left the marker; the second one must not change later events."""
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


def test_a_caller_with_lost_replies_resends_until_its_timeout(timed):
    """The caller resends until its timeout, not only for one exchange."""
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
def test_a_lost_lease_leaves_no_done_marker_and_raises(face):
    """Another process may run the work by now; the error carries the result."""
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


def test_the_lease_of_long_work_is_renewed(timed):
    """The ttl of the lease decides how soon a crash is noticed, not how long the work may take."""
    once = timed.connect().once("payments", lease=3)

    def renewed():
        timed.clock.advance(0.002)  # the keeper pauses for a millisecond between two rounds
        return first.remaining() > 1.5

    with once.first("42") as first:
        for _ in range(20):
            timed.clock.advance(1)
            eventually(renewed, what="a renewal")
    assert once.seen("42")


def test_a_result_that_cannot_be_stored_is_an_error_of_the_first_call(face):
    """The first caller learns of it, and not the second; the key is not marked as done, so a retry can succeed."""
    once = face.connect().once("payments")
    for result, rule in ((object(), "JSON cannot encode it"), ("x" * 70_000, "the maximum is 65536")):
        with pytest.raises(InvalidConfig, match=rule) as refusal:
            once.call("42", Work(result))
        assert type(result).__name__ in str(refusal.value)
        assert not once.seen("42")
    assert once.call("42", Work("small")) == "small"
    assert once.call("42", Work("never called")) == "small"


def test_a_decorated_function_runs_once_for_each_key(face):
    """The decorator builds the key from the arguments."""
    once = face.connect().once("invoices")
    done = []

    @once("{customer}/{number}")
    def invoice(number, customer="ann"):
        done.append((customer, number))
        return len(done)

    assert [invoice(1), invoice(number=1), invoice(2), invoice(1, "bob"), invoice(2)] == [1, 1, 2, 3, 2]
    assert done == [("ann", 1), ("ann", 2), ("bob", 1)]
    assert invoice.__name__ == "invoice"


def test_a_done_marker_can_be_deleted(face):
    """An operator can allow a repetition."""
    once = face.connect().once("payments")
    work = Work(1)

    once.call("42", work)
    once.forget("42")
    assert not once.seen("42")
    once.call("42", work)
    assert work.times == 2


def test_one_of_many_concurrent_callers_runs_the_work(face):
    """The other callers wait and get the result of the first."""
    onces = [face.connect().once("payments") for _ in range(3)]
    work = Work("done")

    running = [face.start(once.call, "42", work, timeout=30) for once in onces for _ in range(3)]

    assert [each.result(40) for each in running] == ["done"] * 9
    assert work.times == 1


def test_an_interrupted_begin_holds_nothing(face):
    """A grant that reached no caller is undone."""
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


def test_invalid_settings_of_once_are_refused_before_any_command(face):
    """This covers names, keys, durations and payloads."""
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


def test_a_late_grant_of_once_is_requested_again(face):
    """An answer that took longer than the lease proves nothing, so the client requests again without an error."""
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
