"""Large pools: shares computed in batches, more tags than the engine remembers, and many expiries at once."""

import pytest
from pool_twin import NAME, PoolTwin, borrow, change, give_back, send

import holdfast
from holdfast.commands import GetPoolStats, PoolHeartbeat
from holdfast.rules.pool import DUE_AT_ONCE
from holdfast.rules.pool_state import SHARES_MAX, Share, items_of_share

MANY = [f"item {number}" for number in range(2500)]


@pytest.fixture
def pool(one_server):
    """Return a large pool, emptied at the end."""
    with holdfast.connect(one_server.url) as client:
        pool = client.pool("large", on_death=0)
        pool.set_items(MANY)
        yield pool
        pool.set_items([], leave=True)


@pytest.fixture
def twin(one_server):
    """Return the script and the rule side by side."""
    twin = PoolTwin(one_server.url)
    yield twin
    twin.close()


def test_a_share_of_a_large_pool_is_the_one_that_the_rule_chooses(pool, one_server):
    """The script computes a share in batches, with lent items, which return to all their shares.

    Two tags have half of the pool each, so that many items are part of both.
    """
    wanted = {tag: set(items_of_share(MANY, Share(tag, 500_000), len(MANY))) for tag in ("acme", "other")}
    lent = [pool.borrow(timeout=0) for _ in range(3)]
    items = [pool.borrow(timeout=0, tag=tag, share=0.5) for tag in wanted]
    assert all(item.name in names for item, names in zip(items, wanted.values(), strict=True))
    for item in (*lent, *items):
        item.release()

    for tag, names in wanted.items():
        free = one_server.command("ZRANGE", f"hf2:{{large}}:pool:share:500000:{tag}", "0", "-1")
        assert {name.decode() for name in free} == names


def test_the_number_of_remembered_tags_is_bounded(pool, one_server):
    """Beyond the maximum the engine computes them again: unused tags must not fill a server."""
    pool.set_items(MANY[:6])
    names = {}
    for number in range(SHARES_MAX + 2):
        with pool.borrow(timeout=0, tag=f"tag {number}", share=0) as item:
            names[number] = item.name
    assert one_server.command("HLEN", "hf2:{large}:pool:shares") <= SHARES_MAX
    for number, name in names.items():
        assert name == items_of_share(MANY[:6], Share(f"tag {number}", 0), 6)[0]
    with pool.borrow(timeout=0, tag="tag 0", share=0) as item:
        assert item.name == names[0]


def test_many_expired_items_are_brought_back_in_parts_like_the_rule(twin):
    """No command is long: each brings back a thousand items, and the next one the rest."""
    numbers = range(DUE_AT_ONCE + 10)
    program = [change(*map(str, numbers)), *(borrow(1, f"a{number}", wait=False) for number in numbers)]
    program += [
        send(20_000_000, "b", GetPoolStats(NAME, 0)),
        send(0, "b", PoolHeartbeat(NAME)),
        borrow(0, "c1"),
        give_back(0, "c1"),
    ]
    twin.run(program)
