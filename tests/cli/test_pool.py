"""`holdfast pool`: `ls`, `show`, `set`, `add`, `remove`, `cool`, `break`."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from cli_tool import HOLDFAST
from terminals import Terminal

from holdfast import LeaseLost
from holdfast.testing import eventually


@pytest.fixture
def pool(tool):
    """A pool of three items."""
    pool = tool.client(label="worker 7").pool("channels", ttl=1, on_death=30)
    pool.set_items(["alice", "bob", "carol"])
    yield pool
    pool.set_items([], leave=True)


def test_pools_are_listed_and_shown_for_people_and_for_programs(tool, pool):
    """`ls` prints figures for each pool, `show` every item of one pool with its borrower."""
    with pool.borrow() as item:
        listed = tool.inside("pool", "ls").out.decode().splitlines()
        shown = tool.inside("pool", "show", "channels").out.decode()
        answer = tool.json("pool", "show", "channels")

    assert listed[0].split() == ["pool", "size", "lent", "cooling", "free", "waiting"]
    assert listed[1].split() == ["channels", "3", "1", "0", "2", "0"]
    assert "worker 7" in shown
    assert str(item.fence) in shown
    assert (answer["size"], answer["lent"], answer["free"]) == (3, 1, 2)
    lent = [one for one in answer["items"] if one["state"] == "lent"]
    assert [(one["name"], one["holder"]["label"], one["fence"]) for one in lent] == [
        (item.name, "worker 7", item.fence)
    ]
    assert tool.json("pool", "ls")["pools"] == [
        {"pool": "channels", "size": 3, "lent": 0, "cooling": 0, "free": 3, "waiting": 0}
    ]


def test_show_prints_the_waiting_line_in_order(tool, pool):
    """`pool show` prints the waiters; programs get them as the list of waiters."""
    pool.set_items(["alice"])
    with ThreadPoolExecutor() as threads:
        with tool.client(label="worker 8").pool("channels").borrow():
            waiting = threads.submit(pool.borrow, timeout=20)
            eventually(lambda: pool.stats().waiting == 1)
            shown = tool.inside("pool", "show", "channels").out.decode()
            answer = tool.json("pool", "show", "channels")
        waiting.result().release()
    assert "waiting" in shown.splitlines()[-2]
    assert "worker 7" in shown.splitlines()[-1]
    assert [waiter["label"] for waiter in answer["waiters"]] == ["worker 7"]


def test_the_items_of_a_pool_are_set(tool, pool):
    """`set` replaces all items at once; it refuses to remove a lent item, unless --leave lets it go later."""
    with pool.borrow() as item:
        refused = tool.inside("pool", "set", "channels", "new")
        assert (refused.code, item.name in refused.err.decode()) == (75, True)
        assert pool.stats().size == 3
        assert tool.json("pool", "set", "channels", "new", "--leave")["leaving"] == [item.name]
    assert [one.name for one in pool.stats().items] == ["new"]


def test_a_cooldown_is_started_and_ended_by_hand(tool, pool):
    """The pool does not lend the item for so long; a lent item stays with its borrower."""
    assert tool.inside("pool", "cool", "channels", "alice", "30").code == 0
    assert tool.json("pool", "cool", "channels", "alice", "60") == {"pool": "channels", "item": "alice", "cooling": 60}
    assert {one.name: one.state for one in pool.stats().items}["alice"] == "cooling"
    warmed = tool.inside("pool", "cool", "channels", "alice", "0")
    assert (warmed.code, warmed.out.decode()) == (0, "'alice' of 'channels' may be lent again\n")
    assert pool.stats().free == 3
    assert tool.inside("pool", "cool", "channels", "none", "1").code == 66
    assert tool.inside("pool", "cool", "channels", "alice", "--", "-1").code == 64


def test_an_item_is_broken_with_a_reason_that_its_borrower_reads(tool, pool):
    """The item cools down as after a crash, and its borrower reads the reason."""
    with pytest.raises(LeaseLost) as lost, pool.borrow() as item:
        answer = tool.json("pool", "break", "channels", item.name, "--reason", "stuck", "--yes")
        assert item.lost.wait(10)
    assert (lost.value.reason, lost.value.detail) == ("broken", "stuck")
    assert (answer["now"]["state"], answer["now"]["fence"] > item.fence) == ("cooling", True)
    assert tool.inside("pool", "break", "channels", item.name, "--reason", "again").code == 66


def test_breaking_an_item_asks_first(tool, pool):
    """The prompt shows the borrower; a script gives --yes; after "no" nothing is done."""
    with pool.borrow() as item:
        arguments = ("pool", "break", "channels", item.name, "--reason", "stuck")
        silent = tool.inside(*arguments)
        assert (silent.code, "--yes" in silent.err.decode()) == (64, True)
        with Terminal(*HOLDFAST, *arguments, env=tool.environ) as terminal:
            terminal.until("worker 7")
            terminal.until(str(item.fence))
            terminal.until(r"Break it\?")
            terminal.type("n\n")
            terminal.until("nothing was done")
            assert terminal.rest() == 1
        item.check()
        assert pool.stats().lent == 1


def test_a_pool_is_changed_only_with_the_admin_secret_where_one_is_set(tool, pool):
    """Reading needs no secret; each change needs it, and without it nothing changes."""
    tool.environ["HOLDFAST_ADMIN_SECRET"] = "sesame"
    changes = (
        ("set", "channels", "new"),
        ("cool", "channels", "alice", "9"),
        ("break", "channels", "alice", "--reason", "x"),
    )
    for arguments in changes:
        for more in ((), ("--secret", "wrong")):
            assert tool.inside("pool", *arguments, *more).code == 77
    assert [one.state for one in pool.stats().items] == ["free"] * 3
    assert tool.inside("pool", "show", "channels").code == 0
    assert tool.inside("pool", "set", "channels", "new", "--secret", "sesame").code == 0
    assert pool.stats().size == 1


def test_an_unknown_pool_is_not_shown_as_an_empty_one(tool):
    """A typing error in the name is not a pool of size 0."""
    answer = tool.inside("pool", "show", "chanels")
    assert (answer.code, answer.err.decode().startswith("holdfast: 'chanels' has no items")) == (66, True)


def test_a_pool_is_deleted_only_with_confirmation(tool, pool):
    """An empty variable on a command line must not remove every item."""
    refused = tool.inside("pool", "set", "channels")
    assert (refused.code, "--yes" in refused.err.decode()) == (64, True)
    assert pool.stats().size == 3
    assert tool.inside("pool", "set", "channels", "--yes").code == 0
    assert pool.stats().size == 0


def test_items_are_added_and_removed_one_by_one(tool, pool):
    """An operator changes one item without knowing the others; a lent item stays, or leaves when it is returned."""
    assert tool.json("pool", "add", "channels", "dave", "alice") == {
        "pool": "channels", "size": 4, "lent": 0, "cooling": 0, "free": 4, "waiting": 0, "leaving": [],
    }  # fmt: skip
    assert b"has 3 items" in tool.inside("pool", "remove", "channels", "dave").out
    with pool.borrow() as item:
        refused = tool.inside("pool", "remove", "channels", item.name)
        assert (refused.code, "--leave" in refused.err.decode()) == (75, True)
        assert tool.json("pool", "remove", "channels", item.name, "--leave")["leaving"] == [item.name]
    assert pool.stats().size == 2

    unknown = tool.inside("pool", "remove", "channels", "nobody-has-this")
    assert (unknown.code, b"nobody-has-this" in unknown.err) == (66, True)
    assert pool.stats().size == 2


def test_adding_items_creates_the_pool_and_reads_a_list(tool):
    """A list of items comes from a file."""
    done = tool("pool", "add", "fresh", "-", stdin=open_lines("one\n\ntwo\n"))
    assert (done.code, done.out) == (0, b"'fresh' has 2 items\n")
    assert tool("pool", "add", "fresh", env={"HOLDFAST_ADMIN_SECRET": "s"}).code == 64
    assert tool("pool", "add", "fresh", "x", env={"HOLDFAST_ADMIN_SECRET": "s"}).code == 77
    tool.client().pool("fresh").set_items([])


def open_lines(text):
    """Return a descriptor from which a process reads the text."""
    read, write = os.pipe()
    os.write(write, text.encode())
    os.close(write)
    return read
