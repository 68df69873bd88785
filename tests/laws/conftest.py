"""`face` for laws that people meet: each engine through each face. `engine` for laws that are told in commands.
`timed` for laws of time, where a test may move the clock."""

import pytest
from law_faces import LOOP, PLACES, Face, descriptors, threads_of_holdfast

from holdfast.testing import eventually
from holdfast.testing.clock import ManualClock

FACES = ["blocking", "asyncio"]
MATRIX = [pytest.param((place, kind), id=f"{place}-{kind}") for place in PLACES for kind in FACES]
HAND_MOVED = [
    pytest.param((place, kind), id=f"{place}-{kind}") for place in PLACES if place.hand_moved for kind in FACES
]


@pytest.fixture(scope="session", autouse=True)
def _loop():
    """The loop of the asyncio face lives as long as the laws do."""
    yield
    LOOP.close()


def _face(request, tmp_path):
    place, kind = request.param
    folder = tmp_path / "place"
    folder.mkdir()
    LOOP.wait_for(_nothing())  # the lane of this thread, so that only what the test opens is counted
    threads, files = threads_of_holdfast(), descriptors()
    face = Face(place, kind, folder)
    yield face
    assert face.close() == [], "leases were left when the clients were closed"
    eventually(lambda: threads_of_holdfast() == threads, what=f"an end of {threads_of_holdfast()}")
    eventually(lambda: descriptors() <= files, what=f"an end of {descriptors() - files} open files")


async def _nothing():
    return None


@pytest.fixture(params=MATRIX)
def face(request, tmp_path):
    """One engine through one face; what the test leaves open fails it."""
    yield from _face(request, tmp_path)


@pytest.fixture(params=[pytest.param((place, "blocking"), id=str(place)) for place in PLACES])
def engine(request, tmp_path):
    """An engine without a face, for laws that are told in commands: `engine.peer()`."""
    yield from _face(request, tmp_path)


@pytest.fixture(params=HAND_MOVED)
def timed(request, tmp_path):
    """The same, where time may be moved by hand: `timed.clock`, and `timed.connect()` uses it."""
    for face in _face(request, tmp_path):
        face.clock = ManualClock()
        connect = face.connect
        face.connect = lambda **options: connect(clock=face.clock, **options)
        yield face
