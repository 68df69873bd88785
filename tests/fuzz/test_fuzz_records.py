"""Records that another program wrote: reported, kept, and no obstacle for their neighbours."""

import json
import sqlite3
from contextlib import closing

import pytest
from cli_runner import run_tool
from fuzzing import MIB, NUMBERS, TEXTS, VALUES, bounded, changed, fuzz
from hypothesis import example, given
from hypothesis import strategies as st

import holdfast
from holdfast import HoldfastError, Unavailable
from holdfast.engines.files import codec, log
from holdfast.engines.files.clocks import Clocks
from holdfast.rules.lease_record import STORED_FENCE_MAX
from holdfast.testing.servers import Server, missing

pytestmark = pytest.mark.finding("S11")

# The calls that read a record, by feature. Each gets a client and the name.
CALLS = {
    "lease": [
        lambda hf, name: hf.lock(name).try_acquire(),
        lambda hf, name: hf.show(name),
        lambda hf, name: hf.break_lease(name, "test"),
    ],
    "pool": [
        lambda hf, name: hf.pool(name).stats(),
        lambda hf, name: hf.pool(name).add(["x"]),
        lambda hf, name: hf.pool(name).borrow(timeout=0),
    ],
    "semaphore": [lambda hf, name: hf.semaphore(name, permits=2).try_acquire()],
    "rwlock": [lambda hf, name: hf.rwlock(name).read().try_acquire()],
    "queue": [
        lambda hf, name: hf.queue(name).stats(),
        lambda hf, name: hf.queue(name).publish("x"),
        lambda hf, name: hf.queue(name).check(),
        lambda hf, name: hf.queue(name).peek(),
        lambda hf, name: _receive(hf.queue(name)),
    ],
    "budget": [lambda hf, name: hf.budget(name, limit=5).reserve("k", 1)],
    "once": [lambda hf, name: hf.once(name, window=60).call("k", lambda: 1)],
    "registry": [lambda hf, name: hf.registry(name).claim("k"), lambda hf, name: hf.registry(name).list()],
}


def _receive(queue):
    with queue.consumer() as consumer:
        return consumer.receive(timeout=0)


def call_all(hf, name, features=tuple(CALLS)):
    """Make every call, and return the errors: only those of the library."""
    errors = []
    for feature in features:
        for call in CALLS[feature]:
            try:
                with bounded():
                    found = call(hf, name)
                    if hasattr(found, "release"):
                        found.release()
            except HoldfastError as error:  # pragma: no cover - `bounded` accepts them
                errors.append(error)
    return errors


@pytest.fixture(scope="module")
def server():
    if missing():
        pytest.skip(missing())
    with Server("valkey") as started:
        yield started


@pytest.fixture(scope="module")
def client(server):
    hf = holdfast.connect(server.url)
    yield hf
    hf.close(0)


def plant(server, key, kind, values):
    """Write a value of this kind to a key."""
    server.command("DEL", key)
    if kind == "packed":
        server.command(
            "EVAL", "redis.call('SET', KEYS[1], cmsgpack.pack(unpack(cjson.decode(ARGV[1]))))", "1", key, values
        )
    elif kind == "string":
        server.command("SET", key, values)
    elif kind == "hash":
        server.command("HSET", key, "token", values)
    elif kind == "zset":
        server.command("ZADD", key, "1", values)
    else:
        server.command("RPUSH", key, values)


# A lease, a pool and a queue as holdfast packs them.
LEASE = [1, "last", 0, 0, 0, 0, "token", "client", 1, 1000, 1, 2, False, "{}"]
POOL = [1, 0, 0, 0, 0, 1, 0, 0, 0, False, 1]
QUEUE = [1, 1, 0, 0, 0, "", 0, [], {}]
SUFFIXES = ["", ":pool", ":semaphore", ":rwlock", ":queue", ":line", ":waiters", ":heartbeats"]
SUFFIXES += [
    ":pool:items",
    ":pool:free",
    ":pool:away",
    ":queue:messages",
    ":queue:heads",
    ":queue:consumers",
    ":queue:delayed",
]
SUFFIXES += [":queue:dead", ":queue:ready:", ":queue:expiries", ":index:k", ":successor:kk", ":e:kk"]
PACKED = st.one_of(changed(LEASE), changed(POOL), changed(QUEUE)).filter(bool)


@pytest.mark.finding("L11", "L17")
@fuzz(40)
@given(
    st.sampled_from(SUFFIXES),
    st.sampled_from(["packed", "packed", "string", "hash", "zset", "list"]),
    PACKED,
    st.one_of(st.text(max_size=20), st.sampled_from(["", "hello", "9" * 400, "[" * 200])),
)
@example(":queue", "string", [1], "a text")
@example("", "list", [1], "x")
def test_junk_under_our_keys_is_reported_kept_and_blocks_no_neighbour(server, client, suffix, kind, values, text):
    """Every call about the name answers or raises an error of the library; its neighbour is served."""
    server.command("FLUSHALL")
    key = "hf2:{n}" + suffix
    try:
        plant(server, key, kind, json.dumps(values) if kind == "packed" else text)
    except Exception:  # cjson does not accept every number
        plant(server, key, "string", text)
    with client.lock("m") as neighbour:
        call_all(client, "n")
        assert [status.name for status in client.held() if status.name == "m"] == ["m"]
        neighbour.check()


def error_of(call, client):
    """Return the `Unavailable` of a call, if it raises one."""
    try:
        call(client, "n")
    except Unavailable as error:
        return error
    return None


@pytest.mark.finding("T9", "L11", "L17")
@pytest.mark.parametrize(
    ("suffix", "kind", "value", "feature"),
    [
        ("", "string", "a text", "lease"),
        ("", "list", "x", "lease"),
        ("", "packed", json.dumps([2**53, "", 0, 0, 0, 0]), "lease"),
        ("", "packed", json.dumps(LEASE[:9]), "lease"),
        (":pool", "string", "a text", "pool"),
        (":pool", "packed", json.dumps([2**53, *POOL[1:]]), "pool"),
        (":semaphore", "hash", "x", "semaphore"),
        (":rwlock", "packed", json.dumps([1]), "rwlock"),
        (":queue", "string", "a text", "queue"),
        (":queue", "packed", json.dumps([2**53, *QUEUE[1:]]), "queue"),
        (":queue:messages", "string", "a text", "queue"),
        (":e:kk", "string", "a text", "registry"),
    ],
)
def test_an_unreadable_record_stays_as_it_is(server, client, suffix, kind, value, feature):
    """Each call that needs the record names the keys in words; `doctor` names them too, and `ls` lists the rest."""
    server.command("FLUSHALL")
    key = "hf2:{n}" + suffix
    plant(server, key, kind, value)
    before = server.command("EVAL", "return redis.call('DUMP', KEYS[1])", "1", key)
    errors = [error for call in CALLS[feature] if (error := error_of(call, client)) is not None]
    assert errors
    for error in errors:
        assert (error.reason, error.retryable) == ("corrupt", False)
        assert "user_script" not in str(error)
        assert "hf2:{n}" in str(error) or "is no answer" in str(error)
    assert server.command("EVAL", "return redis.call('DUMP', KEYS[1])", "1", key) == before

    with client.lock("m"):
        listed = run_tool("ls", "--url", server.url)
        doctor = run_tool("doctor", "--url", server.url)
    assert (listed.returncode, "m " in listed.stdout) == (0, True)
    assert doctor.returncode == 1
    assert "hf2:{n}" in doctor.stdout
    server.command("FLUSHALL")


@pytest.mark.finding("T9")
def test_a_record_with_a_huge_fence_grants_no_fence_twice(server, client):
    """Beyond 2**53 Lua cannot count: such a record is damaged, and no holder gets a lease under it."""
    plant(server, "hf2:{n}", "packed", json.dumps([2**53, "", 0, 0, 0, 0]))
    with pytest.raises(Unavailable, match="corrupt"):
        client.lock("n").try_acquire()
    plant(server, "hf2:{n}", "packed", json.dumps([STORED_FENCE_MAX - 1, "", 0, 0, 0, 0]))
    with client.lock("n") as lease:
        assert lease.fence == STORED_FENCE_MAX
    server.command("DEL", "hf2:{n}")


# SQLite.

CELLS = st.one_of(
    st.none().map(lambda _: "\n" * 5),
    TEXTS.filter(lambda text: "\ud800" not in text),
    st.binary(max_size=30),
    st.floats(),
    NUMBERS,
)
COLUMNS = [
    ("lease", "body"),
    *(("pool", column) for column in ("fence", "size")),
    *(("pool_item", column) for column in ("state", "fence")),
    *(("queue", column) for column in ("fence", "lanes", "counts")),
    *(("queue_message", column) for column in ("body", "headers", "attempts")),
    ("counter", "body"),
    *(("registry_index", column) for column in ("token", "until_us")),
]


@pytest.fixture
def stored(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    with holdfast.connect(url) as hf:
        yield hf, tmp_path / "x.db", url


def fill(hf, name):
    """Store one record of every kind."""
    hf.lock(name).acquire().release()
    hf.pool(name).add(["a", "b"])
    hf.queue(name).publish("x")
    hf.budget(name, limit=5).reserve("k", 1).settle(1)
    hf.registry(name).claim("k").release()


@fuzz(30)
@given(st.sampled_from(COLUMNS), CELLS)
@example(("lease", "body"), f"{2**53}\n\n0\n0\n0\n\n")
def test_junk_in_a_row_of_sqlite_is_reported_and_blocks_no_neighbour(tmp_path_factory, column, value):
    """Whatever a row contains, only errors of the library reach the caller."""
    path = tmp_path_factory.mktemp("rows") / "x.db"
    with holdfast.connect(f"sqlite:///{path}") as hf:
        fill(hf, "n")
        with closing(sqlite3.connect(path, timeout=5)) as other:
            try:
                other.execute(f"UPDATE {column[0]} SET {column[1]} = ?", (value,))
            except (OverflowError, sqlite3.IntegrityError):
                return
            other.commit()
        call_all(hf, "n")
        with hf.lock("m"):
            assert [status.name for status in hf.held() if status.name == "m"] == ["m"]


@pytest.mark.finding("T9")
def test_a_row_with_a_huge_fence_is_damaged(stored):
    """The fences of SQLite have the bound that every guard has."""
    hf, path, url = stored
    fill(hf, "n")
    with closing(sqlite3.connect(path)) as other:
        other.execute("UPDATE lease SET body = ? WHERE name = 'n'", (f"{2**53}\n\n0\n0\n0\n\n",))
        other.execute("UPDATE pool SET fence = ?", (2**53,))
        other.execute("UPDATE queue SET fence = ?", (2**53,))
        other.commit()
    for call in (
        lambda: hf.lock("n").try_acquire(),
        lambda: hf.pool("n").borrow(timeout=0),
        lambda: hf.queue("n").stats(),
    ):
        with pytest.raises(Unavailable, match="corrupt"):
            call()
    doctor = run_tool("doctor", "--url", url)
    assert doctor.returncode == 1
    assert doctor.stdout.count("'n' cannot be read") == 3


# Shared directories.

CLOCKS = Clocks("boot")
AT = ["boot", 1, 1]
HOLDER = ["t", "c1", "{}", 5, 1000, False, 9, AT, AT]
WAITER = ["w", "c2", "{}", 1000, AT]
REVISION = {
    "layout": codec.LAYOUT,
    "name": "n",
    "fence": 5,
    "last": "",
    "at": AT,
    "memory": 60_000_000,
    "holder": HOLDER,
    "waiters": [WAITER],
    "tombstones": [["e", 9, "released", "", AT]],
}


def as_stored(revision):
    """Return the bytes that holdfast would write."""
    return codec._encode(revision).encode()


def test_the_revision_that_the_tests_change_can_be_read():
    """Otherwise every changed one would be refused, whatever the change is."""
    assert codec.read(as_stored(REVISION), CLOCKS).record.fence == REVISION["fence"]


@fuzz(120)
@given(
    st.sampled_from(sorted(REVISION)), st.one_of(VALUES, changed(REVISION["holder"]), changed([REVISION["waiters"][0]]))
)
@example("fence", 2**53)
@example("holder", [*HOLDER[:3], 2**53, *HOLDER[4:]])
@example("waiters", [["w", "a" * 300, "{}", 1, AT]])
def test_a_changed_revision_is_read_or_refused(field, value):
    """The reader of a revision accepts only values that holdfast writes."""
    try:
        body = as_stored({**REVISION, field: value})
    except ValueError:
        return
    with bounded():
        try:
            found = codec.read(body, CLOCKS)
        except ValueError:
            return
        assert 0 <= found.record.fence <= STORED_FENCE_MAX
        assert isinstance(found.name, str)


@fuzz(60)
@given(st.binary(max_size=60))
@example(b"[" * MIB)
@example(b'{"layout":2,"waiters":[' + b"[]," * 300_000)
@example(b"9" * 5000)
def test_any_revision_is_read_or_refused(body):
    """Bytes of any kind are no record, and say so at once."""
    with bounded():
        try:
            codec.read(body, CLOCKS)
        except ValueError:
            return


@pytest.mark.finding("T9")
@pytest.mark.parametrize("planted", ["junk", "link", "folder", "huge fence", "deep"])
def test_a_planted_revision_is_reported_and_kept(tmp_path, monkeypatch, planted):
    """It counts as held for a while; then the name is free again, and the revision stays beside the log."""
    url = f"file://{tmp_path}"
    with holdfast.connect(url) as hf:
        hf.lock("n").acquire().release()
        folder = tmp_path / ".holdfast" / "leases" / "n"
        revision = folder / "0000000000009999"
        bodies = {"junk": b"junk", "deep": b"[" * MIB, "huge fence": as_stored({**REVISION, "fence": 2**53})}
        if planted == "link":
            revision.symlink_to("/etc/passwd")
        elif planted == "folder":
            revision.mkdir()
        else:
            revision.write_bytes(bodies[planted])
        for call in (lambda: hf.lock("n").try_acquire(), lambda: hf.show("n")):
            with pytest.raises(Unavailable, match="corrupt"):
                call()
        with hf.lock("m"):
            assert [status.name for status in hf.held()] == ["m"]
        doctor = run_tool("doctor", "--url", url)
        assert (doctor.returncode, "'n' cannot be read" in doctor.stdout) == (1, True)

        monkeypatch.setattr("holdfast.engines.files.engine._UNREADABLE_US", 0)
        monkeypatch.setattr("holdfast.engines.files.engine.FileStore._longest_ttl_us", lambda *_: 0)
        for _ in range(12):  # more than the log keeps
            hf.lock("n").acquire().release()
        kept = list(folder.parent.glob(f"{log._UNREADABLE}*")) or [revision]
        assert len(kept) == 1
        assert kept[0].is_symlink() or kept[0].is_dir() or kept[0].read_bytes() == bodies[planted]
