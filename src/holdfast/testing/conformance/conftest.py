"""Runs the laws on the engine that `--holdfast-url` names."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.testing.conformance import fixtures
from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.places import place_of

_PLACES = pytest.StashKey()


def pytest_configure(config):
    """Open the engines once, and declare the markers of the laws for projects that refuse unknown ones."""
    fixtures.declare_markers(config)
    urls, unusable = config.getoption("holdfast_url"), tuple(config.getoption("holdfast_unusable_url"))
    if not urls:
        raise pytest.UsageError("the laws need an engine: pass its URL with --holdfast-url")
    try:
        config.stash[_PLACES] = [place_of(url, unusable) for url in urls]
    except HoldfastError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_generate_tests(metafunc):
    """Run each law on each place through each face."""
    fixtures.parametrize(metafunc, metafunc.config.stash[_PLACES])


def pytest_collection_modifyitems(items):
    """Skip the laws of capabilities that an engine does not declare."""
    for item in items:
        lacking = fixtures.lacking(item)
        if lacking:
            place, names = lacking
            item.add_marker(pytest.mark.skip(reason=f"{place} does not declare the capability {', '.join(names)}"))


@pytest.fixture(scope="session")
def places(pytestconfig):
    """The engines that `--holdfast-url` names."""
    return pytestconfig.stash[_PLACES]
