"""`holdfast ls`, `show`, `watch`, `wait` and `break`: holders and waiters, for people and for programs."""

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
def contended(tool):
    """One holder with two waiters, and another name that the engine only remembers."""
    holder = tool.client(label="worker 7", info={"ticket": 12})
    holder.lock("orders/1").acquire().release()
    lease = holder.lock("orders/42", ttl=5).acquire()
    waiting = []
    for label in ("first", "second"):
        client = tool.client(label=label)
        thread = threading.Thread(target=lambda client=client: client.lock("orders/42").acquire().release())
        thread.start()
        waiting.append(thread)
        eventually(lambda: len(holder.show("orders/42").waiters) == len(waiting), what="a place in the waiting line")
    yield lease
    if not lease.lost:
        lease.release()
    for thread in waiting:
        thread.join()


def test_ls_lists_the_leases_for_people_and_for_programs(tool, contended):
    """`ls` prints one line per name in use, with --all the others too, and only names that begin with the prefix."""
    with tool.client().lock("reports/1"):
        people = tool.inside("ls").out.decode().splitlines()
        everything = tool.inside("ls", "orders/", "--all").out.decode()
        answer = tool.json("ls", "orders/")

    assert people[0].split() == ["name", "holder", "label", "held", "left", "fence", "waiting"]
    assert [line.split()[0] for line in people[1:]] == ["orders/42", "reports/1"]
    assert people[1].split()[-2:] == [str(contended.fence), "2"]
    assert "worker 7" in people[1]
    assert "orders/1 " in everything
    assert "reports" not in everything
    (one,) = answer["names"]
    assert (one["name"], one["held"], one["fence"]) == ("orders/42", True, contended.fence)
    assert (one["holder"]["label"], one["holder"]["info"]) == ("worker 7", {"ticket": 12})
    assert [waiter["label"] for waiter in one["waiters"]] == ["first", "second"]
    assert 0 <= one["since"] < 60
    assert 0 < one["remaining"] <= 5
    assert answer["more"] is False


def test_show_prints_one_name_with_its_waiting_line(tool, contended):
    """`show` prints host, process, label, age, remaining time and fence, and the waiting line in order."""
    people = tool.inside("show", "orders/42").out.decode()
    answer = tool.json("show", "orders/42")
    free = tool.json("show", "orders/1")

    for part in (
        contended.holder.host,
        f"process {contended.holder.pid}",
        "worker 7",
        "ago",
        "unless it is renewed",
        "ticket",
    ):
        assert part in people
    assert people.index("first") < people.index("second")
    assert str(contended.fence) in people
    assert answer["holder"]["pid"] == contended.holder.pid
    assert contended.token not in json.dumps(answer), "a reader of the token could end the lease"
    assert (free["held"], free["holder"], free["waiters"]) == (False, None, [])
    assert free["fence"] > 0
    assert re.search(r"holder +none", tool.inside("show", "orders/1").out.decode())


def test_break_ends_a_lease_with_a_reason_that_its_holder_reads(tool, contended):
    """The fence grows, the next waiter gets the lease, and the holder reads the reason in LeaseLost."""
    answer = tool.json("break", "orders/42", "--reason", "stuck, see ticket 12", "--yes")

    assert answer["broken"]["fence"] == contended.fence
    assert answer["now"]["fence"] > contended.fence
    eventually(lambda: contended.lost, 10, "the holder to learn of it")
    with pytest.raises(LeaseLost, match="stuck, see ticket 12"):
        contended.release()


def test_break_prints_what_it_did(tool):
    """Without a terminal and --yes, or without a lease, it does nothing."""
    with pytest.raises(LeaseLost), tool.client().lock("x") as lease:
        unasked = tool("break", "x", "--reason", "because")
        closed = tool("break", "x", "--reason", "because", preexec_fn=lambda: os.close(0))
        lease.check()
        done = tool.inside("break", "x", "--reason", "because", "--yes")
        raise ValueError("the work of the holder")
    again = tool.inside("break", "x", "--reason", "because", "--yes")

    assert (unasked.code, closed.code) == (64, 64)
    assert b"--yes" in unasked.err
    assert (done.code, done.err) == (0, b"")
    line = done.out.decode()
    assert f"fence {lease.fence} is broken" in line
    assert float(re.search(r"when it renews, within ([0-9.]+)s$", line)[1]) <= 10, "a third of its ttl"
    assert (again.code, again.out) == (66, b"")


def test_wait_ends_when_the_name_is_free(tool):
    """`wait` takes no lease and joins no waiting line; after the timeout it names the holder."""
    lease = tool.client(label="worker 7").lock("x").acquire()
    late = tool.inside("wait", "x", "--timeout", "0.2")
    answer = json.loads(tool.inside("wait", "x", "--timeout", "0", "--json").err)
    answer["waited"] = int(answer["waited"])
    waiting = tool.start("wait", "x", "--interval", "0.1", "--json")
    time.sleep(0.3)
    assert waiting.process.poll() is None
    assert not tool.client().show("x").waiters
    lease.release()
    waiting.end()
    people = tool.inside("wait", "x")

    assert (late.code, late.out) == (75, b"")
    assert re.fullmatch(rb"holdfast: after 0.2s 'x' is still held by .*\(worker 7\), .*\n", late.err)
    assert (answer["outcome"], answer["code"], answer["name"], answer["waited"]) == ("busy", 75, "x", 0)
    assert answer["holder"].endswith("(worker 7)")
    assert answer["holder_fence"] == lease.fence
    assert waiting.code == 0
    assert json.loads(waiting.out)["free"] is True
    assert people.out.startswith(b"'x' is free, after ")


def test_watch_without_a_terminal_prints_one_snapshot_after_the_other(tool):
    """A log gets plain lines, a program gets one JSON object per line."""
    with tool.client(label="worker 7").lock("x"):
        people = tool.inside("watch", "--count", "2", "--interval", "0.1")
        lines = tool.inside("watch", "--count", "2", "--interval", "0.1", "--json").out.splitlines()

    assert people.code == 0
    assert people.out.count(b"1 held, 0 waiting") == 2
    assert b"\x1b" not in people.out
    first, second = map(json.loads, lines)
    assert [one["name"] for one in first["names"]] == ["x"]
    assert second["at"] > first["at"]


def test_watch_continues_while_the_engine_is_unreachable(tool):
    """People watch during outages. Unknown names are not shown as free; if the first query fails, the command fails."""
    tool.client().show("x")
    watched = tool.start("watch", "--interval", "0.1", "--json", stdout=subprocess.PIPE)
    people = tool.start("watch", "--interval", "0.1")

    def state(line):
        snapshot = json.loads(line)
        return snapshot.get("error", "") != "", snapshot["more"], snapshot["names"]

    assert state(watched.process.stdout.readline()) == (False, False, [])
    assert b"0 held" in people.process.stdout.readline()
    with tool.place.unusable():
        assert any(state(line) == (True, True, []) for line in watched.process.stdout)
        assert any(b"unreachable since" in line for line in people.process.stdout)
        first = tool("watch")
    assert any(state(line) == (False, False, []) for line in watched.process.stdout)
    assert any(b"0 held" in line for line in people.process.stdout)
    for one in (watched, people):
        one.send(signal.SIGINT)
        assert one.end().code == 0
    assert first.code == 69


def test_names_are_printed_as_plain_text(tool):
    """Any user may choose a name: it must not clear the screen, colour it, or look like another name."""
    names = ["a*b", "a?b", "a[c]b", "axb", "a\\b", "a{1}c", "a%7Db", "[red]loud[/red]", "\x1b[2J", "ünï/✓", "a b"]
    client = tool.client()
    leases = [client.lock(name).acquire() for name in names]
    try:
        answer = tool.json("ls")
        people = tool.inside("ls").out.decode()
        found = {
            prefix: [one["name"] for one in tool.json("ls", prefix)["names"]] for prefix in ("a*", "a{1}", "[red]")
        }
    finally:
        for lease in leases:
            lease.release()

    with tool.client(label="\x1b[2J").lock("x"):
        busy = tool("run", "x", "--timeout", "0", "--", "true"), tool.inside("wait", "x", "--timeout", "0")

    assert [one.code for one in busy] == [75, 75]
    assert all(b"\\x1b[2J" in one.err and b"\x1b" not in one.err for one in busy)
    assert sorted(one["name"] for one in answer["names"]) == sorted(names)
    assert "\x1b" not in people
    assert "\\x1b[2J" in people
    assert "[red]loud[/red]" in people
    assert found == {"a*": ["a*b"], "a{1}": ["a{1}c"], "[red]": ["[red]loud[/red]"]}


def test_ls_says_when_its_list_is_cut(tool):
    """A reader must not take a part for the whole."""
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


def test_remembered_names_do_not_hide_a_held_one(tool):
    """The limit counts the names that are shown: people who read "nothing is held" restart services."""
    client = tool.client()
    for number in range(1001):
        client.lock(f"jobs/{number:04}").acquire().release()
    with client.lock("zzz/important"):
        answer, people = tool.json("ls"), tool.inside("ls")
        watched = json.loads(tool.inside("watch", "--count", "1", "--json").out)
        one = tool.json("ls", "--limit", "1")
        everything = tool.json("ls", "--all", "--limit", "1001")

    for listed in (answer, watched, one):
        assert ([name["name"] for name in listed["names"]], listed["more"]) == (["zzz/important"], False)
    assert b"zzz/important" in people.out
    assert (len(everything["names"]), everything["more"]) == (1001, True)


def test_ls_says_nothing_is_held_only_after_a_complete_scan(local, monkeypatch):
    """Names beyond the scan may be held."""
    monkeypatch.setattr("holdfast.core.inspection.REMEMBERED_MAX", 5)
    client = local.client()
    for number in range(6):
        client.lock(f"jobs/{number}").acquire().release()
    part, whole = local.inside("ls", "--limit", "5"), local.inside("ls", "--limit", "6")

    assert (part.out, part.code) == (b"", 0)
    assert b"more names than the scan looked at" in part.err
    assert (whole.out, whole.err) == (b"nothing is held\n", b"")


def test_commands_that_only_look_create_no_file(local, tmp_path):
    """A typing error in a path is an error, not an empty engine: a script would continue, and find a new directory."""
    url = f"sqlite://{tmp_path}/typo/x.db"
    done = {
        command[0]: local.inside(*command, "--url", url)
        for command in (("ls",), ("show", "x"), ("watch",), ("wait", "x"), ("break", "x", "--reason", "y", "--yes"))
    }
    doctor = local.inside("doctor", "--url", url)
    home = local.inside("ls", env={"HOLDFAST_URL": ""})

    assert {name: one.code for name, one in done.items()} == dict.fromkeys(done, 69)
    assert all(b"no such file" in one.err and b"--url" in one.err for one in done.values())
    assert doctor.code == 2
    assert b"no such file" in doctor.out
    assert not (tmp_path / "typo").exists()
    assert home.out == b"nothing is held\n", "the default path cannot be misspelt"


def test_a_closed_pipe_is_no_error_and_a_full_disk_is_reported(local):
    """`holdfast ls | head -1` prints one line and no traceback, also if the reader is gone before it starts."""
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


def test_commands_that_look_into_a_shared_directory_create_nothing_and_give_advice(local, tmp_path):
    """A typing error in the path is reported; a directory without leases is not shown as one where nothing is held."""
    folder = tmp_path / "shared"
    folder.mkdir()

    done = [local.inside(*command, "--url", f"file://{folder}") for command in (("ls",), ("doctor",), ("watch",))]
    away = local.inside("ls", "--url", f"file://{folder}/away")
    others = {
        command[0]: local.inside(*command, "--url", f"file://{folder}")
        for command in (("queue", "ls"), ("pool", "ls"), ("dlq", "ls", "q"), ("registry", "ls", "d"))
    }

    assert [one.code for one in done] == [69, 2, 69]
    assert all(b"no lease was taken in this directory yet" in one.err + one.out for one in done)
    assert all(b"holdfast run NAME" in one.err + one.out for one in done)
    assert (away.code, b"is the volume mounted" in away.err) == (69, True)
    assert {name: one.code for name, one in others.items()} == dict.fromkeys(others, 64)
    assert all(b"sqlite:// has them" in one.err for one in others.values())
    assert list(folder.iterdir()) == []


def test_ls_does_not_list_the_keys_of_registries(tool):
    """`registry ls` lists them under their own names; the internal form of the names appears nowhere."""
    client = tool.client()
    with client.registry("conv", ttl=5).claim("k42"), client.lock("conv"), client.lock("conv/1"):
        answer = tool.json("ls", "--all")
        people = tool.inside("ls", "conv").out.decode()

    assert [one["name"] for one in answer["names"]] == ["conv", "conv/1"]
    assert "k42" not in people


def test_pools_semaphores_and_read_write_locks_are_listed_too(tool):
    """A permit, a writer and an item are leases too. `wait` waits for them, and `break` does not guess one of them."""
    client = tool.client()
    pool = client.pool("channels", on_death=0)
    pool.set_items(["a", "b"])
    permit, writer, item = client.semaphore("gpu", 4).acquire(), client.rwlock("idx").write().acquire(), pool.borrow()

    rows = [line.split() for line in tool.inside("ls").out.decode().splitlines()]
    assert rows == [
        ["name", "kind", "taken", "of", "waiting"],
        ["channels", "pool", "1", "2"],
        ["gpu", "semaphore", "1", "4"],
        ["idx", "read-write", "lock", "1"],
    ]
    assert tool.json("ls", "g")["pool_like"] == [
        {"name": "gpu", "kind": "semaphore", "taken": 1, "of": 4, "waiting": 0}
    ]
    assert "none" not in tool.inside("show", "gpu").out.decode()
    assert tool.json("show", "idx")["pool_like"] == [
        {"name": "idx", "kind": "read-write lock", "taken": 1, "of": None, "waiting": 0}
    ]
    watched = tool.inside("watch", "--count", "1").out.decode().splitlines()
    assert "  0 held, 3 items and permits taken, 0 waiting  " in watched[0]
    assert [line.split() for line in watched[2:]] == rows
    snapshots = tool.inside("watch", "--count", "2", "--interval", "0.1", "--json").out.splitlines()
    assert [[one["name"] for one in json.loads(line)["pool_like"]] for line in snapshots] == [
        ["channels", "gpu", "idx"]
    ] * 2
    busy = tool.inside("wait", "gpu", "--timeout", "0")
    assert (busy.code, "it is a semaphore: 1 of 4 taken, 0 waiting" in busy.err.decode()) == (75, True)
    refused = tool.inside("break", "idx", "--reason", "x", "--yes")
    assert (refused.code, "it is a read-write lock: 1 inside" in refused.err.decode()) == (64, True)
    assert "holdfast pool break" in tool.inside("break", "channels", "--reason", "x", "--yes").err.decode()

    for held in (permit, writer, item):
        held.release()
    assert [tool.inside("wait", name, "--timeout", "5").code for name in ("gpu", "idx", "channels")] == [0, 0, 0]
    assert tool.inside("ls").out.decode().startswith("nothing is held")
    pool.set_items([])
