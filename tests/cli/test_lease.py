"""Who holds what, for people and for programs: `ls`, `show`, `watch`, `wait`, `break`."""

import json
import os
import re
import signal
import subprocess
import threading
import time

import pytest
from cli_tool import HOLDFAST, eventually

from holdfast import LeaseLost


@pytest.fixture
def queue(tool):
    """One holder, two who wait for it, and another name that is only remembered."""
    holder = tool.client(label="worker 7", info={"ticket": 12})
    holder.lock("orders/1").acquire().release()
    lease = holder.lock("orders/42", ttl=5).acquire()
    waiting = []
    for label in ("first", "second"):
        client = tool.client(label=label)
        thread = threading.Thread(target=lambda client=client: client.lock("orders/42").acquire().release())
        thread.start()
        waiting.append(thread)
        eventually(lambda: len(holder.show("orders/42").waiters) == len(waiting), what="a place in the queue")
    yield lease
    if not lease.lost:
        lease.release()
    for thread in waiting:
        thread.join()


def test_what_is_held_is_listed_for_people_and_for_programs(tool, queue):
    """One line per name that matters; the others on request. Only what begins as asked for."""
    with tool.client().lock("reports/1"):
        people = tool.inside("ls").out.decode().splitlines()
        everything = tool.inside("ls", "orders/", "--all").out.decode()
        told = tool.json("ls", "orders/")

    assert people[0].split() == ["name", "holder", "label", "held", "left", "fence", "waiting"]
    assert [line.split()[0] for line in people[1:]] == ["orders/42", "reports/1"]
    assert people[1].split()[-2:] == [str(queue.fence), "2"]
    assert "worker 7" in people[1]
    assert "orders/1 " in everything
    assert "reports" not in everything
    (one,) = told["names"]
    assert (one["name"], one["held"], one["fence"]) == ("orders/42", True, queue.fence)
    assert (one["holder"]["label"], one["holder"]["info"]) == ("worker 7", {"ticket": 12})
    assert [waiter["label"] for waiter in one["waiters"]] == ["first", "second"]
    assert 0 <= one["since"] < 60
    assert 0 < one["remaining"] <= 5
    assert told["more"] is False


def test_one_name_is_shown_with_everybody_who_waits(tool, queue):
    """Host, process, label, since when, how much longer, under which fence; and the queue, in order."""
    people = tool.inside("show", "orders/42").out.decode()
    told = tool.json("show", "orders/42")
    free = tool.json("show", "orders/1")

    for part in (queue.holder.host, f"process {queue.holder.pid}", "worker 7", "ago", "unless it is renewed", "ticket"):
        assert part in people
    assert people.index("first") < people.index("second")
    assert str(queue.fence) in people
    assert told["holder"]["pid"] == queue.holder.pid
    assert queue.token not in json.dumps(told), "whoever has the token could end the lease"
    assert (free["held"], free["holder"], free["waiters"]) == (False, None, [])
    assert free["fence"] > 0
    assert "nobody" in tool.inside("show", "orders/1").out.decode()


def test_a_lease_is_broken_with_a_reason_and_its_holder_reads_it(tool, queue):
    """The way out: the fence grows, the next in line has it, and whoever held it is told why."""
    told = tool.json("break", "orders/42", "--reason", "stuck, see ticket 12", "--yes")

    assert told["broken"]["fence"] == queue.fence
    assert told["now"]["fence"] > queue.fence
    eventually(lambda: queue.lost, 10, "the holder to hear of it")
    with pytest.raises(LeaseLost, match="stuck, see ticket 12"):
        queue.release()


def test_breaking_tells_people_what_it_did(tool):
    """And where there is nobody to ask and nothing to break, nothing is done."""
    with pytest.raises(LeaseLost), tool.client().lock("x") as lease:
        unasked = tool("break", "x", "--reason", "because")
        closed = tool("break", "x", "--reason", "because", preexec_fn=lambda: os.close(0))
        lease.check()
        done = tool.inside("break", "x", "--reason", "because", "--yes")
        raise ValueError("its holder would go on")
    again = tool.inside("break", "x", "--reason", "because", "--yes")

    assert (unasked.code, closed.code) == (64, 64)
    assert b"--yes" in unasked.err
    assert (done.code, done.err) == (0, b"")
    line = done.out.decode()
    assert f"fence {lease.fence} is broken" in line
    assert float(re.search(r"when it renews, within ([0-9.]+)s if it is well$", line)[1]) <= 10, "a third of its ttl"
    assert (again.code, again.out) == (66, b"")


def test_waiting_ends_when_the_name_is_free(tool):
    """`wait` takes nothing and is in nobody's way; a timeout tells who held it."""
    lease = tool.client(label="worker 7").lock("x").acquire()
    late = tool.inside("wait", "x", "--timeout", "0.2")
    told = json.loads(tool.inside("wait", "x", "--timeout", "0", "--json").err)
    told["waited"] = int(told["waited"])
    waiting = tool.start("wait", "x", "--interval", "0.1", "--json")
    time.sleep(0.3)
    assert waiting.process.poll() is None
    assert not tool.client().show("x").waiters
    lease.release()
    waiting.end()
    people = tool.inside("wait", "x")

    assert (late.code, late.out) == (75, b"")
    assert re.fullmatch(rb"holdfast: after 0.2s 'x' is still held by .*\(worker 7\), .*\n", late.err)
    assert (told["outcome"], told["code"], told["name"], told["waited"]) == ("busy", 75, "x", 0)
    assert told["holder"].endswith("(worker 7)")
    assert told["holder_fence"] == lease.fence
    assert waiting.code == 0
    assert json.loads(waiting.out)["free"] is True
    assert people.out.startswith(b"nobody holds 'x'")


def test_watching_without_a_terminal_prints_one_look_after_the_other(tool):
    """A log gets lines, a program gets one JSON object per line."""
    with tool.client(label="worker 7").lock("x"):
        people = tool.inside("watch", "--count", "2", "--interval", "0.1")
        lines = tool.inside("watch", "--count", "2", "--interval", "0.1", "--json").out.splitlines()

    assert people.code == 0
    assert people.out.count(b"1 held, 0 waiting") == 2
    assert b"\x1b" not in people.out
    first, second = map(json.loads, lines)
    assert [one["name"] for one in first["names"]] == ["x"]
    assert second["at"] > first["at"]


def test_a_watch_goes_on_while_the_engine_is_away(tool):
    """That is when people watch. What cannot be seen is not told as free; a first look in vain is an error."""
    tool.client().show("x")
    watching = tool.start("watch", "--interval", "0.1", "--json", stdout=subprocess.PIPE)
    people = tool.start("watch", "--interval", "0.1")

    def told(line):
        seen = json.loads(line)
        return seen.get("error", "") != "", seen["more"], seen["names"]

    assert told(watching.process.stdout.readline()) == (False, False, [])
    assert b"0 held" in people.process.stdout.readline()
    with tool.place.unusable():
        assert any(told(line) == (True, True, []) for line in watching.process.stdout)
        assert any(b"unreachable since" in line for line in people.process.stdout)
        first = tool("watch")
    assert any(told(line) == (False, False, []) for line in watching.process.stdout)
    assert any(b"0 held" in line for line in people.process.stdout)
    for one in (watching, people):
        one.send(signal.SIGINT)
        assert one.end().code == 0
    assert first.code == 69


def test_names_are_shown_as_text_and_nothing_else(tool):
    """A name is anybody's: it must not clear the screen, colour it, or look like another one."""
    names = ["a*b", "a?b", "a[c]b", "axb", "a\\b", "a{b}c", "a%7Db", "[red]loud[/red]", "\x1b[2J", "ünï/✓", "a b"]
    client = tool.client()
    leases = [client.lock(name).acquire() for name in names]
    try:
        told = tool.json("ls")
        people = tool.inside("ls").out.decode()
        found = {
            prefix: [one["name"] for one in tool.json("ls", prefix)["names"]] for prefix in ("a*", "a{b}", "[red]")
        }
    finally:
        for lease in leases:
            lease.release()

    with tool.client(label="\x1b[2J").lock("x"):
        busy = tool("run", "x", "--timeout", "0", "--", "true"), tool.inside("wait", "x", "--timeout", "0")

    assert [one.code for one in busy] == [75, 75]
    assert all(b"\\x1b[2J" in one.err and b"\x1b" not in one.err for one in busy)
    assert sorted(one["name"] for one in told["names"]) == sorted(names)
    assert "\x1b" not in people
    assert "\\x1b[2J" in people
    assert "[red]loud[/red]" in people
    assert found == {"a*": ["a*b"], "a{b}": ["a{b}c"], "[red]": ["[red]loud[/red]"]}


def test_a_list_that_is_cut_says_so(tool):
    """Nobody should take a part for the whole."""
    client = tool.client()
    leases = [client.lock(f"x/{number:03}").acquire() for number in range(12)]
    try:
        cut, people = tool.json("ls", "--limit", "5"), tool.inside("ls", "--limit", "5")
        whole = tool.json("ls", "--limit", "12")
    finally:
        for lease in leases:
            lease.release()

    assert (len(cut["names"]), cut["more"]) == (5, True)
    assert b"more than 5 names" in people.err
    assert (len(whole["names"]), whole["more"]) == (12, False)


def test_names_that_are_only_remembered_do_not_hide_one_that_is_held(tool):
    """The limit counts what is shown: whoever reads "nothing is held" goes and restarts things."""
    client = tool.client()
    for number in range(1001):
        client.lock(f"jobs/{number:04}").acquire().release()
    with client.lock("zzz/important"):
        told, people = tool.json("ls"), tool.inside("ls")
        watched = json.loads(tool.inside("watch", "--count", "1", "--json").out)
        one = tool.json("ls", "--limit", "1")
        everything = tool.json("ls", "--all", "--limit", "1001")

    for seen in (told, watched, one):
        assert ([name["name"] for name in seen["names"]], seen["more"]) == (["zzz/important"], False)
    assert b"zzz/important" in people.out
    assert (len(everything["names"]), everything["more"]) == (1001, True)


def test_nothing_is_held_is_said_only_by_who_has_seen_it_all(local, monkeypatch):
    """Names beyond what was looked at may be held."""
    monkeypatch.setattr("holdfast.core.inspection.REMEMBERED_MAX", 5)
    client = local.client()
    for number in range(6):
        client.lock(f"jobs/{number}").acquire().release()
    part, whole = local.inside("ls", "--limit", "5"), local.inside("ls", "--limit", "6")

    assert (part.out, part.code) == (b"", 0)
    assert b"more names than were looked at" in part.err
    assert (whole.out, whole.err) == (b"nothing is held\n", b"")


def test_whoever_looks_makes_no_file(local, tmp_path):
    """A slip in a path is not a place where nothing is held: a script would go on, and find a new directory."""
    url = f"sqlite://{tmp_path}/typo/x.db"
    done = {
        words[0]: local.inside(*words, "--url", url)
        for words in (("ls",), ("show", "x"), ("watch",), ("wait", "x"), ("break", "x", "--reason", "y", "--yes"))
    }
    doctor = local.inside("doctor", "--url", url)
    home = local.inside("ls", env={"HOLDFAST_URL": ""})

    assert {name: one.code for name, one in done.items()} == dict.fromkeys(done, 69)
    assert all(b"no such file" in one.err and b"--url" in one.err for one in done.values())
    assert doctor.code == 2
    assert b"no such file" in doctor.out
    assert not (tmp_path / "typo").exists()
    assert home.out == b"nothing is held\n", "nobody named that file, so nobody misspelt it"


def test_a_reader_that_has_seen_enough_is_no_error_of_ours(local):
    """`holdfast ls | head -1` prints one line and no traceback, and neither does one whose reader is gone already.

    A disk that is full is no mistake of ours, either, but one that has to be told.
    """
    command = f"{' '.join(HOLDFAST)} ls --json | head -n 1"
    pipe = subprocess.run(["/bin/bash", "-c", command], env=local.environ, capture_output=True, check=True)
    reads, writes = os.pipe()
    os.close(reads)
    gone = local("ls", "--json", stdout=writes)
    os.close(writes)

    with open("/dev/full", "wb") as full:
        unwritten = local("ls", "--json", stdout=full)

    assert (unwritten.code, json.loads(unwritten.err)["outcome"]) == (74, "failed")
    assert b"No space left" in unwritten.err
    assert (pipe.stdout, pipe.stderr) == (b"{\n", b"")
    assert (gone.code, gone.err) == (128 + signal.SIGPIPE, b"")


def test_whoever_looks_into_a_shared_directory_makes_nothing_there_and_hears_what_to_do(local, tmp_path):
    """A slip in the path is told; it is not a place where nothing is held. Nor is it a place for queues, later on."""
    folder = tmp_path / "shared"
    folder.mkdir()

    done = [local.inside(*words, "--url", f"file://{folder}") for words in (("ls",), ("doctor",), ("watch",))]
    away = local.inside("ls", "--url", f"file://{folder}/away")
    others = {
        words[0]: local.inside(*words, "--url", f"file://{folder}")
        for words in (("queue", "ls"), ("pool", "ls"), ("dlq", "ls", "q"), ("directory", "ls", "d"))
    }

    assert [one.code for one in done] == [69, 2, 69]
    assert all(b"nobody has taken a lease in this directory yet" in one.err + one.out for one in done)
    assert all(b"holdfast run NAME" in one.err + one.out for one in done)
    assert (away.code, b"is the volume mounted" in away.err) == (69, True)
    assert {name: one.code for name, one in others.items()} == dict.fromkeys(others, 64)
    assert all(b"sqlite:// has them" in one.err for one in others.values())
    assert list(folder.iterdir()) == []


def test_keys_of_directories_are_no_names_of_leases(tool):
    """They are shown by `directory ls`, under their own names, and nowhere in a form that is ours alone."""
    client = tool.client()
    with client.registry("conv", ttl=5).claim("k42"), client.lock("conv"), client.lock("conv/1"):
        told = tool.json("ls", "--all")
        people = tool.inside("ls", "conv").out.decode()

    assert [one["name"] for one in told["names"]] == ["conv", "conv/1"]
    assert "k42" not in people


def test_what_many_may_have_is_not_told_as_free(tool):
    """A seat, a side and an item are held too. `wait` waits for them, and `break` does not guess which is meant."""
    client = tool.client()
    pool = client.pool("channels", on_death=0)
    pool.set_items(["a", "b"])
    seat, side, item = client.semaphore("gpu", 4).acquire(), client.rwlock("idx").write().acquire(), pool.borrow()

    rows = [line.split() for line in tool.inside("ls").out.decode().splitlines()]
    assert rows == [
        ["name", "kind", "taken", "of", "waiting"],
        ["channels", "pool", "1", "2"],
        ["gpu", "semaphore", "1", "4"],
        ["idx", "read-write", "lock", "1"],
    ]
    assert tool.json("ls", "g")["many"] == [{"name": "gpu", "kind": "semaphore", "taken": 1, "of": 4, "waiting": 0}]
    assert "nobody" not in tool.inside("show", "gpu").out.decode()
    assert tool.json("show", "idx")["many"] == [
        {"name": "idx", "kind": "read-write lock", "taken": 1, "of": None, "waiting": 0}
    ]
    watched = tool.inside("watch", "--count", "1").out.decode().splitlines()
    assert "  0 held, 3 taken of many, 0 waiting  " in watched[0]
    assert [line.split() for line in watched[2:]] == rows
    looks = tool.inside("watch", "--count", "2", "--interval", "0.1", "--json").out.splitlines()
    assert [[one["name"] for one in json.loads(look)["many"]] for look in looks] == [["channels", "gpu", "idx"]] * 2
    busy = tool.inside("wait", "gpu", "--timeout", "0")
    assert (busy.code, "it is a semaphore: 1 of 4 taken, 0 waiting" in busy.err.decode()) == (75, True)
    refused = tool.inside("break", "idx", "--reason", "x", "--yes")
    assert (refused.code, "it is a read-write lock: 1 inside" in refused.err.decode()) == (64, True)
    assert "holdfast pool break" in tool.inside("break", "channels", "--reason", "x", "--yes").err.decode()

    for held in (seat, side, item):
        held.release()
    assert [tool.inside("wait", name, "--timeout", "5").code for name in ("gpu", "idx", "channels")] == [0, 0, 0]
    assert tool.inside("ls").out.decode().startswith("nothing is held")
    pool.set_items([])
