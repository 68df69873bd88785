"""Pools: each item has one borrower, and the least recently acquired item is lent first."""

import random
import threading
import time
from contextlib import suppress

import pytest

from holdfast import InvalidConfig, InvalidName, ItemsLent, LeaseLost, NotAcquired, NotFound, NotOwner, Unavailable
from holdfast.commands import Borrow, BreakItem, ChangePool, Extend, NotHeld, Released, Return, UndoBorrow
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import LOST_S, together, until_idle

pytestmark = pytest.mark.capability("pools")

LATE_S = 3.0  # the delay that a busy machine may add to a bound


class Uncertain(Exception):
    """An error with an uncertain outcome."""


def pool_of(face, *items, name="pool", **settings):
    """Return a client's pool with these items."""
    settings.setdefault("on_death", 0)
    pool = face.connect().pool(name, **settings)
    pool.set_items(items)
    return pool


def states(pool):
    return {item.name: item.state for item in pool.stats().items}


def until_waiting(pool, count):
    eventually(lambda: pool.stats().waiting == count, what=f"{count} waiters")


def borrowed_from(peer, name="pool", *, token="peer", ttl_ms=300, cooldown_ms=0, wait=False):
    """Borrow without renewal, like a borrower that died."""
    return peer.say(Borrow(name, token, "", ttl_ms, wait, cooldown_ms))


@pytest.mark.large
@pytest.mark.acceptance("A3-1", "A3-6")
def test_borrowers_get_different_items_each_under_its_own_fence(face):
    """The engine lends each item once, and records the fence of the borrower."""
    pool = pool_of(face, "a", "b", "c")
    items = [running.result() for running in [face.start(pool.borrow) for _ in range(3)]]

    stored = {item.name: item.fence for item in pool.stats().items}
    assert {item.name: item.fence for item in items} == stored
    assert sorted(stored) == ["a", "b", "c"]
    assert len(set(stored.values())) == 3
    assert [item.used for item in pool.stats().items] == [1, 1, 1]
    with pytest.raises(NotAcquired) as refusal:
        pool.borrow(timeout=0)
    assert refusal.value.reason == "all busy"
    assert refusal.value.retryable
    for item in items:
        item.release()
    with pytest.raises(LeaseLost, match="released"), items[0]:
        pytest.fail("entered with what was given back")


@pytest.mark.acceptance("A3-4")
def test_the_least_recently_acquired_item_is_lent_first_and_one_never_used_before_all(face):
    """The order counts from the acquisition, not from the return."""
    pool = pool_of(face, "a", "b", "c")
    first, second, third = (pool.borrow() for _ in range(3))
    order = [item.name for item in (first, second, third)]
    for item in (third, first, second):
        item.release()
    pool.add(["new"])

    seen = [pool.borrow() for _ in range(4)]
    assert [item.name for item in seen] == ["new", *order]
    for item in seen:
        item.release()


@pytest.mark.acceptance("A3-5")
def test_items_are_used_evenly(face):
    """After ten rounds over twenty items each was used ten times."""
    pool = pool_of(face, *(f"item {number}" for number in range(20)))
    for _ in range(200):
        pool.borrow().release()

    assert {item.used for item in pool.stats().items} == {10}


def test_new_items_are_not_used_in_the_order_of_their_names(face):
    """New items have a random order: two pools with the same items rarely begin with the same one."""
    names = [f"item {number:03d}" for number in range(60)]
    orders = []
    for each in ("one", "other"):
        pool = pool_of(face, *names, name=each)
        orders.append([item.name for item in pool.stats().items])
    assert sorted(orders[0]) == sorted(orders[1]) == names
    assert orders[0] != names
    assert orders[0] != orders[1]


@pytest.mark.large
@pytest.mark.acceptance("A3-7")
def test_a_borrower_waits_for_the_next_returned_item(face):
    """The return wakes the borrower, not its timeout."""
    pool = pool_of(face, "only")
    item = pool.borrow()
    waiting = face.start(pool.borrow)
    until_waiting(pool, 1)
    item.release()

    successor = waiting.result()
    assert (successor.name, successor.fence > item.fence) == ("only", True)
    successor.release()


def test_waiters_are_served_in_the_order_in_which_they_came(face):
    """A newcomer never overtakes the line, not even when an item has just become free."""
    pool = pool_of(face, "a", "b")
    held = [pool.borrow(), pool.borrow()]
    served, waiting = [], []

    def use(number):
        with pool.borrow():
            served.append(number)

    for number in range(6):
        waiting.append(face.start(use, number))
        until_waiting(pool, number + 1)
    held[0].release()
    for running in waiting:
        running.result()
    held[1].release()
    assert served == list(range(6))


@together
def test_waiting_for_an_item_sends_few_commands(face):
    """A waiter sends one command and sleeps until a wake-up."""
    pool = pool_of(face, "only", ttl=30)
    item = pool.borrow()
    other = face.connect()
    wire = face.wire(other)
    waiting = face.start(other.pool("pool").borrow)
    until_waiting(pool, 1)
    time.sleep(3)
    assert 1 <= len(wire.commands(Borrow)) <= 4
    item.release()
    waiting.result().release()


@pytest.mark.acceptance("A3-3")
@together
def test_an_item_is_never_lent_twice_and_no_borrower_starves(face):
    """Eight threads of two clients and four items, with random holds, returns, cooldowns and changes of the pool."""
    clients = [face.connect(), face.connect()]
    clients[0].pool("pool").set_items(["a", "b", "c", "d"])
    inside, guard, twice, uses = {}, threading.Lock(), [], dict.fromkeys(range(8), 0)
    fences, until = {}, time.monotonic() + 2.0

    def work(number):
        seed, pool = random.Random(number), clients[number % 2].pool("pool", on_death=0)
        while time.monotonic() < until:
            with pool.borrow(timeout=30) as item:
                with guard:
                    if inside.setdefault(item.name, number) != number or item.fence <= fences.get(item.name, 0):
                        twice.append((item.name, number))
                    fences[item.name] = item.fence
                time.sleep(seed.random() * 0.004)
                with guard:
                    del inside[item.name]
                uses[number] += 1
                if seed.random() < 0.2:
                    item.cool(0.005)

    running = [face.start(work, number) for number in range(8)]
    for each in running:
        each.result(60)
    assert twice == []
    assert min(uses.values()) > 0


@pytest.mark.acceptance("A3-12", "C-5", "G-8")
@together
def test_a_cooling_item_is_lent_when_its_cooldown_has_passed_and_not_before(face):
    """A cooldown lasts at least its duration, and then a waiter gets the item."""
    pool = pool_of(face, "only")
    pool.borrow().cool(1.0)
    began = time.monotonic()
    assert states(pool) == {"only": "cooling"}
    assert pool.try_borrow() is None
    with pool.borrow(timeout=30):
        cooled = time.monotonic() - began
    assert 0.9 <= cooled <= 1.0 + LATE_S


@together
def test_a_waiter_that_slept_through_a_cooldown_is_woken_for_its_end(face):
    """The waiter expected a loan of 30 seconds, and the item becomes free much earlier."""
    pool = pool_of(face, "only", ttl=30)
    item = pool.borrow()
    waiting = face.start(pool.borrow)
    until_waiting(pool, 1)
    time.sleep(0.3)
    item.cool(0.5)
    began = time.monotonic()
    successor = waiting.result()
    assert 0.4 <= time.monotonic() - began <= 0.5 + LATE_S
    successor.release()


def test_the_default_cooldown_is_six_seconds(face):
    """The default of `cool` is six seconds; only errors in `cool_on` start a cooldown."""
    pool = pool_of(face, "only", cool_on=(Uncertain,))
    with pytest.raises(Uncertain), pool.borrow():
        raise Uncertain
    (seen,) = pool.stats().items
    assert (seen.state, 4 < seen.remaining <= 6) == ("cooling", True)
    pool.cool("only", 0)
    with pytest.raises(KeyError), pool.borrow():
        raise KeyError
    assert states(pool) == {"only": "free"}
    with pytest.raises(BaseExceptionGroup), pool.borrow():
        raise BaseExceptionGroup("both", [KeyError(), Uncertain()])
    assert states(pool) == {"only": "cooling"}


@pytest.mark.acceptance("A3-13")
def test_a_foreign_token_changes_nothing(face):
    """A client without the token can neither extend, nor return, nor cool an item."""
    pool, peer = pool_of(face, "only"), face.peer()
    item = pool.borrow()
    before = pool.stats().items[0]._replace(since=0, remaining=0)
    foreign = [Extend("pool", "only", "x", 200), Return("pool", "only", "x"), Return("pool", "only", "x", 1000)]
    foreign += [BreakItem("pool", "only", item.fence - 1, "no"), UndoBorrow("pool", "x")]
    answers = [peer.say(command) for command in foreign]

    assert [type(answer) for answer in answers[:4]] == [NotHeld] * 4
    assert pool.stats().items[0]._replace(since=0, remaining=0) == before
    item.check()
    item.release()


@pytest.mark.acceptance("A3-14")
@together
def test_a_late_return_does_not_touch_the_next_borrower(face):
    """Check and return are one atomic step."""
    pool, peer = pool_of(face, "only"), face.peer()
    granted = borrowed_from(peer, ttl_ms=300)
    with pool.borrow(timeout=30) as item:
        assert peer.say(Return("pool", "only", "peer")) == NotHeld("expired")
        assert peer.say(Extend("pool", "only", "peer", 300)) == NotHeld("expired")
        assert item.fence > granted.fence
        item.check()
        assert states(pool) == {"only": "lent"}


@pytest.mark.large
@pytest.mark.acceptance("A3-17")
@together
def test_a_dead_borrowers_item_is_free_after_its_ttl_and_cooldown(face):
    """The outcome of the dead borrower's work is uncertain, so no engine lends the item at once."""
    pool, peer = pool_of(face, "only"), face.peer()
    borrowed_from(peer, ttl_ms=700, cooldown_ms=600)
    began = time.monotonic()
    peer.close()
    with pool.borrow(timeout=30):
        assert 1.2 <= time.monotonic() - began <= 1.3 + LATE_S


@pytest.mark.acceptance("A3-15")
@together
def test_a_borrower_that_cannot_renew_learns_of_the_loss_before_the_next_loan(face):
    """The old borrower knows of the loss before the new loan; its block raises, and its late return frees nothing."""
    pool = pool_of(face, "only", ttl=0.6, on_death=0.3)
    slow = face.connect()
    wire = face.wire(slow)
    with pytest.raises(LeaseLost) as lost, slow.pool("pool", ttl=0.6, on_death=0.3).borrow() as item:
        wire.fail(Extend)
        successor = pool.borrow(timeout=30)
        assert item.lost
        assert successor.fence > item.fence
    assert (lost.value.name, lost.value.reason) == ("only", "expired")
    assert wire.commands(Return) == []
    successor.check()
    successor.release()


@pytest.mark.acceptance("A3-16")
@together
def test_an_item_is_renewed_for_as_long_as_it_is_used(face):
    """The ttl decides how soon a dead borrower is replaced, not how long the work may take."""
    pool = pool_of(face, "only", ttl=0.6)
    with pool.borrow() as item:
        time.sleep(1.8)
        item.check()
        assert states(pool) == {"only": "lent"}
        assert pool.try_borrow() is None


@together
def test_an_extended_item_lasts_as_long_as_requested(face):
    """The extension outlives a silent borrower, and an older, shorter renewal does not cut it."""
    pool = pool_of(face, "only", ttl=0.5)
    slow = face.connect()
    item = slow.pool("pool", ttl=0.5, on_death=0).borrow()
    item.extend(2)
    peer = face.peer()
    peer.say(Extend("pool", "only", item.token, 200))
    assert item.ttl == 2
    (seen,) = pool.stats().items
    assert 1 < seen.remaining <= 2
    item.release()
    with pytest.raises(LeaseLost):
        item.extend(2)


@pytest.mark.acceptance("A3-19")
def test_a_tag_uses_its_share_and_always_the_same_items(face):
    """One tenant gets half of ten items, another at least one; the rest is for all."""
    pool = pool_of(face, *(f"item {number}" for number in range(10)))
    again = []
    for _ in range(2):
        mine = [pool.borrow(tag="acme", share=0.5) for _ in range(5)]
        again.append({item.name for item in mine})
        with pytest.raises(NotAcquired) as refusal:
            pool.borrow(timeout=0, tag="acme", share=0.5)
        assert refusal.value.reason == "share used up"
        others = [pool.borrow(timeout=0) for _ in range(5)]
        assert not again[-1] & {item.name for item in others}
        with pytest.raises(NotAcquired) as refusal:
            pool.borrow(timeout=0, tag="acme", share=0.5)
        assert refusal.value.reason == "all busy"
        for item in mine + others:
            item.release()
    assert again[0] == again[1]
    with pool.borrow(tag="tiny", share=0) as only:
        assert pool.try_borrow(tag="tiny", share=0) is None
    with pool.borrow(tag="tiny", share=0) as same:
        assert same.name == only.name


def test_an_item_goes_to_the_first_waiter_who_may_use_it(face):
    """A waiter that may not use the item keeps its place, and the next one gets the item."""
    pool = pool_of(face, "a", "b")
    limited = pool.borrow(tag="acme", share=0.5)
    other = pool.borrow()
    first = face.start(lambda: pool.borrow(tag="acme", share=0.5))
    until_waiting(pool, 1)
    second = face.start(pool.borrow)
    until_waiting(pool, 2)
    other.release()
    got = second.result()
    assert got.name == other.name
    assert not first.done()
    limited.release()
    mine = first.result()
    assert mine.name == limited.name
    mine.release()
    got.release()


@pytest.mark.acceptance("A3-20")
def test_a_lent_item_is_not_removed_by_mistake(face):
    """The removal is refused with the item's name; with `leave` the item goes when it is returned."""
    pool = pool_of(face, "a", "b", "c")
    item = pool.borrow()
    rest = sorted({"a", "b", "c"} - {item.name})
    for refused in (lambda: pool.set_items(["new"]), lambda: pool.remove([item.name])):
        with pytest.raises(ItemsLent) as refusal:
            refused()
        assert refusal.value.items == (item.name,)
        assert sorted(states(pool)) == ["a", "b", "c"]
    assert pool.remove([item.name], leave=True) == (item.name,)
    assert pool.stats().size == 2
    item.check()
    item.release()
    assert sorted(states(pool)) == rest
    with pytest.raises(NotFound):
        pool.remove([item.name])


@pytest.mark.acceptance("A3-20")
@together
def test_a_borrower_that_races_a_change_never_gets_an_item_outside_the_pool(face):
    """Every lent item was a member of the pool at that moment."""
    client = face.connect()
    sets = [["a", "b", "c"], ["c", "d"], ["a", "d", "e"]]
    pool = client.pool("pool", on_death=0)
    pool.set_items(sets[0])
    over = threading.Event()
    strangers = []

    def borrow():
        while not over.is_set():
            with pool.borrow(timeout=30) as item:
                (seen,) = [one for one in pool.stats().items if one.name == item.name] or [None]
                if seen is None or seen.fence != item.fence:
                    strangers.append(item.name)

    running = [face.start(borrow) for _ in range(3)]
    for number in range(30):
        with suppress(ItemsLent):
            pool.set_items(sets[number % 3], leave=number % 2 == 0)
    over.set()
    for each in running:
        each.result(30)
    assert strangers == []


def test_a_change_that_is_sent_twice_changes_once(face):
    """The second copy must not report a removed item as unknown."""
    client = face.connect()
    pool = client.pool("pool")
    pool.set_items(["a", "b", "c"])
    wire = face.wire(client)
    for change in (lambda: pool.remove(["a"]), lambda: pool.add(["d"]), lambda: pool.set_items(["c", "d"])):
        wire.lose_reply(ChangePool, 1)
        change()
    assert sorted(states(pool)) == ["c", "d"]


def test_a_resent_change_reports_leaving_and_unknown_items(face):
    """The second copy finds the change done and reconstructs the answer of the first."""
    client = face.connect()
    pool = client.pool("pool")
    pool.set_items(["a", "b"])
    items = [pool.borrow(), pool.borrow()]
    wire = face.wire(client)
    wire.lose_reply(ChangePool, 1)
    assert pool.remove(["a"], leave=True) == ("a",)
    wire.lose_reply(ChangePool, 1)
    assert pool.set_items(["c"], leave=True) == ("a", "b")
    wire.lose_reply(ChangePool, 1)
    with pytest.raises(NotFound, match="'none'"):
        pool.remove(["c", "none"])
    wire.lose_reply(ChangePool, 1)
    assert pool.add(["d"]) is None
    for item in items:
        item.release()
    assert sorted(states(pool)) == ["c", "d"]


def test_a_returned_item_cannot_be_cooled_by_its_last_borrower(face):
    """Another borrower may have the item, and a silent call would look like a cooldown."""
    pool = face.connect().pool("pool")
    pool.set_items(["only"])
    item = pool.borrow()
    item.release()
    with pytest.raises(NotOwner, match="already returned"):
        item.cool(3)
    assert states(pool) == {"only": "free"}
    with pool.borrow() as item:
        item.cool(3)
    assert states(pool) == {"only": "cooling"}


def test_the_error_of_a_pool_names_no_single_holder(face):
    """The error of a pool names no single holder, but the time until the first item is free."""
    client = face.connect()
    pool = client.pool("pool", ttl=20)
    pool.set_items(["only"])
    pattern = r"lease '\w+' was not acquired \({}\) after 0\.\d+ s; {} for another \d+\.\d+ s unless renewed"
    with pool.borrow(), pytest.raises(NotAcquired, match=pattern.format("all busy", "the first item stays lent")):
        pool.borrow(timeout=0)
    other = face.connect()
    with client.rwlock("rw").read(), pytest.raises(NotAcquired, match=pattern.format("busy", "others hold it")):
        other.rwlock("rw").write().acquire(timeout=0)


def test_an_empty_pool_is_reported_at_once_also_to_waiters(face):
    """An empty pool is a configuration error that waiting cannot repair."""
    client = face.connect()
    pool = client.pool("pool", timeout=30, on_death=0)
    with pytest.raises(NotAcquired) as refusal:
        pool.borrow()
    assert (refusal.value.reason, refusal.value.waited < 5) == ("empty pool", True)
    assert str(refusal.value).endswith("; it has no items; call set_items() first")
    pool.set_items(["only"])
    item = pool.borrow()
    waiting = face.start(pool.borrow)
    until_waiting(pool, 1)
    assert pool.set_items([], leave=True) == ("only",)
    error = waiting.error()
    assert (type(error), error.reason) == (NotAcquired, "empty pool")
    item.release()
    assert pool.stats()[1:6] == (0, 0, 0, 0, 0)


@pytest.mark.acceptance("A3-11")
def test_an_unavailable_engine_is_no_empty_or_busy_pool(face):
    """Without the engine the state of the pool is unknown."""
    pool = pool_of(face, "only")
    client = face.connect()
    wire = face.wire(client)
    wire.fail(Borrow)
    with pytest.raises(Unavailable):
        client.pool("pool", timeout=0.3).borrow()
    wire.heal()
    client.pool("pool").borrow().release()
    assert pool.stats().free == 1


def test_a_borrow_that_is_sent_twice_borrows_once(face):
    """The same token, the same item, the same fence, whether the first copy arrived or not."""
    pool = pool_of(face, "a", "b")
    client = face.connect()
    wire = face.wire(client)
    for applied in (False, True):
        wire.lose_reply(Borrow, 1, reached=applied)
        item = client.pool("pool", timeout=10).borrow()
        assert pool.stats().lent == 1
        item.release()
        assert pool.stats()[1:6] == (2, 0, 0, 2, 0)


def test_a_return_that_is_sent_twice_returns_once(face):
    """The second copy changes nothing, even if the next borrower has the item, and the first one sees no loss."""
    pool, peer = pool_of(face, "only"), face.peer()
    client = face.connect()
    wire = face.wire(client)
    item = client.pool("pool").borrow()
    wire.lose_reply(Return, 1)
    item.release()
    with pool.borrow(timeout=0) as successor:
        assert peer.say(Return("pool", "only", item.token)) == Released()
        assert pool.stats().lent == 1
        successor.check()
    item = client.pool("pool").borrow()
    wire.lose_reply(Return, 1)
    item.cool(5)
    (seen,) = pool.stats().items
    assert (seen.state, seen.remaining > 3) == ("cooling", True)


def test_a_borrower_whose_timeout_ends_leaves_nothing_behind(face):
    """It leaves no place in the line and no unused loan."""
    pool = pool_of(face, "only")
    item = pool.borrow()
    with pytest.raises(NotAcquired) as refusal:
        pool.borrow(timeout=0.2)
    assert (refusal.value.name, refusal.value.reason, refusal.value.waited >= 0.2) == ("pool", "all busy", True)
    assert pool.stats().waiting == 0
    item.release()
    assert pool.stats().free == 1


@together
def test_an_interrupted_offer_goes_to_the_next_waiter(face):
    """If a waiter is interrupted during its offer, the next one gets the item."""
    pool = pool_of(face, "only")
    item = pool.borrow()
    client = face.connect()
    wire = face.wire(client)
    waiting = face.start(client.pool("pool").borrow)
    until_waiting(pool, 1)
    until_idle(wire)
    wire.interrupt()
    assert waiting.error() is not None
    item.release()
    pool.borrow(timeout=10).release()
    eventually(lambda: pool.stats()[1:6] == (1, 0, 0, 1, 0), LOST_S)


@together
def test_the_waiters_of_a_dead_client_are_passed_over(face):
    """An offer to a dead waiter passes on to the live one behind it."""
    pool, peer = pool_of(face, "only", ttl=30), face.peer()
    item = pool.borrow()

    def in_line(count):
        for number in range(3):  # repeated: a silent waiter leaves the line after some seconds
            borrowed_from(peer, token=f"dead {number}", ttl_ms=30_000, wait=True)
        return pool.stats().waiting == count

    eventually(lambda: in_line(3), 20, "three that wait")
    waiting = face.start(pool.borrow)
    eventually(lambda: in_line(4), 20, "a waiter that lives, behind them")
    peer.close()
    began = time.monotonic()
    item.release()
    successor = waiting.result(30)
    assert time.monotonic() - began < 20, "their mark lapses after 5 s; their ttl would be 30"
    successor.release()


def test_a_broken_item_is_lost_for_its_borrower_and_cools_down(face):
    """The borrower gets the reason; the outcome of its work is uncertain, so the item cools down."""
    client = face.connect()
    pool = client.pool("pool", ttl=0.6, on_death=20)
    pool.set_items(["only"])
    with pytest.raises(LeaseLost) as lost, pool.borrow() as item:
        pool.break_item("only", "stuck since noon")
        assert item.lost.wait(5)
    assert (lost.value.reason, lost.value.detail) == ("broken", "stuck since noon")
    (seen,) = pool.stats().items
    assert (seen.state, seen.fence > item.fence, seen.remaining > 10) == ("cooling", True, True)
    with pytest.raises(NotFound):
        pool.break_item("only", "again")


def test_the_statistics_of_a_pool_add_up(face):
    """The statistics show loans with their age, cooldowns, free items and waiters."""
    pool = pool_of(face, "a", "b", "c", "d")
    labelled = face.connect(label="worker 7").pool("pool")
    lent, cooled = labelled.borrow(info={"job": 12}), labelled.borrow()
    cooled.cool(30)
    stats = pool.stats()

    assert (stats.size, stats.lent, stats.cooling, stats.free, stats.waiting) == (4, 1, 1, 2, 0)
    seen = {item.name: item for item in stats.items}
    assert seen[lent.name].holder.label == "worker 7"
    assert seen[lent.name].holder.info == lent.info == {"job": 12}
    assert (seen[lent.name].used, seen[lent.name].since >= 0) == (1, True)
    assert 20 < seen[cooled.name].remaining <= 30
    assert seen[cooled.name].holder is None
    assert {item.since for item in stats.items if item.state == "free"} == {None}
    assert {item.state for item in pool.stats(limit=2).items} == {"lent", "cooling"}
    assert pool.stats(limit=0).items == ()
    lent.release()


REFUSED = {
    "items are one text": lambda pool: pool.set_items("abc"),
    "items are no list": lambda pool: pool.set_items(7),
    "an item is empty": lambda pool: pool.set_items(["a", ""]),
    "an item is no text": lambda pool: pool.set_items(["a", 7]),
    "an item is there twice": lambda pool: pool.set_items(["a", "b", "a"]),
    "nothing to add": lambda pool: pool.add([]),
    "nothing to remove": lambda pool: pool.remove([]),
    "a negative cooldown": lambda pool: pool.cool("a", -1),
    "an endless cooldown": lambda pool: pool.cool("a", float("inf")),
    "no cooldown": lambda pool: pool.cool("a", None),
    "a share below zero": lambda pool: pool.borrow(tag="t", share=-0.1),
    "a share above one": lambda pool: pool.borrow(tag="t", share=1.1),
    "a share that is no number": lambda pool: pool.borrow(tag="t", share="half"),
    "a share without a tag": lambda pool: pool.borrow(share=0.5),
    "an empty tag": lambda pool: pool.borrow(tag="", share=0.5),
    "info that is no dictionary": lambda pool: pool.borrow(info=[1]),
    "a limit below zero": lambda pool: pool.stats(limit=-1),
    "no reason": lambda pool: pool.break_item("a", ""),
}


def test_bad_input_is_refused_and_changes_nothing(face):
    """The error names the rule and comes before any command."""
    pool = pool_of(face, "a", "b")
    before = pool.stats()
    accepted = []
    for what, bad in REFUSED.items():
        try:
            bad(pool)
        except (InvalidConfig, InvalidName):
            continue
        accepted.append(what)
    assert accepted == []
    assert pool.stats() == before


def test_unknown_items_are_refused_and_nothing_is_changed(face):
    """A change is applied completely or not at all."""
    pool = pool_of(face, "a", "b")
    for bad in (lambda: pool.remove(["a", "none"]), lambda: pool.cool("none", 1), lambda: pool.break_item("a", "free")):
        with pytest.raises(NotFound):
            bad()
    assert sorted(states(pool).items()) == [("a", "free"), ("b", "free")]


def test_bad_settings_are_refused_when_the_pool_is_named(face):
    """The error names the setting and comes before any command."""
    client = face.connect()
    for setting, bad in (
        ("ttl", 0),
        ("timeout", -1),
        ("cool", -1),
        ("on_death", -1),
        ("cool_on", "x"),
        ("on_loss", "shrug"),
    ):
        with pytest.raises(InvalidConfig) as refusal:
            client.pool("pool", **{setting: bad})
        assert refusal.value.setting == setting


def test_a_pool_and_a_lock_of_the_same_name_are_independent(face):
    """Pools and locks have separate spaces of names."""
    client = face.connect()
    pool = client.pool("same")
    pool.set_items(["same"])
    with client.lock("same", timeout=0), pool.borrow(timeout=0) as item:
        assert item.pool == item.name == "same"
