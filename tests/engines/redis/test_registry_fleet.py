"""Registries of several real processes on one real server: killed, frozen, stopped, and the server itself away."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast
from holdfast.testing import eventually

# A minute in `make matrix`; here, as long as it takes to see two refreshes.
LIVES_S = 60 if os.environ.get("HOLDFAST_GROUPS") == "all" else 8
OWNING = Path(__file__).with_name("registry_owner.py")


class Owning:
    """One process that claims entries."""

    def __init__(self, url, label, ttl=2.0):
        command = [sys.executable, str(OWNING), url, label, str(ttl)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.label = label

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def do(self, deed, **options):
        self.process.stdin.write(json.dumps({"deed": deed, **options}) + "\n")
        self.process.stdin.flush()
        return self.hear()

    def send(self, number):
        os.kill(self.process.pid, number)

    def stop(self):
        """Stop the process gracefully."""
        self.process.stdin.close()
        assert self.process.wait(30) == 0


@pytest.fixture
def fleet():
    started = []

    def start(url, count, ttl=2.0):
        servers = [Owning(url, f"server {n}", ttl) for n in range(len(started), len(started) + count)]
        started.extend(servers)
        assert [server.hear()["ready"] for server in servers] == [server.label for server in servers]
        return servers

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()
        for pipe in (server.process.stdin, server.process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def people(one_server):
    """A client that only reads."""
    with holdfast.connect(one_server.url) as hf:
        yield hf.registry("conversations", ttl=2.0)


@pytest.mark.acceptance("A4-1")
def test_of_ten_processes_that_claim_one_entry_one_gets_it(one_server, fleet):
    """The others learn the owner, and that its lease lasts no longer than its ttl."""
    servers = fleet(one_server.url, 10, ttl=15)

    with ThreadPoolExecutor(10) as threads:
        told = list(threads.map(lambda server: server.do("claim", key="42"), servers))

    (winner,) = [at for at, each in enumerate(told) if "owner" not in each]
    others = [each for at, each in enumerate(told) if at != winner]
    assert {each["owner"] for each in others} == {servers[winner].label}
    assert {each["fence"] for each in others} == {told[winner]["fence"]}
    assert all(0 < each["remaining"] <= 15 for each in told)


@pytest.mark.acceptance("A4-2")
def test_a_live_owner_is_renewed_long_before_its_ttl_ends(one_server, fleet, people):
    """Renewed about every five seconds of fifteen: so two renewals may fail."""
    (first,) = fleet(one_server.url, 1, ttl=15)
    fence = first.do("claim", key="42")["fence"]

    seen = []
    began = time.monotonic()
    while time.monotonic() - began < LIVES_S:
        seen.append(people.owner("42"))
        time.sleep(0.1)

    assert {each.fence for each in seen} == {fence}
    assert min(each.remaining for each in seen) >= 9
    assert max(each.remaining for each in seen) <= 15
    refreshed = sum(after.remaining > before.remaining for before, after in itertools.pairwise(seen))
    assert LIVES_S // 6 <= refreshed <= LIVES_S // 4


@pytest.mark.acceptance("A4-3")
def test_a_killed_owner_is_replaced_by_exactly_one_other(one_server, fleet, people):
    """Its ttl is the bound."""
    first, *others = fleet(one_server.url, 4, ttl=15)
    began = first.do("claim", key="42")["fence"]

    first.send(signal.SIGKILL)
    first.process.wait()
    killed = time.monotonic()
    with ThreadPoolExecutor(3) as threads:
        told = list(threads.map(lambda server: server.do("claim", key="42"), others))

    assert sum("owner" not in each for each in told) == 1
    assert time.monotonic() - killed < 10, "the lease itself would have lasted for fifteen seconds"
    assert people.owner("42").fence > began


@pytest.mark.acceptance("A4-4")
def test_a_frozen_owner_that_wakes_up_learns_that_it_was_replaced(one_server, fleet, people):
    """Its renewal is refused: there are never two owners for longer than a renewal period."""
    first, second = fleet(one_server.url, 2)
    began = first.do("claim", key="42")["fence"]

    first.send(signal.SIGSTOP)
    assert second.do("claim", key="42")["owner"] == first.label, "frozen is not dead"
    eventually(lambda: "owner" not in second.do("claim", key="42"), 20, "a lapsed lease")
    first.send(signal.SIGCONT)
    eventually(lambda: first.do("look")["lost"], 10, "word of the loss")

    assert first.do("look") == {"owned": [], "lost": ["conversations/42"]}
    assert second.do("look")["owned"] == ["42"]
    assert people.owner("42").owner.label == second.label
    assert people.owner("42").fence > began
    assert [each.key for each in people.list()] == ["42"]


@pytest.mark.acceptance("A4-8")
def test_three_processes_claim_more_than_a_limit_and_the_limit_holds(one_server, fleet, people):
    """Each claim counts and claims in one step, in processes that do not know of each other."""
    servers = fleet(one_server.url, 3)

    def start(number):
        return servers[number % 3].do("claim", key=str(number), group="ann", limit=4)

    with ThreadPoolExecutor(3) as threads:
        told = [
            each for part in threads.map(lambda n: [start(n), start(n + 3), start(n + 6)], range(3)) for each in part
        ]

    assert sum("fence" in each for each in told) == 4
    assert sum("refused" in each for each in told) == 5
    assert len(people.list(group="ann")) == 4


@pytest.mark.acceptance("A4-10")
def test_a_process_that_stops_releases_its_entries_and_watchers_see_it(one_server, fleet, people):
    """No entry waits for a ttl; a watcher gets an event, and another process serves the client."""
    first, second = fleet(one_server.url, 2, ttl=15)
    assert "owner" not in first.do("claim", key="42")
    changes = people.watch(interval=0.05)
    assert next(changes).kind == "claimed"

    first.stop()

    change = next(changes)
    assert (change.kind, change.key, change.before.owner.label) == ("released", "42", first.label)
    assert "owner" not in second.do("claim", key="42")
    change = next(changes)
    assert (change.kind, change.now.owner.label) == ("claimed", second.label)


@pytest.mark.acceptance("A4-7")
def test_an_outage_of_ten_seconds_ends_claims_cleanly_and_starts_nothing_twice(new_server, fleet):
    """Owners learn it within their ttl, claims fail closed, commands are few; afterwards one of them owns it again."""
    server = new_server()
    first, second = fleet(server.url, 2)
    began = first.do("claim", key="42")["fence"]

    server.kill()
    down = time.monotonic()
    eventually(lambda: first.do("look")["lost"], 10, "word of the loss")
    refused = []
    while time.monotonic() - down < 10:
        refused += [owner.do("claim", key="42") for owner in (first, second)]
        time.sleep(0.2)
    server.start()
    before = asked(server)
    told = [owner.do("claim", key="42") for owner in (first, second)]
    time.sleep(2)

    assert all("unavailable" in each for each in refused)
    assert sum("owner" not in each for each in told) == 1
    assert next(each["fence"] for each in told if "owner" not in each) > began
    assert [owner.do("look")["owned"] for owner in (first, second)].count(["42"]) == 1
    assert asked(server) - before < 100, "a busy loop would have asked thousands of times"


def asked(server):
    lines = server.command("INFO", "stats").decode().splitlines()
    return int(next(line for line in lines if line.startswith("total_commands_processed:")).split(":")[1])


@pytest.mark.acceptance("A4-20")
def test_a_list_is_right_and_scans_nothing_however_many_keys_others_have(one_server, people):
    """Ten thousand keys of other programs and a thousand of another registry: an index answers in one command."""
    pairs = [word for n in range(10_000) for word in (f"foreign:{n}", "1")]
    one_server.command("MSET", *pairs)
    try:
        with holdfast.connect(one_server.url) as hf:
            mine = [hf.registry("conversations").claim(f"{n:03}", group="ann") for n in range(100)]
            others = [hf.registry("others").claim(str(n)) for n in range(300)]
            people.list()  # opens its connection
            before = stats(one_server)
            found = people.list()
            after = stats(one_server)
            assert [each.key for each in found] == [f"{n:03}" for n in range(100)]
            assert len(people.list(group="ann")) == 100
            assert {name: after[name] - before.get(name, 0) for name in after} == {
                **dict.fromkeys(after, 0), "evalsha": 1, "time": 1, "zrangebylex": 1, "get": 100, "info": 1,
            }  # fmt: skip
            for lease in (*mine, *others):
                lease.release()
    finally:
        one_server.command("DEL", *pairs[::2])


def stats(server):
    lines = server.command("INFO", "commandstats").decode().splitlines()
    calls = [line.removeprefix("cmdstat_").split(":calls=") for line in lines if line.startswith("cmdstat_")]
    return {name: int(rest.split(",")[0]) for name, rest in calls}
