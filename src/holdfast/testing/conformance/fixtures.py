"""The fixtures of the laws. `face`: one engine through one face. `engine`: one engine, for laws in plain commands.

`timed` is a face whose clock a test moves by hand. `placed` is a face with URLs that the engine cannot use. `faces` are
all engines through both faces, for laws that mostly wait: see `together`. A client, thread or file that a test leaves
open fails the test.

A conftest that imports these fixtures also defines `places` and calls `parametrize` from `pytest_generate_tests`.
"""

from contextlib import contextmanager

import pytest

from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.faces import LOOP, Face, descriptors, threads_of_holdfast
from holdfast.testing.conformance.places import Place
from holdfast.testing.waiting import eventually

__all__ = ["close_loop", "engine", "face", "faces", "placed", "timed"]

FACES = ("blocking", "asyncio")
MARKERS = (
    "acceptance(*rows): the acceptance rows of Holdfast that this test shows",
    "finding(*ids): the faults of Holdfast whose return this test would show",
    "large: a law that a place of many servers keeps in every test run",
    "capability(*names): a law of these capabilities; it does not bind an engine that does not declare all of them",
    "timeout(seconds): the bound of pytest-timeout, where that is installed",
)


def declare_markers(config):
    """Declare the markers of the laws."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def both_faces(_place):
    """Return the faces through which a place is tested: both."""
    return FACES


def matrix(places, faces_of=both_faces, without=""):
    """Return one parameter for each place and face; with no place, one that is skipped because of `without`."""
    found = [pytest.param((place, kind), id=f"{place}-{kind}") for place in places for kind in faces_of(place)]
    return found or [pytest.param(None, id="none", marks=pytest.mark.skip(reason=without))]


def parametrize(metafunc, places, faces_of=both_faces):
    """Parametrize the fixtures that a law uses with these places."""
    params = {
        "face": lambda: matrix(places, faces_of),
        "engine": lambda: [pytest.param((place, "blocking"), id=str(place)) for place in places],
        "placed": lambda: matrix(
            [place for place in places if place.unusable], faces_of, "no --holdfast-unusable-url was given"
        ),
        "timed": lambda: matrix(
            [place for place in places if place.manual_clock], faces_of, "the engine takes no clock that a test moves"
        ),
    }
    for name, make in params.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, make(), indirect=True)


def places_of(item):
    """Return the places on which a collected law runs."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return [value[0] for value in values if isinstance(value, tuple) and value and isinstance(value[0], Place)]


def capabilities_of(item):
    """Return the names of the capabilities that a law needs."""
    return {name for marker in item.iter_markers("capability") for name in marker.args}


def lacking(item):
    """Return the place of a collected law and the capabilities that it lacks there, or None."""
    for place in places_of(item):
        names = sorted(capabilities_of(item) & place.lacks)
        if names:
            return place, names
    return None


@contextmanager
def _tidy(*opened):
    """Close the faces; leases, threads and descriptors that are left fail the test."""
    LOOP.wait_for(_nothing())  # starts the task of this thread, so that only what the test opens is counted
    threads, files = threads_of_holdfast(), descriptors()
    yield
    left = [each.close() for each in opened]
    assert left == [[] for _ in opened], "leases were left when the clients were closed"
    eventually(lambda: threads_of_holdfast() <= threads, what=f"an end of {threads_of_holdfast() - threads}")
    eventually(lambda: descriptors() <= files, what=f"an end of {descriptors() - files} open files")


async def _nothing():
    return None


def _face(request, tmp_path, clock=None):
    opened = Face(*request.param, tmp_path / "place", clock)
    with _tidy(opened):
        yield opened


@pytest.fixture(scope="session", autouse=True)
def close_loop():
    """Close the event loop of the asyncio face after the last law."""
    yield
    LOOP.close()


@pytest.fixture
def face(request, tmp_path):
    """One engine through one face."""
    yield from _face(request, tmp_path)


@pytest.fixture
def faces(request, tmp_path, places):
    """All engines through both faces, for laws that run everywhere at the same time: see `together`."""
    needed = capabilities_of(request.node)
    able = [place for place in places if not needed & place.lacks]
    if not able:
        pytest.skip(f"no engine here declares the capability {', '.join(sorted(needed))}")
    every = [Face(place, kind, tmp_path / f"{place}-{kind}") for place in able for kind in FACES]
    with _tidy(*every):
        yield every


@pytest.fixture
def engine(request, tmp_path):
    """One engine without a face, for laws in plain commands: `engine.peer()`."""
    yield from _face(request, tmp_path)


@pytest.fixture
def placed(request, tmp_path):
    """A face of an engine that has URLs of places that it cannot use: `placed.place.unusable`."""
    yield from _face(request, tmp_path)


@pytest.fixture
def timed(request, tmp_path):
    """A face whose time a test moves by hand: `timed.clock`, and `timed.connect()` uses it."""
    yield from _face(request, tmp_path, ManualClock())
