"""Where the time of a pair goes: our own two scripts, with ever more of the library around them.

`scripts` sends what was packed beforehand through a bare socket: nothing but the scripts differs from the floor.
`polled` gives that socket a timeout, for which Python asks the kernel before every read. `fresh` draws a token and
packs the commands each time. `transport` goes through the library's own form: links that are taken and given back,
replies that become answers. What is above that is the whole lock.

`handed` and `handed_transport` are the same for a lock that is handed over: who finds it taken blocks on its bell, with
the acquire that confirms the offer sent behind the pop.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any

import holdfast
from bench.adapters.floor import Link, packed
from holdfast.clock import NEVER_NS
from holdfast.commands import Acquire, Busy, Release
from holdfast.core.step import run
from holdfast.engines.redis.scripts import SCRIPTS, Packer
from holdfast.names import new_token

_WIRE_S = 2.0
_POP_S = 1.7  # as ours


def _known(link: Link, ttl: float) -> tuple[Packer, Any]:
    """A packer whose scripts the server knows, and what to ask with a token."""
    for script in SCRIPTS.values():
        link.ask(packed("SCRIPT", "LOAD", script.text))
    owner = "o" * 60  # as long as one usually is
    return Packer("hf2", "bench", 60_000), lambda name, token: Acquire(name, token, owner, round(ttl * 1000), True)


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
def transport(url: str, ttl: float):
    with holdfast.connect(url) as hf:
        client = hf._client  # noqa: SLF001 - what is below the lock has no public name
        apply, packed_owner = client.transport.apply, client.packed
        hf.lock("bench-first").acquire().release()

        def take(name: str):
            token = new_token()
            apply(Acquire(name, token, packed_owner, round(ttl * 1000), True), None)
            return lambda: apply(Release(name, token), None)

        yield take


class Popping(Link):
    """A bare socket on which a command may be sent behind one that blocks."""

    def last_of_two(self, commands: bytes) -> Any:
        self.ask(commands)
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65536))
        return reply


@contextmanager
def handed(url: str, ttl: float):
    first, own = Link(url), threading.local()
    packer, asking = _known(first, ttl)
    pack = packer.pack

    def take(name: str):
        if not hasattr(own, "link"):
            own.link = Popping(url)
        link, token = own.link, new_token()
        asked = asking(name, token)
        reply = link.ask(pack(asked, pops=True))
        while isinstance(reply, list):
            reply = link.last_of_two(packer.pack_pop(asked, _POP_S) + pack(asked, pops=True))

        def give() -> None:
            assert link.ask(pack(Release(name, token))) == 1

        return give

    yield take
    first.close()


@contextmanager
def handed_transport(url: str, ttl: float):
    with holdfast.connect(url) as hf:
        client = hf._client  # noqa: SLF001 - as above
        transport = client.transport

        async def taken(name: str, token: str) -> None:
            asked = Acquire(name, token, client.packed, round(ttl * 1000), True)
            answer: Any = None
            while answer is None or isinstance(answer, Busy):
                answer = await transport.wait(asked, NEVER_NS) if answer else transport.apply(asked, None)
                if answer is not None and not isinstance(answer, tuple):
                    answer = await answer

        def take(name: str):
            token = new_token()
            run(taken(name, token))
            return lambda: transport.apply(Release(name, token), None)

        yield take
