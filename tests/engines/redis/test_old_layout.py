"""Data of layout 1: every client of this version refuses them, wherever they are, and changes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
from minimal_acl import CHANNELS, COMMANDS, KEYS, grant

from holdfast import Unavailable

ROOT = Path(__file__).resolve().parents[3]
# The last commit with layout 1.
OLD_VERSION = "4e73524"
MARKER = "hf1:layout"
# A held lease as that version wrote it.
OLD_LEASE = (
    b"\xcf\x00\x06`jg\xe3\x8b_\xa0\x00\x00\x00\x00\xd9 da923cce18b70b15c559ebd3a79a8921\xd9)"
    b"hf1:wake:db0eaefcdec096b147e66d96d3ce0d24\xcf\x00\x06`jg\xe3\x8b_\xcdu0\xcf\x00\x06`jg\xe3\x8b_\xcf\x00\x06`ji\xadN\xdf\xc2\xd9>"
    b'{"host":"h1","pid":10246,"start":1183654,"label":"","info":{}}'
)
HOLD = """
import sys
sys.path.insert(0, sys.argv[1])
import holdfast
client = holdfast.connect(sys.argv[2])
client.lock(sys.argv[3], ttl=60).acquire(timeout=5)
client.queue("q").publish(1)
client.pool("p").set_items(["a"])
"""


@pytest.fixture(scope="module")
def old_version(tmp_path_factory):
    """Return a function that runs the version with layout 1 in a process of its own: it dies with a held lease."""
    folder = tmp_path_factory.mktemp("old")
    archive = subprocess.run(["git", "-C", ROOT, "archive", OLD_VERSION, "src"], capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history of this checkout lacks {OLD_VERSION}")
    subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)

    def hold(url, name="x"):
        command = [sys.executable, "-c", HOLD, folder / "src", url, name]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return hold


def fill(server, count):
    """Write keys of another program."""
    for first in range(0, count, 1000):
        server.command("MSET", *(text for at in range(first, first + 1000) for text in (f"foreign:{at}", "x")))


def scan_calls(server):
    stats = server.command("INFO", "commandstats").decode()
    return int(stats.partition("cmdstat_scan:calls=")[2].partition(",")[0] or 0)


def content(servers):
    return {
        (server.port, key): server.command("DUMP", key) for server in servers for key in server.command("KEYS", "*")
    }


def name_on(group, servers):
    """Return a name whose lease one of these servers stores."""
    return next(name for name in map(str, range(1000)) if group.server_of(name) in servers)


def refused(place, url=None, name="y"):
    """Check that every kind of first contact is refused; return the error of an acquire."""
    errors = []
    for use in (
        lambda client: client.lock(name).acquire(timeout=5),
        lambda client: client.show(name),
        lambda client: client.promise(),
    ):
        with pytest.raises(Unavailable) as trouble:
            use(place.connect(url))
        errors.append(trouble.value)
    assert {error.reason for error in errors} == {"other layout"}
    assert not any(error.retryable for error in errors)
    return errors[0]


def clear(servers):
    for server in servers:
        server.command("FLUSHALL")


def test_data_of_the_old_version_are_refused_and_stay_unchanged(slow, old_version):
    """The error names the place, both layouts, an example, and what to do."""
    server = slow.server
    done = old_version(server.url)
    assert done.returncode == 0, done.stderr
    assert server.command("DBSIZE") > 5
    before = content([server])

    text = str(refused(slow))

    for words in (f"127.0.0.1:{server.port}", "data of layout 1", "uses layout 2", "delete the keys 'hf1:{*'"):
        assert words in text
    assert any(repr(key.decode()) in text for _, key in before)
    assert content([server]) == before
    clear([server])
    slow.connect().lock("x").acquire(timeout=5).release()


def test_the_old_version_refuses_a_database_of_this_version(slow, old_version):
    """From the first write of this version on. A client that only reads changes nothing."""
    server = slow.server
    client = slow.connect()
    assert client.show("x").holder is None
    assert server.command("DBSIZE") == 0
    lease = client.lock("x", ttl=60).acquire(timeout=5)

    done = old_version(server.url)

    assert done.returncode != 0
    assert "kept in layout '2', this version knows 1" in done.stderr
    lease.release()
    assert set(server.command("KEYS", "*")) == {b"hf2:{x}", MARKER.encode()}


def test_one_old_lease_among_many_foreign_keys_is_refused(slow):
    """The client reads all keys before its first write, in steps that do not block the server."""
    server = slow.server
    fill(server, 50_000)
    server.command("SET", "hf1:{x}", OLD_LEASE, "PX", "60000")

    assert "for example the key 'hf1:{x}'" in str(refused(slow))

    assert server.command("DBSIZE") == 50_001
    assert server.command("GET", "hf1:{x}") == OLD_LEASE
    clear([server])


def test_the_keys_of_a_database_are_read_once(slow):
    """Later clients find the marker: one round trip with two reads, and no SCAN."""
    server = slow.server
    fill(server, 50_000)
    calls = []
    for _ in range(2):
        server.command("CONFIG", "RESETSTAT")
        slow.connect().lock("x").acquire(timeout=5).release()
        calls.append(scan_calls(server))
    clear([server])

    assert 5 <= calls[0] <= 7
    assert calls[1] == 0


def test_an_unfinished_search_is_continued(slow, monkeypatch):
    """A database with very many keys may need more than the time of one command; nothing is answered before the end."""
    server = slow.server
    fill(server, 40_000)
    monkeypatch.setattr("holdfast.engines.redis.layout._STEP", "1")
    client, unfinished = slow.connect(f"{server.url}?socket_timeout=0.05"), 0
    server.command("CONFIG", "RESETSTAT")

    while True:
        try:
            status = client.show("x")
            break
        except Unavailable as error:
            unfinished += "the search for keys of layout 1 ('hf1:{*') has not ended yet" in str(error)

    assert status.holder is None
    assert unfinished > 0
    assert scan_calls(server) < 15_000
    clear([server])


def test_an_old_lease_on_any_server_is_refused(grouped):
    """Also in a cluster, where neither the marker nor the requested name is on that server."""
    group = grouped.server
    servers = group.masters() if hasattr(group, "masters") else [group.primary()]
    for server in servers:
        name = next(f"old{n}" for n in range(1000) if grouped.server.server_of(f"old{n}") is server)
        other = name_on(group, [each for each in servers if each is not server] or servers)
        server.command("SET", f"hf1:{{{name}}}", OLD_LEASE, "PX", "60000")
        before = content(servers)

        assert f"for example the key 'hf1:{{{name}}}'" in str(refused(grouped, name=other))

        assert content(servers) == before
        server.command("DEL", f"hf1:{{{name}}}")
    grouped.connect().lock("x").acquire(timeout=5).release()
    assert grouped.server.server_of(MARKER).command("GET", MARKER) == b"2"


def test_the_old_version_in_a_cluster_is_refused(clustered, old_version):
    """Its real keys, also if the requested name is on another server."""
    done = old_version(clustered.server.url)
    assert done.returncode == 0, done.stderr
    before = content(clustered.server.masters())
    ports = {port for port, _ in before}
    other = name_on(clustered.server, [each for each in clustered.server.masters() if each.port not in ports])

    refused(clustered, name=other)

    assert content(clustered.server.masters()) == before
    clear(clustered.server.masters())


def test_one_server_of_a_cluster_writes_no_marker(clustered):
    """A client of `redis://` has read the keys of that server only."""
    server = clustered.server.server_of(MARKER)
    name = name_on(clustered.server, [server])
    assert clustered.server.server_of("hf2:layout") is server

    clustered.connect(f"redis://127.0.0.1:{server.port}").lock(name).acquire(timeout=5).release()

    assert server.command("GET", MARKER) is None
    clustered.connect().lock(name).acquire(timeout=5).release()
    assert server.command("GET", MARKER) == b"2"


def test_a_user_with_the_documented_rights_is_refused(new_server, place_on):
    """The documented rights are enough for the search and for the marker."""
    server = new_server()
    place, url = place_on(server), f"redis://app:pw@127.0.0.1:{server.port}"
    grant([server], *KEYS, *CHANNELS, *COMMANDS)
    fill(server, 5_000)
    server.command("SET", "hf1:{x}", OLD_LEASE, "PX", "60000")

    refused(place, url)

    clear([server])
    client = place.connect(url)
    client.lock("x").acquire(timeout=5).release()
    assert server.command("GET", MARKER) == b"2"
    refusals = [str(entry) for entry in server.command("ACL", "LOG")]
    assert not any(word in entry for entry in refusals for word in ("'scan'", MARKER))
    assert not any("older layout" in what for what in client.promise().unseen)


def test_without_the_right_to_the_marker_each_client_reads_all_keys(new_server, place_on):
    """The check stays certain; only the result cannot be stored."""
    server = new_server()
    place, url = place_on(server), f"redis://app:pw@127.0.0.1:{server.port}"
    grant([server], KEYS[0], *CHANNELS, *COMMANDS)
    place.connect(url).lock("x").acquire(timeout=5).release()
    assert server.command("GET", MARKER) is None
    server.command("SET", "hf1:{x}", OLD_LEASE, "PX", "60000")

    refused(place, url)

    clear([server])


def test_without_the_right_to_scan_the_promise_has_a_caveat(new_server, place_on):
    """The client cannot know, and says so, until the marker shows that another client has read the keys."""
    server = new_server()
    place, url = place_on(server), f"redis://app:pw@127.0.0.1:{server.port}"
    grant([server], *KEYS, *CHANNELS, *COMMANDS, "-scan")
    server.command("SET", "hf1:{x}", OLD_LEASE, "PX", "60000")

    new, used = place.connect(url), place.connect(url)
    used.lock("x").acquire(timeout=5).release()

    for promise in (new.promise(), used.promise()):
        assert any("data of an older layout: SCAN: NOPERM" in what for what in promise.unseen)
        assert any("would not exclude each other" in caveat.sentence for caveat in promise.caveats)
        assert "grant the right: ACL SETUSER ... +scan" in promise.changes
    assert server.command("GET", MARKER) is None
    clear([server])
    place.connect().lock("x").acquire(timeout=5).release()
    promise = place.connect(url).promise()
    assert not any("older layout" in text for text in (*promise.unseen, *(each.sentence for each in promise.caveats)))


@pytest.mark.parametrize("namespace", ["", "one"])
def test_each_namespace_has_its_own_check(slow, namespace):
    """Namespaces share nothing, so each may change its version at its own time."""
    server = slow.server
    prefix, tail = (f"hf1:{namespace}:", f"?namespace={namespace}") if namespace else ("hf1:", "")
    server.command("SET", "hf10:{x}", "of another program", "EX", "60")
    server.command("SET", "hf1:other:{x}", OLD_LEASE, "PX", "60000")
    slow.connect(server.url + tail).lock("x").acquire(timeout=5).release()
    assert server.command("GET", f"{prefix}layout") == b"2"
    server.command("DEL", f"{prefix}layout")
    server.command("SET", prefix + "{x}", OLD_LEASE, "PX", "60000")

    assert f"delete the keys {prefix + '{*'!r}" in str(refused(slow, server.url + tail))

    clear([server])
