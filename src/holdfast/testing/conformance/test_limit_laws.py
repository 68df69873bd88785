"""Rate limits: never more than the limit in any window, for all clients, on every engine through both faces."""

import math
import time

import pytest

from holdfast import Closed, InvalidConfig, InvalidName, RateLimited
from holdfast.commands import Hit
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together

pytestmark = pytest.mark.capability("limits")

KEYS = ["ann", "a:b:c", "with spaces", "ключ/✓", "{tag}", "50%", "/", ":"]
BAD_RATES = ["", "ten/second", "10", "10/", "/second", "0/second", "-1/second", "1.5/second", "10/fortnight", "10/0s"]
BAD_RATES += [
    "10/second; 5/1s",
    "1/40d",
    "9999999999/s",
    7,
    None,
    b"10/second",
    ";".join(f"1/{n}s" for n in range(1, 10)),
]


def hits(limiter, key, times, **options):
    """Return how many of the hits are allowed."""
    return sum(limiter.hit(key, **options).allowed for _ in range(times))


def test_exactly_the_limit_passes_with_concurrent_hits(face):
    """Count and decision are one atomic step."""
    clients = [face.connect() for _ in range(2)]
    limiters = [client.limit("10/hour", name="exports") for client in clients for _ in range(2)]

    running = [face.start(hits, limiter, "ann", 25) for limiter in limiters]

    assert sum(each.result() for each in running) == 10


def test_no_window_has_more_than_the_limit_wherever_it_begins(timed):
    """A fixed window admits twice the limit around its edge; a sliding window does not."""
    limiter = timed.connect().limit("10/second")

    timed.clock.advance(0.9)
    assert hits(limiter, "ann", 15) == 10
    timed.clock.advance(0.2)
    assert hits(limiter, "ann", 15) == 0
    timed.clock.advance(0.8)
    assert hits(limiter, "ann", 15) == 10


def test_each_hit_is_free_again_after_one_period(timed):
    """Each hit counts for one period, to the microsecond."""
    limiter = timed.connect().limit("3/second")

    for _ in range(3):
        assert limiter.hit("ann").allowed
        timed.clock.advance(0.1)
    refused = limiter.hit("ann")
    assert (refused.allowed, refused.remaining, refused.limit) == (False, 0, 3)
    assert refused.retry_after == pytest.approx(0.7)
    assert refused.reset_after == pytest.approx(0.9)
    timed.clock.advance(0.7)
    assert hits(limiter, "ann", 2) == 1


def test_a_refusal_consumes_nothing_in_any_window(timed):
    """All windows are charged together or not at all; otherwise refusals would use up the first."""
    limiter = timed.connect().limit("3/second; 5/minute")

    assert hits(limiter, "ann", 3) == 3
    for _ in range(30):
        timed.clock.advance(0.01)
        assert not limiter.peek("ann").allowed
        assert not limiter.hit("ann").allowed
    timed.clock.advance(1)
    assert hits(limiter, "ann", 3) == 2
    refused = limiter.hit("ann")
    assert (refused.limit, refused.remaining) == (5, 0)
    assert 50 < refused.retry_after < 60


@pytest.mark.acceptance("A4-18")
@pytest.mark.finding("L12")
@pytest.mark.parametrize("method", ["window", "gcra"])
def test_a_decision_names_its_window_among_equal_limits(face, method):
    """The limit alone does not tell two windows of the same count apart; a known refusal names it too."""
    limiter = face.connect().limit("2/ms; 2/hour; 5/day", name="equal", method=method)

    found = [limiter.hit("ann") for _ in range(4)]

    assert [(each.allowed, each.window) for each in found] == [(True, 3600)] * 2 + [(False, 3600)] * 2
    assert {each.trouble for each in found} == {""}


def test_keys_and_names_are_counted_separately(face):
    """One key takes nothing from another, whatever characters it has."""
    client = face.connect()
    logins, exports = client.limit("2/hour", name="logins"), client.limit("2/hour", name="exports")

    assert [hits(limiter, key, 3) for key in KEYS for limiter in (logins, exports)] == [2] * (2 * len(KEYS))
    assert hits(client.limit("2/hour", name="a/b"), "c", 3) == 2
    assert hits(client.limit("2/hour", name="a"), "b/c", 3) == 2


def test_a_lock_and_a_limit_of_one_name_are_independent(face):
    """A name may have a lease and a counter."""
    client = face.connect()
    limiter = client.limit("2/hour", name="reports")

    with client.lock("reports/ann") as lease:
        assert hits(limiter, "ann", 3) == 2
        lease.check()
        assert client.show("reports/ann").fence == lease.fence
    with client.lock("reports/ann"):
        assert hits(limiter, "ann", 1) == 0


def test_a_cost_counts_as_many_hits_and_a_smaller_one_may_pass(face):
    """A limit may count costs instead of calls. A known refusal of a large cost does not refuse a small one."""
    limiter = face.connect().limit("10/hour")

    assert limiter.hit("ann", cost=7).remaining == 3
    refused = limiter.hit("ann", cost=4)
    assert (refused.allowed, refused.remaining) == (False, 3)
    assert refused.retry_after > 0
    assert limiter.hit("ann", cost=3).remaining == 0
    assert not limiter.hit("ann", cost=1)


def test_a_peek_counts_nothing(face):
    """People can see the remaining number without using it."""
    limiter = face.connect().limit("2/hour; 9/day")

    for _ in range(5):
        seen = limiter.peek("ann")
        assert (seen.allowed, seen.remaining, seen.limit, seen.retry_after) == (True, 2, 2, 0)
    limiter.hit("ann")
    assert limiter.peek("ann").remaining == 1
    assert 3500 < limiter.peek("ann").reset_after <= 3600
    limiter.hit("ann")
    assert not limiter.peek("ann")


@together
def test_a_refusal_says_when_to_come_back(face):
    """`retry_after` is never 0, and a single caller that comes back then is admitted."""
    limiter = face.connect().limit("2/300ms")

    assert hits(limiter, "ann", 2) == 2
    refused = limiter.hit("ann")
    assert not refused
    assert 0 < refused.retry_after <= 0.3
    time.sleep(refused.retry_after + 0.01)
    assert limiter.hit("ann")


@together
def test_a_waiting_caller_is_admitted_in_time(face):
    """A wait lasts as long as the limit requires, and no longer than the timeout."""
    limiter = face.connect().limit("2/500ms")

    began = time.monotonic()
    assert all(limiter.wait("ann", timeout=30) for _ in range(5))
    assert time.monotonic() - began >= 0.95
    slow = face.connect().limit("1/hour", name="slow")
    slow.hit("ann")
    began = time.monotonic()
    with pytest.raises(RateLimited) as refusal:
        slow.wait("ann", timeout=20)
    assert time.monotonic() - began < 15, "a hopeless wait ends at once"
    assert (refusal.value.name, refusal.value.remaining, refusal.value.limit) == ("slow/ann", 0, 1)
    assert 3500 < refusal.value.retry_after <= 3600
    assert refusal.value.retryable


def test_smoothing_lets_the_allowance_grow_back_evenly(timed):
    """With GCRA, hits come back one by one after a burst; there is no window."""
    limiter = timed.connect().limit("10/second", method="gcra")

    assert hits(limiter, "ann", 15) == 10
    for _ in range(5):
        timed.clock.advance(0.1)
        assert hits(limiter, "ann", 3) == 1
    timed.clock.advance(10)
    assert limiter.peek("ann").remaining == 10
    assert limiter.hit("ann", cost=10).remaining == 0
    refused = limiter.hit("ann", cost=5)
    assert refused.retry_after == pytest.approx(0.5)
    assert refused.reset_after == pytest.approx(1.0)


def test_smoothing_and_windows_are_counted_everywhere(face):
    """Every engine supports both methods."""
    client = face.connect()

    assert hits(client.limit("10/hour; 4/minute", method="gcra"), "ann", 9) == 4
    assert hits(client.limit("300/hour"), "ann", 4) == 4
    assert client.limit("300/hour").hit("ann").remaining == 295


def test_a_refusal_that_is_known_to_hold_costs_no_round_trip(face):
    """A frequent refusal costs nothing."""
    client = face.connect()
    limiter = client.limit("3/hour")
    wire = face.wire(client)

    assert hits(limiter, "ann", 3) == 3
    limiter.hit("ann")
    known = len(wire.commands(Hit))
    began = time.monotonic()
    decisions = [limiter.hit("ann") for _ in range(50)]
    seconds = time.monotonic() - began

    assert not any(decisions)
    assert all(3000 < each.retry_after <= 3600 for each in decisions)
    assert len(wire.commands(Hit)) - known <= math.ceil(seconds) + 1, "it is believed for a second"


@together
def test_a_reset_is_visible_to_all_soon(face):
    """The client that resets sees it at once, and others within a second."""
    ours, theirs = (face.connect().limit("2/hour", name="x") for _ in range(2))

    assert hits(ours, "ann", 3) == 2
    assert not theirs.hit("ann")
    ours.reset("ann")
    assert ours.hit("ann").remaining == 1
    time.sleep(1.05)
    assert theirs.hit("ann")


def test_a_hit_with_a_lost_reply_counts_and_is_not_resent(face):
    """A resent hit would count twice, so the policy answers the caller instead."""
    client = face.connect()
    limiter = client.limit("5/hour", on_unavailable="deny")
    wire = face.wire(client)

    wire.lose_reply(Hit, times=1)
    assert not limiter.hit("ann")
    assert len(wire.commands(Hit)) == 1
    eventually(lambda: limiter.peek("ann").remaining == 4, what="what the engine has counted")


@pytest.mark.parametrize(("policy", "allowed"), [("local", 2), ("allow", 30), ("deny", 0)])
def test_without_its_engine_a_limit_follows_its_policy(face, policy, allowed):
    """The policy admits a local share, everything or nothing; each call emits an event and spares the engine."""
    events = []
    client = face.connect(observer=events.append)
    limiter = client.limit("20/hour", name="logins", on_unavailable=policy)
    wire = face.wire(client)

    wire.fail(Hit)
    began = time.monotonic()
    decisions = [limiter.hit("ann") for _ in range(30)]
    seconds = time.monotonic() - began

    assert sum(map(bool, decisions)) == allowed
    assert all(each.retry_after > 0 for each in decisions if not each)
    assert all(each.trouble and each.window == 3600 for each in decisions), "a caller can tell who decided"
    outages = [event for event in events if event.kind == "unavailable"]
    assert len(outages) == 30
    assert all(event.name == "logins/ann" and f"policy {policy}" in event.detail for event in outages)
    assert len(wire.commands(Hit)) <= 4 + seconds / 0.04
    wire.heal()
    eventually(lambda: limiter.peek("ann").remaining == 20, what="an engine that counts again, from the beginning")


def test_a_limit_object_made_for_every_call_is_the_same_limit(face):
    """Programs make the limit where they use it; without the engine it still admits its local share once."""
    client = face.connect()
    wire = face.wire(client)
    wire.fail(Hit)

    began = time.monotonic()
    assert sum(client.limit("20/hour", name="logins").hit("ann").allowed for _ in range(50)) == 2
    assert len(wire.commands(Hit)) <= 4 + (time.monotonic() - began) / 0.04
    assert client.limit("20/hour", name="other").hit("ann"), "another name is another limit"
    assert client.limit("20/hour", name="logins", method="gcra").hit("ann"), "and so is another way to count"


def test_a_known_refusal_holds_for_a_new_limit_object(face):
    """A known refusal belongs to the limit, not to one object."""
    client = face.connect()
    wire = face.wire(client)
    assert hits(client.limit("1/hour"), "ann", 2) == 1
    known = len(wire.commands(Hit))

    began = time.monotonic()
    assert not any(client.limit("1/hour").hit("ann") for _ in range(30))

    assert len(wire.commands(Hit)) - known <= math.ceil(time.monotonic() - began) + 1


def test_the_order_of_the_windows_of_a_rate_does_not_matter(face):
    """Two programs that write the same rate differently share one limit."""
    client = face.connect()

    assert hits(client.limit("3/minute; 3/hour", name="x"), "ann", 2) == 2
    assert hits(client.limit("3/hour; 3/minute", name="x"), "ann", 2) == 1


@pytest.mark.parametrize("policy", ["deny", "local"])
def test_a_wait_without_the_engine_raises_unavailable(face, policy):
    """The limit may not be exceeded, so the error is `Unavailable`, with the name as it was given."""
    client = face.connect()
    limiter = client.limit("5/hour", on_unavailable=policy)
    wire = face.wire(client)
    wire.fail(Hit)
    hits(limiter, "ann", 1)

    with pytest.raises(RateLimited) as refusal:
        limiter.wait("ann", timeout=0.1)

    assert refusal.value.name == "5/hour/ann"
    assert refusal.value.trouble
    assert "rate limit '5/hour/ann' refuses while the engine cannot be reached" in str(refusal.value)
    assert refusal.value.trouble in str(refusal.value)
    assert "over its limit" not in str(refusal.value)


def test_the_local_share_is_at_least_one_and_at_most_the_setting(face):
    """A process that knows the number of processes may set its share."""
    client = face.connect()
    wire = face.wire(client)
    wire.fail(Hit)

    assert hits(client.limit("3/hour"), "ann", 9) == 1
    assert hits(client.limit("40/hour", local_share=0.5), "ann", 50) == 20
    assert hits(client.limit("4/hour", local_share=1), "ann", 50) == 4
    assert not client.limit("20/hour").hit("ann", cost=3), "more than the share never passes"


def test_an_invalid_rate_is_refused_before_any_command(face):
    """The error comes where the program makes the limit."""
    client = face.connect()
    wire = face.wire(client)

    for rate in BAD_RATES:
        with pytest.raises(InvalidConfig) as refusal:
            client.limit(rate)
        assert refusal.value.setting == "rate"
    assert wire.commands() == []


def test_invalid_costs_keys_and_settings_are_refused_before_any_command(face):
    """A cost above the limit could never pass, and a wait would never end."""
    client = face.connect()
    wire = face.wire(client)
    limiter = client.limit("10/second; 5/minute")

    for cost in (0, -1, 6, 1.5, True, None, "1"):
        for use in (limiter.hit, limiter.peek, limiter.wait):
            with pytest.raises(InvalidConfig) as refusal:
                use("ann", cost=cost)
            assert refusal.value.setting == "cost"
    for key in ("", 7, None, b"ann", ["ann"], "n" * 513, "nul\x00", "unpaired \ud800"):
        for use in (limiter.hit, limiter.peek, limiter.wait, limiter.reset):
            with pytest.raises(InvalidName):
                use(key)
    for options in ({"method": "fixed"}, {"on_unavailable": "explode"}, {"local_share": 0}, {"local_share": 1.1}):
        with pytest.raises(InvalidConfig) as refusal:
            client.limit("1/second", **options)
        assert refusal.value.setting == next(iter(options))
    with pytest.raises(InvalidName):
        client.limit("1/second", name="")
    with pytest.raises(InvalidConfig):
        limiter.wait("ann", timeout=-1)
    assert wire.commands() == []


def test_an_invalid_cost_is_refused_even_while_a_refusal_is_known(face):
    """The check of the input does not depend on earlier calls."""
    limiter = face.connect().limit("2/hour")
    assert hits(limiter, "ann", 3) == 2

    for cost in (0, 3, 1.5, True):
        for use in (limiter.hit, limiter.wait):
            with pytest.raises(InvalidConfig):
                use("ann", cost=cost)


def test_a_closed_client_admits_nothing(face):
    """A closed client does not even repeat a known refusal."""
    client = face.connect()
    limiter = client.limit("1/hour")
    hits(limiter, "ann", 2)

    client.close()

    for use in (limiter.hit, limiter.peek, limiter.wait, limiter.reset):
        with pytest.raises(Closed):
            use("ann")


@pytest.mark.large
def test_a_changed_number_keeps_the_earlier_count(face):
    """A new number takes effect at once; only another window length starts a new count."""
    client = face.connect()

    assert hits(client.limit("3/hour", name="x"), "ann", 5) == 3
    assert hits(client.limit("5/hour", name="x"), "ann", 5) == 2
    assert hits(client.limit("2/hour", name="x"), "ann", 5) == 0
    assert hits(client.limit("2/day", name="x"), "ann", 5) == 2
