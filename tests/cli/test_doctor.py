"""`holdfast doctor` and `holdfast bench`: the promise, the problems and the speed of an engine."""

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
NEEDED = ["~hf2:*", "resetchannels", "&hf2:wake:*", "+@all", "-@admin"]


@pytest.fixture
def served(tmp_path):
    """A server of this test alone, whose settings the test breaks."""
    if KIND is None:
        pytest.skip(missing())
    with Server(KIND) as server, Tool(Served(server), tmp_path) as tool:
        yield tool


def people(tool, *arguments, **options):
    """Return exit code and output of `doctor` for people."""
    done = tool.inside("doctor", *arguments, **options)
    return done.code, done.out.decode()


def test_a_healthy_engine_is_reported_with_its_promise(tool):
    """The report has version, promise and round trip; a monitor gets exit code 0."""
    code, text = people(tool)
    answer = tool.json("doctor")
    promise = tool.client().promise()

    assert code == 0
    assert "no problems found" in text
    assert str(promise) in text
    assert answer["promise"]["caveats"] == [limit._asdict() for limit in promise.caveats]
    assert answer["promise"]["scope"] == promise.scope
    assert (answer["findings"], answer["notes"], answer["code"]) == ([], [], 0)
    assert answer["version"] == holdfast.__version__
    figures = ("round_trip_ms", "round_trip_worst_ms", "lease_ms", "handed_to_thread_ms", "handed_to_task_ms")
    assert all(answer["facts"][figure] > 0 for figure in figures), "a program wants figures, not prose"
    assert answer["facts"]["engine"].split()[0].lower() in text.lower()


def test_the_report_says_how_to_make_the_promise_stronger(served):
    """The promise is the engine's own, from a look at it now, with the changes that would help."""
    code, text = people(served)
    changes = served.json("doctor")["promise"]["changes"]

    assert code == 0
    assert changes
    assert all(f"to change    {change}" in text for change in changes)


def test_eviction_and_a_read_only_server_are_findings(served):
    """Settings that would break the promise are found before they do."""
    server = served.place.server
    server.command("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
    evicting = served.inside("doctor", "--json")
    server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.command("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "allkeys-lru")
    unlimited, noted = people(served), served.json("doctor")
    server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.command("SET", "hf2:{left}", "by hand")
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
    assert "hf2:{left}" in littered[1]
    assert "another layout than" in littered[1]
    assert replica[0] == 2
    assert "replica" in replica[1]


def test_every_server_of_a_cluster_is_reported_by_its_address(tmp_path):
    """Three servers have three clocks and three settings: none of them hides another."""
    if "valkey" not in available():
        pytest.skip(missing("valkey"))
    with Cluster("valkey") as cluster, Tool(SimpleNamespace(url=cluster.url), tmp_path) as tool:
        answer, (code, text) = tool.json("doctor"), people(tool)
        addresses = {f"redis://127.0.0.1:{server.port}" for server in cluster.masters()}

    assert code == 0
    assert set(answer["servers"]) == addresses
    assert all(server["role"] == "master" and server["keys_without_end"] == 0 for server in answer["servers"].values())
    assert answer["facts"]["round_trip_ms"] > 0
    assert all(re.search(rf"^server +{address} *$", text, re.MULTILINE) for address in addresses)


def test_missing_rights_are_named_one_by_one(served):
    """A user without wake-ups works slowly; a user without scripts does not work. Without SCAN there is no `ls`.

    A user without INFO has leases but no promise: a monitor should know.
    """
    server = served.place.server

    def as_user(*rights):
        server.command("ACL", "SETUSER", "app", "reset", "on", ">pw", *rights)
        return people(served, env={"HOLDFAST_URL": f"redis://app:pw@127.0.0.1:{server.port}"})

    page = (ROOT / "docs" / "redis.md").read_text(encoding="utf-8")
    documented = re.search(r"^ACL SETUSER app on >password (.*)$", page, re.MULTILINE)[1].split()
    full = as_user(*NEEDED)
    documented_user = as_user(*documented)
    without_info = as_user(*documented, "-info")
    without_scan = as_user(*documented, "-scan")
    listed = served.inside("ls", env={"HOLDFAST_URL": f"redis://app:pw@127.0.0.1:{server.port}"})
    without_channels = as_user("~hf2:*", "resetchannels", "+@all", "-@admin")
    without_scripts = as_user(*NEEDED, "-evalsha", "-eval")

    assert (full[0], documented_user[0], without_info[0]) == (0, 0, 1)
    assert "NOTE" not in full[1]
    for lacking in (documented_user, without_scan):
        assert re.search(r"^NOTE: the user may not run SCAN or PTTL.*\+scan \+pttl", lacking[1], re.MULTILINE)
    assert re.search(r"^ATTENTION: the user may not run INFO.*\+info", without_info[1], re.MULTILINE)
    assert (listed.code, listed.out) == (77, b"")
    assert b"SCAN" in listed.err.upper()
    assert without_channels[0] == 1
    assert re.search(
        r"^ATTENTION: wake-ups do not arrive: .* \+subscribe &hf2:wake:\*$", without_channels[1], re.MULTILINE
    )
    assert without_scripts[0] == 2
    assert "no permission" in without_scripts[1]


def test_an_unreachable_engine_is_critical(local):
    """A monitor reads the exit code."""
    unreachable = {"HOLDFAST_URL": "redis://127.0.0.1:1"}

    assert people(local, env=unreachable)[0] == 2
    done = local.inside("doctor", "--json", env=unreachable)
    answer = json.loads(done.out)
    assert (done.code, answer["code"], answer["url"], answer["reason"]) == (2, 2, "redis://127.0.0.1:1", "unreachable")


def test_leftovers_of_a_killed_client_are_reported(local):
    """Leftovers of the embedded engine are harmless, and reported: the next client that starts removes them."""
    client = local.client()
    client.lock("y").acquire().release()  # before the other dies, so that no later client removes its leftovers
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
    """`bench` measures the user's own server and ends with a verdict. The test judges no figure: machines differ."""
    answer = tool.inside("bench", "--seconds", "0.8", "--json")
    people = tool.inside("bench", "--seconds", "0.8")
    figures = json.loads(answer.out)["figures"]

    assert answer.code in (0, 1)
    assert len(figures) == 4
    assert all(each["times"] > 0 and each["per_second"] > 0 for each in figures)
    assert all(0 <= each["median_ms"] <= each["p99_ms"] <= each["worst_ms"] for each in figures)
    assert b"acquire and release" in people.out
    assert b"a lease costs" in people.out
