"""Where the time of a pair goes: our own two scripts, with ever more of the library around them.

`scripts` sends what was packed beforehand through a bare socket: nothing but the scripts differs from the floor.
`polled` gives that socket a timeout, for which Python asks the kernel before every read. `fresh` draws a token and
packs the commands each time. `form` goes through the library's own form: links that are taken and given back, replies
that become answers. What is above that is the whole lock.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import holdfast
from bench.openers.floor import Link, packed
from holdfast.commands import Acquire, Release
from holdfast.engines.redis.scripts import SCRIPTS, Packer
from holdfast.names import new_token

_WIRE_S = 2.0


def _known(link: Link, ttl: float) -> tuple[Packer, Any]:
    """A packer whose scripts the server knows, and what to ask with a token."""
    for script in SCRIPTS.values():
        link.ask(packed("SCRIPT", "LOAD", script.text))
    owner = "o" * 60  # as long as one usually is
    return Packer("hf1", "bench", 60_000), lambda name, token: Acquire(name, token, owner, round(ttl * 1000), True)


@contextmanager
def scripts(url: str, ttl: float, timeout: float | None = None):
    link = Link(url, timeout)
    packer, asking = _known(link, ttl)
    ask, ready = link.ask, {}

    def take(name: str):
        if name not in ready:
            token = new_token()
            ready[name] = packer.pack(asking(name, token)), packer.pack(Release(name, token))
        taking, giving = ready[name]
        assert ask(taking)

        def give() -> None:
            assert ask(giving)

        return give

    yield take
    link.close()


@contextmanager
def polled(url: str, ttl: float):
    with scripts(url, ttl, timeout=_WIRE_S) as take:
        yield take


@contextmanager
def fresh(url: str, ttl: float):
    link = Link(url, _WIRE_S)
    packer, asking = _known(link, ttl)
    ask, pack = link.ask, packer.pack

    def take(name: str):
        token = new_token()
        assert ask(pack(asking(name, token)))

        def give() -> None:
            assert ask(pack(Release(name, token)))

        return give

    yield take
    link.close()


@contextmanager
def form(url: str, ttl: float):
    with holdfast.connect(url) as hf:
        client = hf._client  # noqa: SLF001 - what is below the lock has no public name
        apply, packed_owner = client.form.apply, client.packed
        hf.lock("bench-first").acquire().release()

        def take(name: str):
            token = new_token()
            apply(Acquire(name, token, packed_owner, round(ttl * 1000), True), None)
            return lambda: apply(Release(name, token), None)

        yield take
