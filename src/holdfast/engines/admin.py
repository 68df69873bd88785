"""Read-only views of an engine for people and tools: which names exist, and the state of the engine.

The search for names is the only operation that may scan. It is bounded, it runs on a connection of its own, and no
grant or renewal of a lease waits for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NAMES_MAX = 1000


class NamePage(NamedTuple):
    """Names that the engine stores, in order; `more` if the limit cut some off."""

    names: tuple[str, ...]
    more: bool = False


class Fact(NamedTuple):
    """One observation: `text` for people, `values` for programs. `server` names the server where there are several."""

    what: str
    text: str
    values: dict[str, Any]
    server: str = ""


class Finding(NamedTuple):
    """A problem that a person should look at. `serious`: leases cannot be relied on until it is solved."""

    serious: bool
    what: str
    advice: str


class EngineReport(NamedTuple):
    """Facts about an engine, its problems, and notes: problems for some users only."""

    facts: tuple[Fact, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
