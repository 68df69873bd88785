"""Holdfast refuses invalid input before any I/O, and the error names the value and the rule."""

import pickle
from datetime import timedelta
from decimal import Decimal

import pytest

import holdfast
from holdfast import Deadlock, InvalidConfig, InvalidName, LeaseLost, NotAcquired, NotFound, errors
from holdfast.errors import ReplyLost, Unavailable
from holdfast.testing.clock import ManualClock
from holdfast.text import size_of

NAN, INFINITY = float("nan"), float("inf")

BAD_NAMES = ["", None, 7, b"bytes", ["list"], "n" * 513, "é" * 257, "nul\x00inside", "unpaired \ud800 surrogate"]
BAD_TTLS = [0, -1, 0.19, NAN, INFINITY, -INFINITY, 10**9, 10**400, True, "30", None, Decimal(3), timedelta(0), [1]]
BAD_TIMEOUTS = [-0.001, -1, NAN, INFINITY, 10**400, True, "5", Decimal(3), timedelta(seconds=-1), timedelta(days=400)]
BAD_OPTIONS = {
    "label": [None, 7, "l" * 201, b"label", "unpaired \ud800 surrogate"],
    "info": [7, "text", ["list"], [], {"a": 1j}, {"a": {1, 2}}, {"a": "x" * 4096}, {"a": "unpaired \ud800"}],
    "observer": [7, "print", []],
    "fence_memory": [0, 0.5, -1, NAN, INFINITY, None, "60", True],
}
BAD_URLS = [7, b"memory://", "", "memory", "/tmp/x.db", "nosuch://x", "://", "memory://[bad", ["memory://"]]
BAD_TEXTS = ["", None, 7, "r" * 501, "unpaired \ud800 surrogate"]


def shown(value):
    """Return a value as an error shows it: whole, or its beginning."""
    return repr(value)[:60]


@pytest.mark.acceptance("A0-18", "C-18")
@pytest.mark.parametrize("name", BAD_NAMES, ids=shown)
def test_an_invalid_name_is_refused_before_any_command(face, name):
    """Every name is text of 1 to 512 bytes of valid Unicode without NUL."""
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
def test_an_invalid_ttl_is_refused_before_any_command(face, ttl):
    """A ttl can be too short to renew, too long to be intended, or no duration at all."""
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
def test_an_invalid_timeout_is_refused_before_any_command(face, timeout):
    """A timeout is zero or more seconds, or None; Holdfast guesses nothing else."""
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
def test_an_invalid_on_loss_is_refused(face, on_loss):
    """A mistyped policy would show only at the first loss."""
    client = face.connect()

    for use in (client.lock, client.leader):
        with pytest.raises(InvalidConfig) as refusal:
            use("x", on_loss=on_loss)
        assert refusal.value.setting == "on_loss"


def test_a_coroutine_function_as_on_loss_is_refused(face):
    """A coroutine function as a callback would never run."""
    client = face.connect()

    async def report(_lease):
        return None

    with pytest.raises(InvalidConfig):
        client.lock("x", on_loss=report)


def test_only_the_asyncio_face_can_cancel(face):
    """Python cannot cancel a thread, so the blocking face refuses `cancel`."""
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
def test_an_invalid_option_is_refused_before_the_engine_opens(face, option, value):
    """The refusal leaves no file, no thread and nothing to close."""
    with pytest.raises(InvalidConfig) as refusal:
        face.connect(**{option: value})

    assert refusal.value.setting == option
    expected = size_of(value) if option == "info" else shown(value)  # an info may be private
    assert expected in str(refusal.value)
    assert list(face.folder.iterdir()) == []


@pytest.mark.acceptance("C-18", "C-15")
@pytest.mark.parametrize("url", BAD_URLS, ids=shown)
def test_an_invalid_url_is_refused(face, url):
    """Holdfast guesses nothing, and falls back to no other engine."""
    with pytest.raises(InvalidConfig) as refusal:
        face.connect(url)

    assert refusal.value.setting == "url"


@pytest.mark.acceptance("C-18")
@pytest.mark.parametrize("tail", ["?colour=green", "?colour", "?="])
def test_an_unknown_option_of_the_engine_is_refused(face, tail):
    """An ignored option would hide a mistake."""
    with pytest.raises(InvalidConfig):
        face.connect(face.url + tail)

    assert list(face.folder.iterdir()) == []


@pytest.mark.parametrize("tail", ["\x00", "%00", "\ud800"], ids=shown)
def test_a_url_that_no_system_could_open_is_refused(placed, tail):
    """A path with a NUL or an unpaired surrogate is invalid, and the error is `InvalidConfig`."""
    with pytest.raises(InvalidConfig):
        placed.connect(placed.url + tail)


def test_a_test_clock_is_accepted_only_by_engines_that_can_use_it(face):
    """An engine with a foreign clock refuses a test clock, and one memory domain has one clock."""
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
    """The holder reads the reason, so it must be readable."""
    client = face.connect()
    wire = face.wire(client)

    with pytest.raises(InvalidConfig) as refusal:
        client.break_lease("x", text)

    assert refusal.value.setting == "reason"
    assert wire.commands() == []


@pytest.mark.parametrize("candidate", ["", 7, "c" * 201, "unpaired \ud800 surrogate"], ids=shown)
def test_an_invalid_candidate_is_refused(face, candidate):
    """Other candidates use the name in `hand_over`."""
    client = face.connect()

    with pytest.raises(InvalidConfig) as refusal:
        client.leader("x", candidate=candidate)

    assert refusal.value.setting == "candidate"


@pytest.mark.parametrize("interval", [0, -1, NAN, None, "1"], ids=shown)
def test_an_invalid_interval_of_observe_is_refused(face, interval):
    """An observer without a pause would be a busy loop."""
    client = face.connect()
    wire = face.wire(client)

    with pytest.raises(InvalidConfig) as refusal:
        next(client.leader("x").observe(interval=interval))

    assert refusal.value.setting == "interval"
    assert wire.commands() == []


def test_a_free_name_cannot_be_broken(face):
    """A break of a free name must not report success."""
    client = face.connect()

    with pytest.raises(NotFound) as refusal:
        client.break_lease("x", "by hand")

    assert refusal.value.name == "x"
    assert not refusal.value.retryable


@pytest.mark.acceptance("C-18")
def test_every_duration_may_be_a_timedelta(face):
    """Every setting accepts seconds or a timedelta."""
    client = face.connect(fence_memory=timedelta(minutes=2))
    lock = client.lock("x", ttl=timedelta(seconds=2), timeout=timedelta(milliseconds=10))
    with face.connect().lock("x", ttl=timedelta(seconds=2)) as lease:
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


def test_the_bounds_of_the_rules_are_allowed(face):
    """The bounds of a rule are valid values."""
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
    Deadlock("x", 7),
    NotAcquired("x", reason="undone"),
    NotAcquired("x", reason="owned", holder="ann", fence=7, queue="jobs"),
    LeaseLost("x", 7, "broken", detail="by hand", result={"a": 1}),
    errors.PayloadMismatch("webhooks/42"),
    errors.RateLimited("logins/ann", 0.25, 0, 10),
    errors.RateLimited("logins/ann", 0.25, 0, 10, trouble="connection refused"),
    errors.BudgetExceeded("fees/ann", 7, 3, 10, 60.0),
    errors.Fenced("x", 6, 7),
    errors.NotOwner("x", "ann does not lead"),
    errors.NotOwner("jobs", "already acked", message="7"),
    errors.DomainMismatch("/srv", "sqlite:///a.db", "memory://", "/srv/.holdfast-domain"),
    NotFound("x", "lease"),
    errors.PartlyDone("memories", 20, (), 5),
    InvalidName("", "a name must not be empty"),
    InvalidConfig("ttl", 0, "it must be more"),
    errors.Closed(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error):
    """Errors come back from other processes with all their data and the same sentence."""
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert again.retryable == error.retryable
    assert isinstance(again, holdfast.HoldfastError)


@pytest.mark.acceptance("C-4", "G-2")
def test_only_errors_that_started_nothing_are_retryable():
    """Every error says whether the caller may repeat the call."""
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


LASTING = ["no permission", "other layout", "other topology", "corrupt", "replaced", "failed"]


@pytest.mark.parametrize("kind", [Unavailable, ReplyLost])
def test_errors_that_waiting_cannot_repair_are_not_retryable(kind):
    """A retry loop must end where only a person can help; the flag survives pickling."""
    for reason in (*errors.PASSING, "full", "not confirmed"):
        assert kind("redis", reason).retryable
    for reason in LASTING:
        assert not kind("redis", reason).retryable
        assert not pickle.loads(pickle.dumps(kind("redis", reason))).retryable
