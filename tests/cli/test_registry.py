"""`holdfast registry`: owners of keys, for people and for programs, and taking a key by force."""

import json

import pytest
from cli_tool import HOLDFAST
from terminals import Terminal

from holdfast import LeaseLost


@pytest.fixture
def owned(tool):
    """A server that owns two keys, and a member that joined one of them."""
    registry = tool.client(label="server 7").registry("conversations", ttl=5)
    leases = [registry.claim("42", {"address": "10.0.0.1"}, group="ann"), registry.claim("a b:c")]
    joined = registry.join("42", "socket 1")
    yield leases
    joined.release()
    for lease in leases:
        if not lease.lost:
            lease.release()


def test_owned_keys_are_listed_for_people_and_for_programs(tool, owned):
    """`ls` prints one line per key, filtered by prefix and by group."""
    people = tool.inside("registry", "ls", "conversations").out.decode().splitlines()
    answer = tool.json("registry", "ls", "conversations", "--group", "ann")

    assert people[0].split() == ["key", "owner", "label", "group", "owned", "left", "fence"]
    assert people[1].split()[0] == "42"
    assert "server 7" in people[1]
    assert people[1].split()[-1] == str(owned[0].fence)
    assert people[2].startswith("a b:c")
    (one,) = answer["entries"]
    assert (one["key"], one["group"], one["info"], one["fence"]) == (
        "42",
        "ann",
        {"address": "10.0.0.1"},
        owned[0].fence,
    )
    assert one["owner"]["label"] == "server 7"
    assert [each["key"] for each in tool.json("registry", "ls", "conversations", "a ")["entries"]] == ["a b:c"]
    assert b"no key has an owner" in tool.inside("registry", "ls", "others").out


@pytest.mark.acceptance("A4-21")
def test_show_prints_the_owner_and_the_members_of_one_key(tool, owned):
    """`show` prints host, process, age, remaining time and fence."""
    people = tool.inside("registry", "show", "conversations", "42").out.decode()
    answer = tool.json("registry", "show", "conversations", "42")

    for part in (
        owned[0].holder.host,
        f"process {owned[0].holder.pid}",
        "server 7",
        "ago",
        "socket 1",
        str(owned[0].fence),
    ):
        assert part in people
    assert (answer["members"], answer["fence"]) == (["socket 1"], owned[0].fence)
    assert 0 <= answer["since"] < 60
    assert 0 < answer["remaining"] <= 5
    assert owned[0].token not in json.dumps(answer), "a reader of the token could end the lease"
    assert tool.inside("registry", "show", "conversations", "43").code == 66


@pytest.mark.acceptance("A4-21")
def test_a_key_is_taken_with_a_reason_and_its_owner_reads_it(tool, owned):
    """The fence grows, and the next process that claims the key gets it."""
    answer = tool.json("registry", "take", "conversations", "42", "--reason", "stuck, see ticket 12", "--yes")

    assert answer["taken"]["fence"] == owned[0].fence
    with pytest.raises(LeaseLost) as loss:
        owned[0].release()
    assert loss.value.detail == "stuck, see ticket 12"
    with tool.client().registry("conversations").claim("42") as lease:
        assert lease.fence > owned[0].fence
    assert tool.inside("registry", "take", "conversations", "42", "--reason", "x").code == 66
    assert tool.inside("registry", "take", "conversations", "42", "--reason", "").code == 64


@pytest.mark.acceptance("A4-21")
def test_a_key_is_handed_off_to_another_server_by_its_label(tool, owned):
    """The key is reserved for that server: no other can claim it meanwhile."""
    answer = tool.json("registry", "hand-off", "conversations", "42", "--to", "server 8", "--within", "30", "-y")

    assert (answer["to"], answer["taken"]["fence"]) == ("server 8", owned[0].fence)
    with pytest.raises(LeaseLost) as loss:
        owned[0].release()
    assert loss.value.detail == "handed off to server 8"
    assert not tool.client(label="server 9").registry("conversations").claim("42")
    with tool.client(label="server 8").registry("conversations").claim("42") as lease:
        assert lease.fence > owned[0].fence
    assert tool.inside("registry", "hand-off", "conversations", "44", "--to", "x").code == 66
    assert tool.inside("registry", "hand-off", "conversations", "a b:c", "--to", "").code == 64


@pytest.mark.parametrize(
    "arguments", [("take", "--reason", "stuck"), ("hand-off", "--to", "server 8")], ids=lambda each: each[0]
)
def test_commands_that_take_a_key_by_force_ask_first(local, arguments):
    """Like `break`, the prompt shows the owner; without a terminal the command needs --yes."""
    lease = local.client(label="server 7").registry("conversations", ttl=5).claim("42")
    command, *options = arguments

    unasked = local("registry", command, "conversations", "42", *options)
    with Terminal(*HOLDFAST, "registry", command, "conversations", "42", *options, env=local.environ) as terminal:
        terminal.until("server 7")
        terminal.until(r"\?")
        terminal.type("n\n")
        terminal.until("holdfast: nothing was done")
        assert terminal.rest() == 1

    assert unasked.code == 64
    assert unasked.err.startswith(b"holdfast: standard input is not a terminal; nothing was done. Add --yes")
    assert local.client().registry("conversations").owner("42").fence == lease.fence
    lease.release()


def test_take_leaves_an_owner_alone_that_claimed_after_the_prompt(local):
    """The answer to the prompt is about the owner that it showed, not about the next one."""
    registry = local.client(label="server 7").registry("conversations", ttl=5)
    shown = registry.claim("42")
    arguments = ("registry", "take", "conversations", "42", "--reason", "stuck")
    with Terminal(*HOLDFAST, *arguments, env=local.environ) as terminal:
        terminal.until(r"Take it\?")
        shown.release()
        later = registry.claim("42")
        terminal.type("y\n")
        assert terminal.rest() == 66

    later.check()
    assert registry.owner("42").fence == later.fence
    later.release()
