"""A full disk and a read-only one: the caller gets `Unavailable` with the reason, and nothing acknowledged is lost.

The disks are real. Work continues once there is room again, in the same process and with the same client.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager, suppress
from itertools import takewhile

import pytest

from holdfast import Fenced, NotAcquired, NotOwner, Unavailable, connect
from holdfast.guards import FileGuard
from holdfast.rules.guard import Stamp
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import Face, on_loop
from holdfast.testing.conformance.fixtures import close_loop  # noqa: F401
from holdfast.testing.conformance.places import Place
from tests.support.small_disk import small_disk

SCHEMES = {"sqlite": "sqlite://{folder}/holdfast.db", "file": "file://{folder}"}
BODY = b"x" * 2000


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", "2m") as disk:
        yield disk


@pytest.fixture(params=["blocking", "asyncio"])
def face_of(request, disk):
    """Return a function that returns the face of an engine whose files are on the small disk."""
    faces = []

    def face_of(engine):
        faces.append(Face(Place(engine, SCHEMES[engine]), request.param, disk.path / f"engine{len(faces)}"))
        return faces[-1]

    yield face_of
    disk.writable()
    disk.empty()
    for face in faces:
        face.close()


def refused(call, reason):
    """Check that the call is refused with the reason and without an effect."""
    with pytest.raises(Unavailable) as trouble:
        call()
    assert (trouble.value.reason, trouble.value.outcome) == (reason, "not started")


@contextmanager
def suppress_finished():
    """Ignore the refusal of an ack that the keeper has delivered meanwhile, and no other."""
    try:
        yield
    except NotOwner as error:
        if "already acked" not in str(error):
            raise


def until_refused(call, most=2000):
    """Call until the disk is full; return the answers of the calls that succeeded."""
    answers = []
    for number in range(most):
        try:
            answers.append(call(number))
        except Unavailable as trouble:
            if trouble.reason != "full":
                raise
            return answers
    raise AssertionError(f"{most} calls fit on a full disk")


@pytest.mark.parametrize("engine", SCHEMES)
def test_on_a_full_disk_no_lease_is_granted_and_a_held_one_stays_exclusive(face_of, disk, engine):
    """The holder keeps its lease while its ttl lasts; the next one gets a higher fence."""
    face = face_of(engine)
    client, other = face.connect(), face.connect()
    held = client.lock("held", ttl=30).acquire()
    disk.fill()

    taken = until_refused(lambda number: client.lock(f"new {number}", ttl=30).acquire(timeout=0))
    with pytest.raises((NotAcquired, Unavailable)):
        other.lock("held").acquire(timeout=0)
    held.check()
    disk.empty()

    assert not held.lost
    held.release()
    later = other.lock("held").acquire(timeout=5)
    assert later.fence > held.fence
    assert not any(lease.lost for lease in taken)
    for lease in (*taken, later, client.lock("later").acquire(timeout=0)):
        lease.release()


def test_on_a_full_disk_a_queue_keeps_what_it_acknowledged(face_of, disk):
    """Publishing is refused; every acknowledged message is delivered once, and an ack that failed can be repeated."""
    client = face_of("sqlite").connect()
    queue = client.queue("jobs", codec="bytes")
    before = [queue.publish(BODY) for _ in range(20)]
    disk.fill(leave=64 * 1024)
    during = until_refused(lambda _: queue.publish(BODY))
    refused(lambda: queue.publish(BODY), "full")
    stats = queue.stats()
    disk.empty()
    after = queue.publish(BODY)

    assert stats.ready == len(before) + len(during)
    received = []
    with queue.consumer() as consumer:
        while len(received) < len(before) + len(during) + 1:
            for message in consumer.receive(50, timeout=10):
                received.append(message.id)
                message.ack()
    assert sorted(received) == sorted((*before, *during, after))
    assert queue.stats().ready == 0


def test_an_ack_that_a_full_disk_refused_can_be_repeated(face_of, disk):
    """The message is acked once and not delivered again; the session of the consumer lives on.

    The keeper repeats a refused ack by itself, and may do so before the program does.
    """
    client = face_of("sqlite").connect()
    queue = client.queue("jobs", codec="bytes")
    sent = {queue.publish(b"small") for _ in range(40)}
    with queue.consumer(prefetch=50) as consumer:
        received = []
        while len(received) < len(sent):
            received += consumer.receive(100, timeout=10)
        disk.fill()
        acked = until_refused(lambda number: received[number].ack())
        disk.empty()
        with suppress_finished():
            received[len(acked)].ack()
        for message in received[len(acked) + 1 :]:
            message.ack()

        assert {message.id for message in received} == sent
        assert consumer.receive(timeout=0) == []
    assert (queue.stats().ready, queue.dlq.list()) == (0, [])


@pytest.mark.parametrize("engine", SCHEMES)
def test_a_client_that_came_to_a_full_disk_works_once_there_is_room(face_of, disk, engine):
    """A file that was created and not filled must not stay in the way."""
    face = face_of(engine)
    disk.fill()
    client = face.connect()
    for _ in range(2):
        refused(lambda: client.lock("x").acquire(timeout=0), "full")
    disk.empty()

    client.lock("x").acquire(timeout=0).release()
    face.connect().lock("x").acquire(timeout=0).release()


def test_on_a_full_disk_counters_and_markers_stay_exact(face_of, disk):
    """A budget, a rate limit and an idempotency key count what they acknowledged, and nothing else."""
    client = face_of("sqlite").connect()
    budget, once = client.budget("fees", limit=100_000), client.once("payments")
    limiter = client.limit("100000/hour", name="calls", on_unavailable="deny")
    disk.fill()
    reserved = until_refused(lambda number: budget.reserve(f"{number % 7}", 2))
    hits = list(takewhile(lambda number: limiter.hit(f"k{number}").allowed, range(2000)))
    done = until_refused(lambda number: once.call(f"{number}", lambda: number))
    disk.empty()

    for reservation in reserved:
        reservation.settle(1)
    assert len(hits) < 2000
    assert sum(budget.peek(f"{key}").spent for key in range(7)) == len(reserved)
    assert [limiter.peek(f"k{number}").remaining for number in range(len(hits))] == [99_999] * len(hits)
    assert [once.call(f"{number}", lambda: "again") for number in range(len(done))] == done
    assert once.call("new", lambda: "new") == "new"


def test_on_a_full_disk_a_pool_and_a_registry_stay_exact(face_of, disk):
    """An item is lent once, and an entry has one owner."""
    client = face_of("sqlite").connect()
    pool, registry = client.pool("channels"), client.registry("rooms")
    pool.set_items([f"c{number}" for number in range(300)])
    disk.fill()
    lent = until_refused(lambda _: pool.borrow(timeout=0))
    claimed = until_refused(lambda number: registry.claim(f"{number}"))
    disk.empty()

    assert len({item.name for item in lent}) == len(lent)
    more = pool.borrow(timeout=5)
    assert more.name not in {item.name for item in lent}
    assert {entry.key for entry in registry.list()} == {f"{number}" for number in range(len(claimed))}
    for lease in (*lent, more, *claimed):
        lease.release()
    eventually(lambda: registry.list() == [])


@pytest.mark.parametrize("engine", SCHEMES)
def test_a_read_only_disk_is_reported_and_work_continues_when_it_is_writable(face_of, disk, engine):
    """The kernel makes no disk read-only while an engine has files open for writing, so the client comes later."""
    face, clients = face_of(engine), []

    def use():
        if not clients:
            clients.append(face.connect())
        clients[0].lock("x").acquire(timeout=0).release()

    disk.read_only()
    for _ in range(2):
        refused(use, "read-only")
    disk.writable()
    use()
    assert bool(clients[0].show("x").holder) is False


@pytest.mark.parametrize("relocatable", [True, False], ids=["moved", "pointed"])
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_build_on_an_exhausted_disk_publishes_nothing_and_succeeds_later(tmp_path, disk, kind, relocatable, fault):
    """A published tree stays readable meanwhile, and the failed build leaves nothing behind."""
    face = Face(Place("memory", "memory://{unique}"), kind, tmp_path / "engine")
    client, store = face.connect(), disk.path / "store"
    store.mkdir()
    build = filled if kind == "blocking" else on_loop(filled)
    old = client.build_once(store, "old", build, relocatable=relocatable)
    disk.fill(leave=16 * 1024) if fault == "full" else disk.read_only()

    with pytest.raises((Unavailable, OSError)) as trouble:  # `OSError` is the error of the build function
        client.build_once(store, "new", build, relocatable=relocatable)
    found = client.build_once(store, "old", build, relocatable=relocatable)
    left = list((store / ".holdfast-staging").iterdir())
    published = list(store.glob("new/.holdfast-built")) + list(store.glob("new/.at-*"))
    disk.empty() if fault == "full" else disk.writable()
    built = client.build_once(store, "new", build, relocatable=relocatable)
    face.close()

    assert fault == "full" or trouble.value.reason == "read-only"
    assert found == old._replace(fresh=False)
    assert (left, published) == ([], [])
    assert built.fresh
    assert (built.path / "file").read_bytes() == b"x" * 40_000


@pytest.mark.parametrize("leave", range(0, 7 * 4096, 4096))
@pytest.mark.parametrize("relocatable", [True, False], ids=["moved", "pointed"])
def test_a_disk_that_fills_up_at_any_step_of_a_build_publishes_nothing(disk, leave, relocatable):
    """The marker, the staging directory, the tree, the record and the pointer each need room."""
    store = disk.path / "store"
    store.mkdir()
    with connect("memory://steps") as client:
        disk.fill(leave=leave)
        with suppress(Unavailable, OSError):
            client.build_once(store, "new", small, relocatable=relocatable)
        published = list(store.glob("new/.holdfast-built")) + list(store.glob("new/.at-*"))
        halves = [path for path in published if client.build_once(store, "new", small, relocatable=relocatable).fresh]
        disk.empty()
        built = client.build_once(store, "new", small, relocatable=relocatable)

    assert halves == []
    assert built.fresh is not bool(published)
    assert [(built.path / name).read_bytes() for name in ("one", "two")] == [b"1" * 4096, b"2" * 4096]
    assert list((store / ".holdfast-staging").iterdir()) == []


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_guarded_file_keeps_its_content_on_an_exhausted_disk(disk, fault):
    """The write is refused as a whole, and succeeds when there is room."""
    guard, path = FileGuard(disk.path / "data"), disk.path / "data"
    guard.write(Stamp(1, "one"), b"old" * 1000)
    disk.fill(leave=8192) if fault == "full" else disk.read_only()
    refused(lambda: guard.write(Stamp(2, "two"), b"new" * 10_000), fault)
    kept, newest = path.read_bytes(), guard.newest()
    if fault == "read-only":
        refused(lambda: guard.delete(Stamp(2, "two")), fault)
    disk.empty() if fault == "full" else disk.writable()
    guard.write(Stamp(2, "two"), b"new" * 10_000)

    assert kept == b"old" * 1000
    assert newest.fence in ((1, 2) if fault == "full" else (1,))
    assert path.read_bytes() == b"new" * 10_000
    with pytest.raises(Fenced):
        guard.write(Stamp(1, "one"), b"late")


def filled(staging):
    (staging / "file").write_bytes(b"x" * 40_000)


def small(staging):
    (staging / "one").write_bytes(b"1" * 4096)
    (staging / "two").write_bytes(b"2" * 4096)


@pytest.mark.parametrize("engine", SCHEMES)
def test_wherever_the_disk_becomes_full_the_reason_says_so(face_of, disk, engine):
    """The file, its log and its index each need room when a client opens them; the next client works."""
    face, reasons = face_of(engine), set()
    for pages in range(40):
        client = face.connect(f"{SCHEMES[engine].format(folder=face.folder)}")
        disk.fill(leave=pages * 4096)
        try:
            client.lock(f"x {pages}").acquire(timeout=0).release()
        except Unavailable as trouble:
            reasons.add(str(trouble.reason))
        disk.empty()
        client.lock(f"x {pages}").acquire(timeout=5).release()
        client.close()
        for path in sorted(face.folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    assert reasons == {"full"}


def test_a_session_without_room_for_its_heartbeat_is_refused(face_of, disk):
    """The database has room in its log, but the file of the heartbeats cannot grow."""
    face = face_of("sqlite")
    client, other = face.connect(), face.connect()
    for number in range(50):
        client.lock(f"{number}").acquire(timeout=0).release()
    with closing(sqlite3.connect(face.folder / "holdfast.db")) as database:
        database.execute("PRAGMA wal_checkpoint(RESTART)")  # the next commits use the log from its beginning
    os.truncate(face.folder / "holdfast.db.live", 0)
    disk.fill()

    refused(lambda: other.lock("x").acquire(timeout=0), "full")
    disk.empty()
    other.lock("x").acquire(timeout=0).release()


@pytest.mark.parametrize("engine", SCHEMES)
def test_a_lease_that_was_released_on_a_full_disk_is_free_once_there_is_room(face_of, disk, engine):
    """The keeper repeats the release, so the next holder need not wait for the ttl."""
    face = face_of(engine)
    client, other = face.connect(), face.connect()
    held = client.lock("held", ttl=60).acquire()
    disk.fill()
    taken = until_refused(lambda number: client.lock(f"new {number}", ttl=60).acquire(timeout=0))
    for lease in (held, *taken):
        lease.release()
    disk.empty()

    for name in ("held", *(lease.name for lease in taken)):
        other.lock(name).acquire(timeout=20).release()


@pytest.mark.parametrize("engine", SCHEMES)
def test_a_waiter_gets_its_turn_although_the_release_met_a_full_disk(face_of, disk, engine):
    """The keeper of the holder repeats the release, and the waiter keeps its place."""
    face = face_of(engine)
    client, other = face.connect(), face.connect()
    held = client.lock("held", ttl=60).acquire()
    waiting = face.start(lambda: other.lock("held", ttl=60).acquire(timeout=20))
    eventually(lambda: client.show("held").waiters, timeout=10)
    disk.fill()
    held.release()
    disk.empty()

    lease = waiting.result()
    assert lease.fence > held.fence
    lease.release()
