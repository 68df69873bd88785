"""Where a law holds: the URL of an engine, and what the engine declares there."""

import tempfile
import uuid
from dataclasses import dataclass

from holdfast import config
from holdfast.core.step import run
from holdfast.engines import find_driver, open_engine
from holdfast.engines.interface import Capability
from holdfast.errors import InvalidConfig
from holdfast.testing.clock import ManualClock

FRESH = ("{unique}", "{folder}")


@dataclass(frozen=True)
class Place:
    """One engine at one URL.

    `engine` is the name of the engine, `label` the name of the place in the ids of tests. In `url`, `{folder}` becomes
    a fresh directory and `{unique}` a fresh word. `unusable` are URLs of places that the engine cannot use:
    `{folder}/taken` is a directory there, `{folder}/file` a file. `manual_clock` means that the engine takes a clock
    that a test moves. `large` is a place of many servers. `lacks` are the names of the capabilities that the engine
    does not declare. `fences_grow` is what the promise of the engine must state; `None` accepts both.
    """

    engine: str
    url: str
    unusable: tuple[str, ...] = ()
    manual_clock: bool = False
    large: bool = False
    lacks: frozenset[str] = frozenset()
    label: str = ""
    fences_grow: bool | None = None

    def __str__(self):
        return self.label or self.engine

    def fresh_url(self, folder, unique):
        """Return the URL of an empty place for one test."""
        return self.url.format(folder=folder, unique=unique)


def place_of(url, unusable=()):
    """Return the place that a URL of `--holdfast-url` names, after a look at its engine."""
    url = _fresh(url)
    opened = _open(url)
    try:
        lacks = frozenset(each.name.lower() for each in Capability if each not in opened.capabilities)
        return Place(opened.name, url, unusable, manual_clock=_takes_clock(url), lacks=lacks)
    finally:
        _close(opened)


def _fresh(url):
    """Return the URL with a part that is fresh for every test."""
    if any(each in url for each in FRESH):
        return url
    find_driver(url.partition(":")[0].lower(), config.shown_url(url))  # an unknown scheme is the first thing to correct
    candidates = [url + "{unique}"] if url.endswith("://") else []
    candidates.append(url + ("&" if "?" in url else "?") + "namespace={unique}")
    for candidate in candidates:
        try:
            _close(_open(candidate))
        except InvalidConfig:
            continue
        return candidate
    raise InvalidConfig("--holdfast-url", url, "it must contain {unique} or {folder}: every test needs an empty place")


def _open(url, clock=None):
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        return open_engine(config.settings(url.format(folder=folder, unique=uuid.uuid4().hex), clock=clock))


def _close(engine):
    run(engine.blocking().close())


def _takes_clock(url):
    try:
        _close(_open(url, ManualClock()))
    except InvalidConfig:
        return False
    return True
