"""`doctor` and `bench`: what an engine is worth, from where you stand."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_tool import Served, Tool

import holdfast
from holdfast.testing.servers import Server, available, missing
from tests.support.clusters import Cluster

KIND = "valkey" if "valkey" in available() else next(iter(available()), None)
ROOT = Path(__file__).resolve().parents[2]
NEEDED = ["~hf1:*", "resetchannels", "&hf1:wake:*", "+@all", "-@admin"]


@pytest.fixture
def served(tmp_path):
    """A server of this test alone, to be put out of order."""
    if KIND is None:
        pytest.skip(missing())
    with Server(KIND) as server, Tool(Served(server), tmp_path) as tool:
        yield tool


def people(tool, *words, **options):
    done = tool.inside("doctor", *words, **options)
    return done.code, done.out.decode()


def test_a_healthy_engine_is_told_with_its_promise(tool):
    """Version, promise and round trip; and exit code 0 for whoever monitors it."""
    code, text = people(tool)
    told = tool.json("doctor")
    promise = tool.client().promise()

    assert code == 0
    assert "all is well" in text
    assert str(promise) in text
    assert told["promise"]["limits"] == [limit._asdict() for limit in promise.limits]
    assert told["promise"]["scope"] == promise.scope
    assert (told["findings"], told["notes"], told["code"]) == ([], [], 0)
    assert told["version"] == holdfast.__version__
    figures = ("round_trip_ms", "round_trip_worst_ms", "lease_ms", "handed_to_thread_ms", "handed_to_task_ms")
    assert all(told["facts"][figure] > 0 for figure in figures), "a program wants figures, not prose"
    assert told["facts"]["engine"].split()[0].lower() in text.lower()


def test_what_would_make_the_promise_stronger_is_told(served):
    """The promise is the engine's own, as it is just now, with what to change."""
    code, text = people(served)
    changes = served.json("doctor")["promise"]["changes"]

    assert code == 0
    assert changes
    assert all(f"to change    {change}" in text for change in changes)


def test_a_server_that_evicts_or_cannot_be_written_to_is_told(served):
    """What would break the promise is found before it does."""
    server = served.place.server
    server.command("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
    evicting = served.inside("doctor", "--json")
    server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.command("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "allkeys-lru")
    unlimited, noted = people(served), served.json("doctor")
    server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.command("SET", "hf1:{left}", "by hand")
    server.command("SET", "hf9:{other}", "a later layout")
    littered = people(served)
    server.command("FLUSHALL")
    server.command("REPLICAOF", "127.0.0.1", "1")
    replica = people(served)

    assert evicting.code == 2
    assert "noeviction" in json.loads(evicting.out)["findings"][0]["advice"]
    assert unlimited[0] == 0, "without a limit nothing is evicted"
    assert "NOTE: the server would evict" in unlimited[1]
    assert (noted["findings"], "allkeys-lru" in noted["notes"][0]["what"]) == ([], True)
    assert littered[0] == 1
    assert "never expire" in littered[1]
    assert "hf1:{left}" in littered[1]
    assert "another layout" in littered[1]
    assert replica[0] == 2
    assert "replica" in replica[1]


def test_every_server_of_a_cluster_is_told_by_its_address(tmp_path):
    """Three servers have three clocks and three settings: none of them hides another."""
    if "valkey" not in available():
        pytest.skip(missing("valkey"))
    with Cluster("valkey") as cluster, Tool(SimpleNamespace(url=cluster.url), tmp_path) as tool:
        told, (code, text) = tool.json("doctor"), people(tool)
        addresses = {f"redis://127.0.0.1:{server.port}" for server in cluster.masters()}

    assert code == 0
    assert set(told["servers"]) == addresses
    assert all(server["role"] == "master" and server["keys_without_end"] == 0 for server in told["servers"].values())
    assert told["facts"]["round_trip_ms"] > 0
    assert all(re.search(rf"^server +{address} *$", text, re.MULTILINE) for address in addresses)


def test_missing_rights_are_named_one_by_one(served):
    """A user without wake-ups works, slowly; one without scripts does not. Who may not scan does without `ls`.

    Who may not ask INFO has leases, and no promise: whoever monitors that should know.
    """
    server = served.place.server

    def as_user(*rights):
        server.command("ACL", "SETUSER", "app", "reset", "on", ">pw", *rights)
        return people(served, env={"HOLDFAST_URL": f"redis://app:pw@127.0.0.1:{server.port}"})

    page = (ROOT / "docs" / "redis.md").read_text(encoding="utf-8")
    documented = re.search(r"^ACL SETUSER app on >password (.*)$", page, re.MULTILINE)[1].split()
    well = as_user(*NEEDED)
    modest = as_user(*documented)
    blind = as_user(*documented, "-info")
    listed = served.inside("ls", env={"HOLDFAST_URL": f"redis://app:pw@127.0.0.1:{server.port}"})
    deaf = as_user("~hf1:*", "resetchannels", "+@all", "-@admin")
    barred = as_user(*NEEDED, "-evalsha", "-eval")

    assert (well[0], modest[0], blind[0]) == (0, 0, 1)
    assert "NOTE" not in well[1]
    assert re.search(r"^NOTE: the user may not SCAN.*\+scan", modest[1], re.MULTILINE)
    assert re.search(r"^ATTENTION: the user may not ask INFO.*\+info", blind[1], re.MULTILINE)
    assert (listed.code, listed.out) == (77, b"")
    assert b"SCAN" in listed.err.upper()
    assert deaf[0] == 1
    assert "wake-ups do not arrive" in deaf[1]
    assert barred[0] == 2
    assert "no permission" in barred[1]


def test_an_engine_that_is_not_there_is_critical(local):
    """A monitor needs no words."""
    nowhere = {"HOLDFAST_URL": "redis://127.0.0.1:1"}

    assert people(local, env=nowhere)[0] == 2
    done = local.inside("doctor", "--json", env=nowhere)
    told = json.loads(done.out)
    assert (done.code, told["code"], told["url"], told["reason"]) == (2, 2, "redis://127.0.0.1:1", "unreachable")


def test_what_a_killed_client_left_is_told(local):
    """Leftovers of the embedded engine are harmless, and seen: the next client that begins clears them away."""
    client = local.client()
    client.lock("y").acquire().release()  # before the other dies, so that nobody else clears up after it
    program = (
        "import holdfast, os, sys; h = holdfast.connect(sys.argv[1]); h.lock('x').acquire(); os.kill(os.getpid(), 9)"
    )
    dead = subprocess.run([sys.executable, "-c", program, local.url], check=False)

    assert dead.returncode == -9
    left = next(fact for fact in client._client.engine.examine().facts if fact.what == "left by dead clients")
    assert left.text.startswith("1 sessions")
    assert left.values["dead_sessions"] == 1
    assert local.json("doctor")["facts"]["dead_sessions"] == 0


def test_a_short_bench_has_figures_and_a_verdict(tool):
    """The user's own server, a plain word at the end. No figure is judged here: machines differ."""
    told = tool.inside("bench", "--seconds", "0.8", "--json")
    people = tool.inside("bench", "--seconds", "0.8")
    figures = json.loads(told.out)["figures"]

    assert told.code in (0, 1)
    assert len(figures) == 4
    assert all(each["times"] > 0 and each["per_second"] > 0 for each in figures)
    assert all(0 <= each["median_ms"] <= each["p99_ms"] <= each["worst_ms"] for each in figures)
    assert b"take and give back" in people.out
    assert b"a lease costs" in people.out
