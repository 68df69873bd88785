"""CPython's own tests of locks, run against ours.

They know nothing of leases, so they find what people take for granted in a lock.
"""

from __future__ import annotations

import itertools
import threading

import pytest

import holdfast

lock_tests = pytest.importorskip(
    "test.lock_tests", reason="this Python was installed without its own tests: install its package of them"
)

NOT_FOR_LEASES = {
    "test_repr": "the form of a repr is a matter of taste",
    "test_locked_repr": "as above, and a dropped lease warns",
    "test_acquire_destroy": "a lock that is dropped while held is a mistake here, and warns",
    "test_weakref_exists": "about the adapter, not about the lock",
    "test_weakref_deleted": "about the adapter, not about the lock",
    "test_at_fork_reinit": "a private method; forks have tests of their own",
    "test__at_fork_reinit": "as above",
    "test_recursion_count": "a private method of RLock",
    "test_release_save_unacquired": "a private method of RLock, for conditions",
    "test__is_owned": "a private method of RLock, for conditions",
    "test_timeout": "timeouts have other limits here, and the test drops a held lock; ours are in the laws",
    "test_state_after_timeout": "ends with a held lock; the same without that is below",
    "test_reacquire": "of LockTests: ends with a held lock; the same without that is below",
    "test_different_thread": "of RLockTests: as above; of LockTests it is below",
    "test_try_acquire": "of RLockTests: `with` takes no argument; of LockTests it is below",
    "test_try_acquire_contended": "of RLockTests: as above",
}

_client = None
_numbers = itertools.count()


class LeaseLock:
    """A lease that looks like `threading.Lock`."""

    def __init__(self):
        self._lock = _client.lock(f"lock {next(_numbers)}")
        self._lease = None

    def acquire(self, blocking=True, timeout=-1):
        patience = None if blocking and timeout == -1 else timeout if blocking else 0
        try:
            self._lease = self._lock.acquire(timeout=patience)
        except holdfast.NotAcquired:
            return False
        return True

    def release(self):
        if self._lease is None:
            raise RuntimeError("release of an unlocked lock")
        lease, self._lease = self._lease, None
        lease.release()

    def locked(self):
        return _client.show(self._lock.name).holder is not None

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


class ReentrantLock:
    """A reentrant lock that looks like `threading.RLock`, as far as `with` goes."""

    def __init__(self):
        self._lock = _client.lock(f"lock {next(_numbers)}", reentrant=True)

    def acquire(self):
        self._lock.__enter__()
        return True

    def release(self):
        self._lock.__exit__(None, None, None)

    __enter__ = acquire

    def __exit__(self, *_):
        self.release()


@pytest.fixture
def client(request, tmp_path, monkeypatch):
    """Yield the client under the adapters; its threads start before CPython's tests count threads."""
    url = f"sqlite://{tmp_path}/hf.db" if request.param == "sqlite" else f"memory://lock-tests-{next(_numbers)}"
    with holdfast.connect(url) as client:
        warm_up(client)
        monkeypatch.setattr(f"{__name__}._client", client)
        yield client


def warm_up(client):
    """Start the thread of the keeper and of the listener before a test counts threads."""
    held = client.lock("warm-up").acquire()
    waiter = threading.Thread(target=lambda: client.lock("warm-up").acquire().release())
    waiter.start()
    while not client.show("warm-up").waiters:
        pass
    held.release()
    waiter.join()


def cases(kind, unwanted=()):
    names = [name for name in dir(kind) if name.startswith("test_")]
    return [name for name in names if name not in {**NOT_FOR_LEASES, **dict.fromkeys(unwanted)}]


def run_case(kind, adapter, name):
    case = type(kind.__name__, (kind,), {"locktype": adapter})(name)
    case.setUp()
    try:
        getattr(case, name)()
    finally:
        case.doCleanups()


both_engines = pytest.mark.parametrize("client", ["memory", "sqlite"], indirect=True)


@both_engines
@pytest.mark.parametrize(
    "name", [*cases(lock_tests.LockTests), "test_try_acquire", "test_try_acquire_contended", "test_different_thread"]
)
def test_a_lease_passes_the_tests_of_a_lock(client, name):
    """A lease does everything that a lock does: waiting, trying, `with`, release from another thread."""
    run_case(lock_tests.LockTests, LeaseLock, name)


@both_engines
@pytest.mark.parametrize("name", [*cases(lock_tests.RLockTests), "test_reacquire"])
def test_a_reentrant_lock_passes_the_tests_of_rlock(client, name):
    """Entering again, leaving as often, and refusing a thread that is not inside."""
    run_case(lock_tests.RLockTests, ReentrantLock, name)


@both_engines
def test_a_lock_works_after_a_timeout(client):
    """CPython's issue 11618: the state after a wait that ended without the lock."""
    lock = LeaseLock()
    held = lock._lock.acquire()

    assert lock.acquire(timeout=0.01) is False
    held.release()
    assert lock.locked() is False
    assert lock.acquire(blocking=False) is True
    lock.release()


@both_engines
def test_a_lock_must_be_released_before_it_is_acquired_again(client):
    """One thread or another: a plain lock does not know the difference."""
    lock = client.lock("x")
    first = lock.acquire()
    got = []
    waiter = threading.Thread(target=lambda: got.append(lock.acquire(timeout=5)))
    waiter.start()
    while not client.show("x").waiters:
        pass

    assert got == []
    assert lock.try_acquire() is None
    first.release()
    waiter.join()
    got[0].release()


def test_every_excluded_test_exists_somewhere():
    """A reason for a test that does not exist is dead text."""
    known = {*dir(lock_tests.LockTests), *dir(lock_tests.RLockTests)}
    of_other_versions = {"test_recursion_count", "test__at_fork_reinit", "test_at_fork_reinit"}

    assert set(NOT_FOR_LEASES) - known <= of_other_versions
