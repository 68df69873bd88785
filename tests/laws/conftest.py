"""Runs the shipped laws on the engines of this repository; `holdfast.testing.conformance` has the laws and fixtures."""

import pytest

pytest.register_assert_rewrite("holdfast.testing.conformance")

from law_places import ALL_LAWS, PLACES, STARTED, faces_of

from holdfast.testing.conformance import fixtures
from holdfast.testing.conformance.fixtures import *


def pytest_generate_tests(metafunc):
    """Run each law on each place through its faces."""
    fixtures.parametrize(metafunc, PLACES, faces_of)


def pytest_collection_modifyitems(items):
    """Leave out the laws of capabilities that a place lacks, and most laws on groups of servers."""
    items[:] = [item for item in items if not fixtures.lacking(item) and not _too_large(item)]


def _too_large(item):
    large = any(place.large for place in fixtures.places_of(item))
    return large and not (ALL_LAWS or item.get_closest_marker("large"))


@pytest.fixture(scope="session")
def places():
    """All places; the servers end with the last law."""
    return PLACES


@pytest.fixture(scope="session", autouse=True)
def _close_servers():
    yield
    STARTED.close()
