"""Owners that are killed, frozen and stopped: the holders of keys are compared with the events of all owners."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from ownership_children import TTL_S, sessions

from holdfast.testing import eventually

WAIT_S = 60
CHILDREN = Path(__file__).with_name("ownership_children.py")


@pytest.fixture
def own(start):
    """Start an owner in a process of its own."""
    return lambda pod, **options: start("own", CHILDREN, pod=pod, **options).wait_ready(WAIT_S)


@pytest.fixture
def owned(journal):
    """Return the fences under which each process got keys."""

    def by(owner=None):
        found = defaultdict(list)
        for _, key, fence, pid, *_ in journal("added"):
            if owner is None or int(pid) == owner.pid:
                found[key].append(int(fence))
        return found

    return by


def opened(client, count):
    queue = sessions(client)
    queue.publish_many(range(count), key=lambda number: f"chat-{number}")
    return queue


@pytest.mark.acceptance("A1-12")
def test_a_frozen_owner_learns_of_all_its_losses_and_its_late_outcomes_are_refused(client, own, owned, freeze, journal):
    """Others have its keys by then, under larger fences. It starts a new session, and takes free keys."""
    queue = opened(client, 5)
    zombie = own("zombie")
    eventually(lambda: len(owned(zombie)) == 5, WAIT_S, "an owner of all five")
    before = owned(zombie)
    successor = own("successor")
    freeze(zombie)
    eventually(lambda: len(owned(successor)) == 5, WAIT_S, "a successor")
    assert journal("lost") == []
    zombie.thaw()
    eventually(lambda: len(journal("lost")) == 5, WAIT_S, "five losses that are told")

    assert {(words[1], int(words[2])) for words in journal("lost")} == {(key, *fence) for key, fence in before.items()}
    assert {tuple(words[5:]) for words in journal("lost")} == {("refused", "fenced")}
    assert {words[5] for words in journal("added")} == {"written"}
    assert all(owned(successor)[key][0] > fence for key, (fence,) in before.items())
    assert queue.stats().in_flight == 5
    successor.terminate()
    assert successor.wait(WAIT_S) == 0
    eventually(lambda: all(len(fences) == 2 for fences in owned(zombie).values()), WAIT_S, "a return")
    assert all(fences == sorted(fences) for fences in owned().values())
    assert {words[6] for words in journal("added")} == {"1"}
    assert queue.check()


@pytest.mark.acceptance("A1-13")
def test_two_processes_of_one_name_do_each_other_no_harm(client, own, owned, journal):
    """The session of one covers nothing of the other, and its end takes nothing from it."""
    queue = sessions(client)
    first, second = own("chat-7f"), own("chat-7f")
    opened(client, 20)
    eventually(lambda: len(owned()) == 20, WAIT_S, "owners for all of them")
    assert [each.label for each in queue.consumers()] == ["chat-7f", "chat-7f"]
    kept, had = owned(second), owned(first)
    assert kept.keys() | had.keys() == {f"chat-{number}" for number in range(20)}
    assert kept.keys() & had.keys() == set()

    first.kill()
    eventually(lambda: owned(second).keys() >= had.keys(), WAIT_S, "what the dead one had")
    assert all(owned(second)[key] == fences for key, fences in kept.items())
    assert journal("lost") == []
    third = own("chat-7f")
    third.terminate()
    assert third.wait(WAIT_S) == 0
    os.kill(second.pid, signal.SIGUSR1)
    eventually(lambda: len(journal("done")) == 20, WAIT_S, "the end of all twenty")
    assert {words[5] for words in journal("done")} == {"accepted"}
    assert queue.stats().counts["acked"] == 20
    assert queue.check()


@pytest.mark.acceptance("A1-3")
def test_two_survivors_get_all_keys_of_a_killed_owner_each_key_once(client, own, owned, journal):
    """Two hundred keys, shared by both; no attempt was used, and none is in quarantine after one death."""
    queue = opened(client, 200)
    victim = own("victim")
    eventually(lambda: len(owned(victim)) == 200, WAIT_S, "an owner of all")
    survivors = [own("one"), own("other")]
    victim.kill()
    eventually(lambda: sum(len(owned(each)) for each in survivors) >= 200, WAIT_S, "new owners for all")

    had = owned(victim)
    given = Counter(key for each in survivors for key, fences in owned(each).items() for _ in fences)
    assert given == Counter(had.keys())
    assert all(owned()[key][-1] > fence for key, (fence,) in had.items())
    assert min(len(owned(each)) for each in survivors) > 0
    assert queue.stats().in_flight == 200
    assert {words[6] for words in journal("added")} == {"1"}
    for each in survivors:
        each.terminate()
    for each in survivors:
        assert each.wait(WAIT_S) == 0
    now = queue.stats()
    assert (now.ready, now.in_flight, now.consumers, now.dead) == (200, 0, 0, 0)
    assert queue.check()


@pytest.mark.acceptance("C-6")
def test_a_lease_is_about_the_key_whichever_message_it_came_from(client, own, owned, journal):
    """A second message makes no second owner; and over all messages, owners and deaths the fence of a key grows."""
    queue = sessions(client)
    one = own("one")
    first = queue.publish("first", key="chat")
    eventually(lambda: len(owned(one)["chat"]) == 1, WAIT_S, "an owner")
    other = own("other")
    second = queue.publish("second", key="chat")
    assert first != second
    assert [seen.id for seen in queue.peek("behind")] == [second]
    assert owned(other) == {}

    os.kill(one.pid, signal.SIGUSR1)
    eventually(lambda: len(owned()["chat"]) == 2, WAIT_S, "an owner of the second")
    holder, successor = (one, other) if len(owned(one)["chat"]) == 2 else (other, one)
    before = len(owned(successor)["chat"])
    queue.publish("third", key="chat")
    holder.kill()
    eventually(lambda: len(owned(successor)["chat"]) == before + 1, WAIT_S, "a successor")
    os.kill(successor.pid, signal.SIGUSR1)
    eventually(lambda: len(owned()["chat"]) == 4, WAIT_S, "an owner of the third")
    os.kill(successor.pid, signal.SIGUSR1)
    eventually(lambda: queue.stats().counts["acked"] == 3, WAIT_S, "an end of all three")

    fences = owned()["chat"]
    assert fences == sorted(set(fences))
    assert {words[5] for words in journal("added")} == {"written"}
    assert {words[5] for words in journal("done")} == {"accepted"}
    assert queue.stats()[1:6] == (0, 0, 0, 0, 0)
    assert queue.check()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_key_that_kills_its_owner_is_dead_lettered_and_its_neighbours_lose_no_attempt(client, own, owned, journal):
    """Keys past their blame window are not even in quarantine; those that came with it are tried in small groups."""
    queue = opened(client, 3)
    pod = own("pod")
    eventually(lambda: len(owned(pod)) == 3, WAIT_S, "an owner of those that are harmless")
    time.sleep(TTL_S)  # their blame window is over
    queue.publish_many(range(3), key=lambda number: f"new-{number}" if number else "poison")
    deaths = 0
    deadline = time.monotonic() + WAIT_S
    with queue.consumer("bystander"):  # a client that checks for dead consumers, and receives nothing
        while queue.stats().dead == 0 or queue.stats().in_flight < 5:
            assert time.monotonic() < deadline, queue.stats()
            if not pod.alive:
                deaths += 1
                pod = own("pod")
            time.sleep(0.05)

    (letter,) = queue.dlq.list()
    assert (letter.reason, letter.attempts) == ("attempts used up", 3)
    assert 3 <= deaths <= 2 + 4 + 3  # in company, in groups that become smaller, and alone
    attempts = {words[1]: words[6] for words in journal("added")}
    assert {key: attempts[key] for key in attempts if key != "poison"} == dict.fromkeys(
        [*(f"chat-{number}" for number in range(3)), "new-1", "new-2"], "1"
    )
    assert queue.check()
