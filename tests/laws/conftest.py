"""`face` for laws that people meet: each engine through each face. `engine` for laws that are told in commands.
`timed` for laws of time, where a test may move the clock."""

from contextlib import contextmanager

import pytest
from law_faces import ALL_LAWS, FRESH, LOOP, PLACES, SERVERS, Face, Place, descriptors, threads_of_holdfast

from holdfast.testing import eventually
from holdfast.testing.clock import ManualClock

FACES = ["blocking", "asyncio"]


def pytest_collection_modifyitems(items):
    """Groups of servers keep the laws marked `large`, unless all are asked for."""
    items[:] = [item for item in items if _binds(item)]


def _binds(item):
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    places = [value[0] for value in given if isinstance(value, tuple) and value and isinstance(value[0], Place)]
    too_large = any(place.large for place in places) and not (ALL_LAWS or item.get_closest_marker("large"))
    too_small = any(place.leases_only for place in places) and item.get_closest_marker("carried")
    return not too_large and not too_small


def matrix(places):
    """Each place through each face; without `make matrix`, the second kind of server through one of them."""
    return [
        pytest.param((place, kind), id=f"{place}-{kind}")
        for place in places
        for kind in (FACES if ALL_LAWS or place.label not in SERVERS[1:] else FACES[:1])
    ]


@pytest.fixture(scope="session", autouse=True)
def _loop():
    """The loop of the asyncio face lives as long as the laws do."""
    yield
    LOOP.close()
    FRESH.close()


@contextmanager
def _tidy(*faces):
    """What was opened is closed; what is left fails the test."""
    LOOP.wait_for(_nothing())  # the lane of this thread, so that only what the test opens is counted
    threads, files = threads_of_holdfast(), descriptors()
    yield
    left = [face.close() for face in faces]
    assert left == [[] for _ in faces], "leases were left when the clients were closed"
    eventually(lambda: threads_of_holdfast() <= threads, what=f"an end of {threads_of_holdfast() - threads}")
    eventually(lambda: descriptors() <= files, what=f"an end of {descriptors() - files} open files")


def _face(request, tmp_path, clock=None):
    face = Face(*request.param, tmp_path / "place", clock)
    with _tidy(face):
        yield face


async def _nothing():
    return None


@pytest.fixture(params=matrix(PLACES))
def face(request, tmp_path):
    """One engine through one face; what the test leaves open fails it."""
    yield from _face(request, tmp_path)


@pytest.fixture
def faces(request, tmp_path):
    """All of them, for laws that are tried everywhere at the same time: see `together`."""
    carried = request.node.get_closest_marker("carried")
    places = [place for place in PLACES if not (carried and place.leases_only)]
    every = [Face(place, kind, tmp_path / f"{place}-{kind}") for place in places for kind in FACES]
    with _tidy(*every):
        yield every


@pytest.fixture(params=[pytest.param((place, "blocking"), id=str(place)) for place in PLACES])
def engine(request, tmp_path):
    """An engine without a face, for laws that are told in commands: `engine.peer()`."""
    yield from _face(request, tmp_path)


@pytest.fixture(params=matrix(place for place in PLACES if place.unusable))
def placed(request, tmp_path):
    """The same, where a place can be such that the engine cannot use it."""
    yield from _face(request, tmp_path)


@pytest.fixture(params=matrix(place for place in PLACES if place.hand_moved))
def timed(request, tmp_path):
    """The same, where time may be moved by hand: `timed.clock`, and `timed.connect()` uses it."""
    yield from _face(request, tmp_path, ManualClock())
