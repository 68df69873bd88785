"""The engines that live in this process or on this host, and clients of them that are closed at the end."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

import holdfast

_numbers = itertools.count()


# Of the tests that interrupt every line in turn, those that the shared directory keeps: the ones with lines of its own.
INTERRUPTED = ("in_acquire", "contended_acquire", "in_release", "in_close")


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if not _is_left_out(item)]


def _is_left_out(item):
    on_files = item.path.name == "test_interruption.py" and "[file" in item.name
    return on_files and not any(word in item.name for word in INTERRUPTED)


@pytest.fixture(params=["memory", "sqlite", "file"])
def url(request, tmp_path):
    """Return the URL of an engine of this test's own."""
    if request.param == "memory":
        return f"memory://faces-{next(_numbers)}"
    return f"sqlite://{tmp_path}/hf.db" if request.param == "sqlite" else f"file://{tmp_path}"


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite://{tmp_path}/hf.db"


@pytest.fixture
def connect(url):
    """Yield a function that opens clients of the blocking face."""
    clients = []

    def connect(**options):
        clients.append(holdfast.connect(url, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close(timeout=0)


class Prober:
    """Another client, on a thread of its own: if it gets a name in time, no other client holds or blocks the name."""

    def __init__(self, url):
        self._url = url

    def seconds_to_get(self, name, patience=3.0):
        """Return how long another client takes to get the name; raise the error that it would see."""
        answers = []

        def ask():
            try:
                began = time.monotonic()
                with holdfast.connect(self._url) as client:
                    client.lock(name).acquire(timeout=patience).release()
                answers.append(time.monotonic() - began)
            except holdfast.HoldfastError as error:
                answers.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(patience + 3)
        if not answers:
            raise AssertionError(f"another client is blocked on {name!r}")
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]


@pytest.fixture
def prober(url):
    return Prober(url)
