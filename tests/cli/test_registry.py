"""Who owns which key, for people and for programs: `directory ls`, `show`, `take`."""

import json

import pytest
from cli_tool import HOLDFAST
from terminals import Terminal

from holdfast import LeaseLost


@pytest.fixture
def owned(tool):
    """A server that owns two keys, and a client that has joined one of them."""
    directory = tool.client(label="server 7").registry("conversations", ttl=5)
    leases = [directory.claim("42", {"address": "10.0.0.1"}, group="ann"), directory.claim("a b:c")]
    joined = directory.join("42", "socket 1")
    yield leases
    joined.release()
    for lease in leases:
        if not lease.lost:
            lease.release()


def test_owned_keys_are_listed_for_people_and_for_programs(tool, owned):
    """One line per key; by prefix and by group."""
    people = tool.inside("directory", "ls", "conversations").out.decode().splitlines()
    told = tool.json("directory", "ls", "conversations", "--group", "ann")

    assert people[0].split() == ["key", "owner", "label", "group", "owned", "left", "fence"]
    assert people[1].split()[0] == "42"
    assert "server 7" in people[1]
    assert people[1].split()[-1] == str(owned[0].fence)
    assert people[2].startswith("a b:c")
    (one,) = told["keys"]
    assert (one["key"], one["group"], one["info"], one["fence"]) == (
        "42",
        "ann",
        {"address": "10.0.0.1"},
        owned[0].fence,
    )
    assert one["owner"]["label"] == "server 7"
    assert [each["key"] for each in tool.json("directory", "ls", "conversations", "a ")["keys"]] == ["a b:c"]
    assert b"nothing is owned" in tool.inside("directory", "ls", "others").out


@pytest.mark.acceptance("A4-21")
def test_one_key_is_shown_with_its_owner_and_who_has_joined(tool, owned):
    """Host, process, since when, how much longer, under which fence."""
    people = tool.inside("directory", "show", "conversations", "42").out.decode()
    told = tool.json("directory", "show", "conversations", "42")

    for part in (
        owned[0].owner.host,
        f"process {owned[0].owner.pid}",
        "server 7",
        "ago",
        "socket 1",
        str(owned[0].fence),
    ):
        assert part in people
    assert (told["members"], told["fence"]) == (["socket 1"], owned[0].fence)
    assert 0 <= told["since"] < 60
    assert 0 < told["remaining"] <= 5
    assert owned[0].token not in json.dumps(told), "whoever has the token could end the lease"
    assert tool.inside("directory", "show", "conversations", "43").code == 66


@pytest.mark.acceptance("A4-21")
def test_a_key_is_taken_with_a_reason_and_its_owner_reads_it(tool, owned):
    """The fence grows, and the next who claims it has it."""
    told = tool.json("directory", "take", "conversations", "42", "--reason", "stuck, see ticket 12", "--yes")

    assert told["taken"]["fence"] == owned[0].fence
    with pytest.raises(LeaseLost) as loss:
        owned[0].release()
    assert loss.value.detail == "stuck, see ticket 12"
    with tool.client().registry("conversations").claim("42") as lease:
        assert lease.fence > owned[0].fence
    assert tool.inside("directory", "take", "conversations", "42", "--reason", "x").code == 66
    assert tool.inside("directory", "take", "conversations", "42", "--reason", "").code == 64


@pytest.mark.acceptance("A4-21")
def test_a_key_is_handed_to_another_server_by_its_label(tool, owned):
    """Kept for it: nobody else can claim it meanwhile."""
    told = tool.json("directory", "hand-off", "conversations", "42", "--to", "server 8", "--within", "30", "-y")

    assert (told["to"], told["taken"]["fence"]) == ("server 8", owned[0].fence)
    with pytest.raises(LeaseLost) as loss:
        owned[0].release()
    assert loss.value.detail == "handed off to server 8"
    assert not tool.client(label="server 9").registry("conversations").claim("42")
    with tool.client(label="server 8").registry("conversations").claim("42") as lease:
        assert lease.fence > owned[0].fence
    assert tool.inside("directory", "hand-off", "conversations", "44", "--to", "x").code == 66
    assert tool.inside("directory", "hand-off", "conversations", "a b:c", "--to", "").code == 64


@pytest.mark.parametrize("words", [("take", "--reason", "stuck"), ("hand-off", "--to", "server 8")], ids=lambda w: w[0])
def test_what_forces_asks_first_and_takes_no_for_an_answer(local, words):
    """As `break`: whoever is asked sees whom they would take it from; without a terminal it must be said."""
    lease = local.client(label="server 7").registry("conversations", ttl=5).claim("42")
    deed, *how = words

    unasked = local("directory", deed, "conversations", "42", *how)
    with Terminal(*HOLDFAST, "directory", deed, "conversations", "42", *how, env=local.environ) as terminal:
        terminal.until("server 7")
        terminal.until(r"\?")
        terminal.type("n\n")
        terminal.until("holdfast: nothing was done")
        assert terminal.rest() == 1

    assert unasked.code == 64
    assert unasked.err.startswith(b"holdfast: --yes is needed without a terminal")
    assert local.client().registry("conversations").owner("42").fence == lease.fence
    lease.release()


def test_an_owner_that_came_since_is_left_alone(local):
    """Whoever is asked agrees to one owner, not to the next one."""
    directory = local.client(label="server 7").registry("conversations", ttl=5)
    shown = directory.claim("42")
    words = ("directory", "take", "conversations", "42", "--reason", "stuck")
    with Terminal(*HOLDFAST, *words, env=local.environ) as terminal:
        terminal.until(r"Take it\?")
        shown.release()
        since = directory.claim("42")
        terminal.type("y\n")
        assert terminal.rest() == 66

    since.check()
    assert directory.owner("42").fence == since.fence
    since.release()
