"""What makes no sense is refused before any input or output, and the refusal names the value and the rule."""

import pickle
from datetime import timedelta
from decimal import Decimal

import pytest

import holdfast
from holdfast import InvalidConfig, InvalidName, LeaseLost, NotAcquired, NotFound, errors
from holdfast.errors import ReplyLost, Unavailable
from holdfast.testing.clock import ManualClock

NAN, INFINITY = float("nan"), float("inf")

BAD_NAMES = ["", None, 7, b"bytes", ["list"], "n" * 513, "é" * 257, "nul\x00inside", "lone \ud800 surrogate"]
BAD_TTLS = [0, -1, 0.19, NAN, INFINITY, -INFINITY, 10**9, 10**400, True, "30", None, Decimal(3), timedelta(0), [1]]
BAD_TIMEOUTS = [-0.001, -1, NAN, INFINITY, 10**400, True, "5", Decimal(3), timedelta(seconds=-1), timedelta(days=400)]
BAD_OPTIONS = {
    "label": [None, 7, "l" * 201, b"label", "lone \ud800 surrogate"],
    "info": [7, "text", ["list"], [], {"a": 1j}, {"a": {1, 2}}, {"a": "x" * 4096}, {"a": "lone \ud800"}],
    "observer": [7, "print", []],
    "fence_memory": [0, 0.5, -1, NAN, INFINITY, None, "60", True],
}
BAD_URLS = [7, b"memory://", "", "memory", "/tmp/x.db", "nosuch://x", "://", "memory://[bad", ["memory://"]]
BAD_TEXTS = ["", None, 7, "r" * 501, "lone \ud800 surrogate"]


def shown(value):
    """As a message shows it: the whole of it, or its beginning."""
    return repr(value)[:60]


@pytest.mark.acceptance("A0-18", "C-18")
@pytest.mark.parametrize("name", BAD_NAMES, ids=shown)
def test_a_senseless_name_is_refused_before_anything_is_sent(face, name):
    """A name is text of 1 to 512 bytes of valid Unicode without NUL, wherever it is given."""
    client = face.connect()
    wire = face.wire(client)

    for use in (
        lambda: client.lock(name),
        lambda: client.leader(name),
        lambda: client.show(name),
        lambda: client.break_lease(name, "by hand"),
    ):
        with pytest.raises(InvalidName) as refusal:
            use()
        assert isinstance(refusal.value, ValueError)
        assert not refusal.value.retryable
        assert shown(name) in str(refusal.value)
        assert refusal.value.rule in str(refusal.value)
    assert wire.commands() == []
    assert list(face.folder.glob("x.db")) == []


@pytest.mark.acceptance("C-18")
@pytest.mark.parametrize("ttl", BAD_TTLS, ids=shown)
def test_a_senseless_ttl_is_refused_before_anything_is_sent(face, ttl):
    """Too short to be renewed, too long to be meant, or no length of time at all."""
    client = face.connect()
    wire = face.wire(client)

    for use in (client.lock, client.leader):
        with pytest.raises(InvalidConfig) as refusal:
            use("x", ttl=ttl)
        assert refusal.value.setting == "ttl"
        assert f"ttl={shown(ttl)}" in str(refusal.value)
    assert wire.commands() == []


@pytest.mark.acceptance("C-18")
@pytest.mark.parametrize("timeout", BAD_TIMEOUTS, ids=shown)
def test_a_senseless_timeout_is_refused_before_anything_is_sent(face, timeout):
    """Patience is zero or more seconds, or None; nothing else is guessed."""
    client = face.connect()
    wire = face.wire(client)
    lock = client.lock("x")

    for use in (
        lambda: client.lock("x", timeout=timeout),
        lambda: client.leader("x", timeout=timeout),
        lambda: lock.acquire(timeout=timeout),
        lambda: client.close(timeout=timeout),
    ):
        with pytest.raises(InvalidConfig) as refusal:
            use()
        assert refusal.value.setting == "timeout"
        assert shown(timeout) in str(refusal.value)
    assert wire.commands() == []
    with lock as lease, pytest.raises(InvalidConfig):
        lease.lost.wait(timeout)


@pytest.mark.acceptance("C-18")
@pytest.mark.parametrize("on_loss", [None, 7, "explode", ["report"]], ids=shown)
def test_a_senseless_policy_for_losses_is_refused(face, on_loss):
    """A mistyped policy would be noticed only on the day of the loss."""
    client = face.connect()

    for use in (client.lock, client.leader):
        with pytest.raises(InvalidConfig) as refusal:
            use("x", on_loss=on_loss)
        assert refusal.value.setting == "on_loss"


def test_a_policy_that_nobody_would_await_is_refused(face):
    """A coroutine function as callback would never run."""
    client = face.connect()

    async def told(_lease):
        return None

    with pytest.raises(InvalidConfig):
        client.lock("x", on_loss=told)


def test_only_the_asyncio_face_can_cancel(face):
    """A thread cannot be cancelled, so the blocking face does not pretend."""
    client = face.connect()
    if face.kind == "asyncio":
        assert client.lock("x", on_loss="cancel").name == "x"
        return
    with pytest.raises(InvalidConfig):
        client.lock("x", on_loss="cancel")


@pytest.mark.acceptance("C-18")
@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option, values in BAD_OPTIONS.items() for value in values],
    ids=shown,
)
def test_a_senseless_option_is_refused_before_the_engine_is_opened(face, option, value):
    """The place is untouched: no file, no thread, nothing to close."""
    with pytest.raises(InvalidConfig) as refusal:
        face.connect(**{option: value})

    assert refusal.value.setting == option
    assert shown(value) in str(refusal.value)
    assert list(face.folder.iterdir()) == []


@pytest.mark.acceptance("C-18", "C-15")
@pytest.mark.parametrize("url", BAD_URLS, ids=shown)
def test_a_senseless_url_is_refused(face, url):
    """Nothing is guessed, and there is no other engine to fall back to."""
    with pytest.raises(InvalidConfig) as refusal:
        face.connect(url)

    assert refusal.value.setting == "url"


@pytest.mark.acceptance("C-18")
@pytest.mark.parametrize("tail", ["?colour=green", "?colour", "?="])
def test_an_option_that_the_engine_does_not_know_is_refused(face, tail):
    """An option that nobody reads is a mistake that nobody would notice."""
    with pytest.raises(InvalidConfig):
        face.connect(face.url + tail)

    assert list(face.folder.iterdir()) == []


@pytest.mark.parametrize("tail", ["\x00", "%00", "\ud800"], ids=shown)
def test_a_url_that_no_system_could_open_is_refused(placed, tail):
    """A path with a NUL or a lone surrogate is no path; the error says so, and is ours."""
    with pytest.raises(InvalidConfig):
        placed.connect(placed.url + tail)


def test_a_clock_is_taken_only_where_it_can_be_moved(face):
    """An engine whose time belongs to others refuses a hand-moved clock; one place has one clock."""
    if not face.place.manual_clock:
        with pytest.raises(InvalidConfig) as refusal:
            face.connect(clock=ManualClock())
        assert refusal.value.setting == "clock"
        assert list(face.folder.iterdir()) == []
        return
    face.connect()
    with pytest.raises(InvalidConfig):
        face.connect(clock=ManualClock())


@pytest.mark.parametrize("text", BAD_TEXTS, ids=shown)
def test_a_lease_is_not_broken_without_a_readable_reason(face, text):
    """The holder will read it; so it must be something that can be read."""
    client = face.connect()
    wire = face.wire(client)

    with pytest.raises(InvalidConfig) as refusal:
        client.break_lease("x", text)

    assert refusal.value.setting == "reason"
    assert wire.commands() == []


@pytest.mark.parametrize("candidate", ["", 7, "c" * 201, "lone \ud800 surrogate"], ids=shown)
def test_a_senseless_candidate_is_refused(face, candidate):
    """Others name it in `hand_over`."""
    client = face.connect()

    with pytest.raises(InvalidConfig) as refusal:
        client.leader("x", candidate=candidate)

    assert refusal.value.setting == "candidate"


@pytest.mark.parametrize("interval", [0, -1, NAN, None, "1"], ids=shown)
def test_a_senseless_interval_of_looks_is_refused(face, interval):
    """Looking without a pause is no way to observe."""
    client = face.connect()
    wire = face.wire(client)

    with pytest.raises(InvalidConfig) as refusal:
        next(client.leader("x").observe(interval=interval))

    assert refusal.value.setting == "interval"
    assert wire.commands() == []


def test_what_is_not_there_cannot_be_broken(face):
    """Nobody is told that a lease was broken which nobody had."""
    client = face.connect()

    with pytest.raises(NotFound) as refusal:
        client.break_lease("x", "by hand")

    assert refusal.value.name == "x"
    assert not refusal.value.retryable


@pytest.mark.acceptance("C-18")
def test_a_length_of_time_may_be_a_timedelta_everywhere(face):
    """Seconds or a timedelta: one rule for every setting."""
    client = face.connect(fence_memory=timedelta(minutes=2))
    lock = client.lock("x", ttl=timedelta(seconds=2), timeout=timedelta(milliseconds=10))
    with lock as lease:
        assert lease.ttl == 2
        assert not lease.lost.wait(timedelta(milliseconds=1))
        with pytest.raises(NotAcquired):
            lock.acquire()
        with pytest.raises(NotAcquired) as refusal:
            lock.acquire(timeout=timedelta(milliseconds=30))
        assert refusal.value.waited >= 0.03
    leader = client.leader("y", ttl=timedelta(minutes=1), timeout=timedelta(0))
    assert next(leader.observe(interval=timedelta(milliseconds=1))) is None
    assert client.close(timeout=timedelta(seconds=3)) == ()


def test_the_limits_themselves_are_allowed(face):
    """What the rule says may be used to the full."""
    client = face.connect(label="l" * 200, info={"k": "v" * 4000}, fence_memory=1)
    with client.lock("n" * 512, ttl=0.2, timeout=366 * 24 * 3600) as lease:
        assert lease.holder.label == "l" * 200
        assert client.show("n" * 512).holder.info == {"k": "v" * 4000}
    with client.lock("é" * 256, ttl=31 * 24 * 3600) as lease:
        lease.check()


ERRORS = [
    Unavailable("sqlite", "full", "no space"),
    Unavailable("redis", "no permission"),
    ReplyLost("redis", "reply lost"),
    NotAcquired("x", holder="ann", fence=7, waited=0.5, remaining=1.5),
    NotAcquired("x", reason="undone"),
    NotAcquired("x", reason="owned", holder="ann", fence=7, queue="jobs"),
    LeaseLost("x", 7, "broken", detail="by hand", result={"a": 1}),
    errors.PayloadMismatch("webhooks/42"),
    errors.RateLimited("logins/ann", 0.25, 0, 10),
    errors.RateLimited("logins/ann", 0.25, 0, 10, trouble="nobody listens"),
    errors.BudgetExceeded("fees/ann", 7, 3, 10, 60.0),
    errors.Fenced("x", 6, 7),
    errors.NotOwner("x", "ann does not lead"),
    NotFound("x", "lease"),
    errors.PartlyDone("memories", 20, (), 5),
    InvalidName("", "a name must not be empty"),
    InvalidConfig("ttl", 0, "it must be more"),
    errors.Closed(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error):
    """Work runs in other processes, and its errors come back: with all their facts and the same sentence."""
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert again.retryable == error.retryable
    assert isinstance(again, holdfast.HoldfastError)


@pytest.mark.acceptance("C-4", "G-2")
def test_only_what_started_nothing_is_retryable():
    """Every error says whether the same call may simply be made again."""
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HoldfastError)
    ]
    retryable = {kind.__name__ for kind in kinds if kind.retryable}

    assert retryable == {
        "Unavailable",
        "ReplyLost",
        "NotAcquired",
        "ItemsLent",
        "RateLimited",
        "BudgetExceeded",
        "QueueFull",
    }
    assert len(kinds) >= 10


LASTING = ["no permission", "other layout", "newer", "other topology", "corrupt", "replaced", "failed"]


@pytest.mark.parametrize("kind", [Unavailable, ReplyLost])
def test_what_no_patience_changes_is_not_retryable(kind):
    """A loop on `retryable` must end where only a person can help; it survives pickling like every fact."""
    for reason in (*errors.PASSING, "full", "not confirmed"):
        assert kind("redis", reason).retryable
    for reason in LASTING:
        assert not kind("redis", reason).retryable
        assert not pickle.loads(pickle.dumps(kind("redis", reason))).retryable
