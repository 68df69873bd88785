"""What people ask an engine that no program needs: which names there are, and whether all is well with it.

Looking for names is the one place that may scan. It is bounded, it runs on a connection of its own, and nothing that
grants or renews a lease ever waits for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NAMES_MAX = 1000


class NamePage(NamedTuple):
    """Names that the engine knows, in order; `more` when there were too many to tell them all."""

    names: tuple[str, ...]
    more: bool = False


class Fact(NamedTuple):
    """Something that was seen: as people read it, and as a program does. `server` where there are several."""

    what: str
    text: str
    values: dict[str, Any]
    server: str = ""


class Finding(NamedTuple):
    """Something that somebody should look at. `serious`: leases cannot be relied on until it is put right."""

    serious: bool
    what: str
    advice: str


class EngineReport(NamedTuple):
    """Facts about an engine as it stands; what is wrong with it; and notes, which are wrong only for some."""

    facts: tuple[Fact, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
