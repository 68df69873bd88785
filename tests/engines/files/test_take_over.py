"""Whoever takes over from the dead is one: forced at every step, with real processes and real signals."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from holdfast.testing import eventually

TTL_S = 30
STEP = int(os.environ.get("HOLDFAST_LINES", "23"))


def die_holding(child):
    """A holder that was killed; its lease has its whole ttl before it."""
    holder = child()
    fence = holder.ask("acquire", ttl=TTL_S)["fence"]
    holder.worker.kill()
    return fence


@pytest.mark.acceptance("A0-26", "A2-9")
@pytest.mark.parametrize("ends", ["dead", "lapsed", "released"])
def test_of_two_who_find_the_lease_free_one_enters(child, points, ends):
    """The first is parked between its judgement and its claim; the second comes, judges the same, and enters."""
    if ends == "dead":
        old = die_holding(child)
    else:
        holder = child()
        old = holder.ask("acquire", ttl=0.3)["fence"]
        if ends == "released":
            holder.ask("release")
        else:
            holder.worker.freeze()
            time.sleep(0.4)
    parked, quick = child(env=points.env), child()
    parked.ask("warm")
    points.arm("files.before-link")
    parked.say("acquire", timeout=0)
    points.wait_reached("files.before-link")

    entered = quick.ask("acquire", timeout=0)
    points.go("files.before-link")
    refused = parked.answer()

    assert entered["fence"] > old
    assert refused["error"] == "NotAcquired"
    assert parked.ask("acquire", timeout=0)["error"] == "NotAcquired"
    quick.ask("release")
    assert parked.ask("acquire", timeout=0)["fence"] > entered["fence"]


@pytest.mark.acceptance("A0-26", "A2-9")
def test_whoever_has_made_its_claim_has_entered_though_it_does_not_know_yet(child, points):
    """Parked behind its claim it is the holder for everybody else, and finds itself to be."""
    die_holding(child)
    parked, quick = child(env=points.env), child()
    parked.ask("warm")
    points.arm("files.after-link")
    parked.say("acquire", timeout=0)
    points.wait_reached("files.after-link")

    refused = quick.ask("acquire", timeout=0)
    points.go("files.after-link")
    entered = parked.answer()

    assert refused["error"] == "NotAcquired"
    assert "fence" in entered


def test_a_sleeper_whose_number_was_used_and_cleared_away_does_not_enter(child, points, sheets):
    """It makes a sheet that nobody reads, takes it away, and asks again: the highest sheet is the truth."""
    die_holding(child)
    sleeper, busy = child(env=points.env), child()
    sleeper.ask("warm")
    points.arm("files.before-link")
    sleeper.say("acquire", timeout=0)
    points.wait_reached("files.before-link")
    before = sheets()
    busy.ask("churn", times=20)
    holding = busy.ask("acquire")
    assert not set(before) & set(sheets()), "the sheets that the sleeper has read are gone"

    points.go("files.before-link")
    refused = sleeper.answer()

    assert refused["error"] == "NotAcquired"
    assert min(sheets()) > max(before), "nothing of the sleeper is left"
    busy.ask("release")
    assert sleeper.ask("acquire", timeout=0)["fence"] > holding["fence"]


@pytest.mark.parametrize("point", ["files.before-birth", "files.before-link", "files.after-link"])
def test_a_process_killed_at_any_step_leaves_the_name_usable_at_once(child, points, connect, point):
    """Before its claim nothing of it is seen; behind it, it is a holder that died."""
    if point != "files.before-birth":
        die_holding(child)
    unlucky = child(env=points.env)
    unlucky.ask("warm")
    points.arm(point)
    unlucky.say("acquire", timeout=5)
    points.wait_reached(point)
    unlucky.worker.kill()
    began = time.monotonic()

    connect().lock("x", ttl=TTL_S).acquire(timeout=10).release()

    assert time.monotonic() - began < TTL_S / 3


@pytest.mark.timeout(900)
@pytest.mark.acceptance("A2-5", "A2-9")
def test_a_process_killed_at_any_line_leaves_the_name_usable_and_nothing_that_stays(start, url):
    """Nobody chose these places. The next one enters at once, under a larger fence; what the dead left is swept.

    `make trials` kills at every single line.
    """
    unlucky = start("lock_killed_at_every_line", url=url, step=STEP)
    *deaths, swept = iter(lambda: json.loads(unlucky.read_line(30)), {"done": True})

    fences = [each["fence"] for each in deaths]
    assert len(deaths) > 100 / STEP
    assert fences == sorted(set(fences))
    assert [each for each in deaths if each["seconds"] > 20] == [], "a dead holder was waited for"
    assert swept == {"left": ["clients", "leases"]}


@pytest.mark.acceptance("A0-25", "A2-5")
def test_a_killed_holder_is_replaced_at_once_and_what_it_left_is_cleared_away(child, connect, shared):
    """The waiter is woken by the death itself, not by the end of the ttl; then nothing is left of the lease."""
    (shared / "data").write_text("kept")
    client = connect(fence_memory=1)
    holder = child()
    holder.ask("acquire", ttl=TTL_S)
    began = time.monotonic()
    os.kill(holder.worker.pid, signal.SIGKILL)

    with client.lock("x", timeout=20):
        took = time.monotonic() - began

    assert took < TTL_S / 3
    eventually(lambda: (client.lock("other").acquire().release(), leases_of(shared) == {"other"})[1], timeout=20)
    assert (shared / "data").read_text() == "kept"


def leases_of(shared):
    return {path.name for path in (shared / ".holdfast" / "leases").iterdir()}


def test_a_draft_of_the_dead_does_not_keep_a_forgotten_name_from_being_used(connect, shared):
    """Killed before its link, it leaves a draft in the folder; the sheets beside it go when nobody needs them."""
    client = connect()
    client.lock("x").acquire().release()
    folder = shared / ".holdfast" / "leases" / "x"
    (folder / ".0123456789abcdef").write_text("{}")
    for sheet in folder.glob("[0-9]*"):
        sheet.unlink()

    with client.lock("x", timeout=0) as lease:
        assert client.show("x").fence == lease.fence


def test_a_name_is_remembered_for_as_long_as_its_last_user_said(connect, shared):
    """A client that wants its own names forgotten soon, such as the tool for people, clears away nobody else's."""
    long, short = connect(fence_memory=60), connect(fence_memory=1)
    long.lock("kept").acquire(timeout=0).release()
    short.lock("gone").acquire(timeout=0).release()

    def swept():
        short.lock("other").acquire(timeout=0).release()
        return "gone" not in leases_of(shared)

    eventually(swept, timeout=20)
    assert "kept" in leases_of(shared)


@pytest.mark.acceptance("A2-10")
def test_a_holder_that_was_stopped_past_its_ttl_is_told_and_harms_nobody(child, connect):
    """SIGSTOP, another takes over, SIGCONT: told as a loss, no crash, and the successor's lease stands."""
    holder, client = child(), connect()
    old = holder.ask("acquire", ttl=0.6)["fence"]
    holder.worker.freeze()
    lease = client.lock("x", timeout=20).acquire()
    holder.worker.thaw()

    told = holder.ask("release")

    assert told["error"] == "LeaseLost"
    assert lease.fence > old
    assert client.show("x").fence == lease.fence
    lease.check()
    lease.release()
    assert holder.ask("acquire", timeout=5)["fence"] > lease.fence


@pytest.mark.acceptance("A2-5")
def test_a_program_that_runs_under_a_lease_keeps_it_when_its_parent_is_killed(child, connect):
    """The orphan still works: the lease is free when the last who has its lifeline is gone."""
    client, parent = connect(), child()
    parent.ask("acquire", ttl=TTL_S)
    orphan = parent.ask("spawn", seconds=60)["pid"]
    os.kill(parent.worker.pid, signal.SIGKILL)
    eventually(lambda: not os.path.exists(f"/proc/{parent.worker.pid}/fd/0"))
    held = client.lock("x").try_acquire()

    os.kill(orphan, signal.SIGKILL)

    assert held is None
    client.lock("x").acquire(timeout=TTL_S / 3).release()


@pytest.mark.acceptance("A2-11")
def test_a_held_lease_shows_that_it_is_alive(connect, sheets, shared):
    """Every renewal is a new sheet: whoever looks at the directory sees the holder live."""
    client = connect()
    with client.lock("x", ttl=0.6):
        first = sheets()[-1]
        eventually(lambda: int(sheets()[-1]) >= int(first) + 3, what="three renewals")
    assert len(sheets()) <= 6, "old sheets are cleared away"


def test_a_broken_lease_is_told_to_a_holder_in_another_process(child, connect):
    """By force and with a reason, as everywhere."""
    holder, client = child(), connect()
    holder.ask("acquire")
    client.break_lease("x", "maintenance")

    told = holder.ask("release")

    assert told["error"] == "LeaseLost"
    assert "maintenance" in told["detail"]
    client.lock("x").acquire(timeout=0).release()
