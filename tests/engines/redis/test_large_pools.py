"""What only large pools do: shares that are looked out in batches, more tags than are remembered, and much at once."""

import pytest
from pool_twin import NAME, PoolTwin, ask, give, have, tell

import holdfast
from holdfast.commands import GetPoolStats, PoolHeartbeat
from holdfast.rules.pool import DUE_AT_ONCE
from holdfast.rules.pool_state import SHARES_MAX, Share, chosen

MANY = [f"item {number}" for number in range(2500)]


@pytest.fixture
def pool(one_server):
    """A large pool, emptied at its end."""
    with holdfast.connect(one_server.url) as client:
        pool = client.pool("large", on_death=0)
        pool.set_items(MANY)
        yield pool
        pool.set_items([], leave=True)


@pytest.fixture
def twin(one_server):
    """Script and rule side by side."""
    twin = PoolTwin(one_server.url)
    yield twin
    twin.close()


def test_a_share_of_a_large_pool_is_the_one_that_the_rule_chooses(pool, one_server):
    """However many batches it takes; what is lent is part of it too, and comes back to every share that it is part of.

    Two tags have half of the pool each, so that many items are part of both.
    """
    wanted = {tag: set(chosen(MANY, Share(tag, 500_000), len(MANY))) for tag in ("acme", "other")}
    lent = [pool.borrow(timeout=0) for _ in range(3)]
    items = [pool.borrow(timeout=0, tag=tag, share=0.5) for tag in wanted]
    assert all(item.name in names for item, names in zip(items, wanted.values(), strict=True))
    for item in (*lent, *items):
        item.release()

    for tag, names in wanted.items():
        free = one_server.command("ZRANGE", f"hf2:{{large}}:pool:c:500000:{tag}", "0", "-1")
        assert {name.decode() for name in free} == names


def test_no_more_tags_are_remembered_than_was_said(pool, one_server):
    """Beyond that they are looked out again: a server is not filled by tags that nobody uses any more."""
    pool.set_items(MANY[:6])
    names = {}
    for number in range(SHARES_MAX + 2):
        with pool.borrow(timeout=0, tag=f"tag {number}", share=0) as item:
            names[number] = item.name
    assert one_server.command("HLEN", "hf2:{large}:pool:c") <= SHARES_MAX
    for number, name in names.items():
        assert name == chosen(MANY[:6], Share(f"tag {number}", 0), 6)[0]
    with pool.borrow(timeout=0, tag="tag 0", share=0) as item:
        assert item.name == names[0]


def test_much_that_lapses_at_once_comes_back_in_parts_as_the_rule_says(twin):
    """No command is long, however long nobody looked: each brings back a thousand, and the next one the rest."""
    numbers = range(DUE_AT_ONCE + 10)
    program = [have(*map(str, numbers)), *(ask(1, f"a{number}", wait=False) for number in numbers)]
    program += [
        tell(20_000_000, "b", GetPoolStats(NAME, 0)),
        tell(0, "b", PoolHeartbeat(NAME)),
        ask(0, "c1"),
        give(0, "c1"),
    ]
    twin.run(program)
