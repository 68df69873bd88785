"""What people ask an engine that no program needs: which names there are, and whether all is well with it.

Looking for names is the one place that may scan. It is bounded, it runs on a connection of its own, and nothing that
grants or renews a lease ever waits for it.
"""

from __future__ import annotations

from typing import NamedTuple

NAMES_MAX = 1000


class Names(NamedTuple):
    """Names that the engine knows, in order; `more` when there were too many to tell them all."""

    names: tuple[str, ...]
    more: bool = False


class Finding(NamedTuple):
    """Something that somebody should look at. `grave`: leases cannot be relied on until it is put right."""

    grave: bool
    what: str
    advice: str


class Examination(NamedTuple):
    """Facts about an engine as it stands, for people; and what is wrong with it."""

    facts: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()
