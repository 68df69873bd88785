"""Where the time of a pair goes: our own two scripts, with more and more of the library around them.

`scripts` sends packed commands through a bare socket: only the scripts differ from the floor. `polled` gives that
socket a timeout, for which Python calls poll() before every read. `fresh` makes a token and packs the commands each
time. `transport` uses the library's own transport: connections from a pool, replies that become answers. The layer
above that is the whole lock.

`handed` and `handed_transport` are the same for a lock that is handed over: a waiter blocks on its wake-up key, and the
acquire that confirms the offer follows the pop in the same write.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any

import holdfast
from bench.adapters.floor import Link, packed
from holdfast.clock import NEVER_NS
from holdfast.commands import Acquire, Busy, ReleaseLease
from holdfast.core.step import run
from holdfast.engines.redis.scripts import SCRIPTS, Packer
from holdfast.names import new_token

_WIRE_S = 2.0
_POP_S = 1.7  # the timeout of our own pop


def _known(link: Link, ttl: float) -> tuple[Packer, Any]:
    """Load the scripts; return a packer, and a function that makes the acquire command of a token."""
    for script in SCRIPTS.values():
        link.ask(packed("SCRIPT", "LOAD", script.text))
    holder = "o" * 60  # of the usual length
    return Packer("hf2", "bench", 60_000), lambda name, token: Acquire(name, token, holder, round(ttl * 1000), True)


@contextmanager
def scripts(url: str, ttl: float, timeout: float | None = None):
    link = Link(url, timeout)
    packer, acquire_command = _known(link, ttl)
    ask, ready = link.ask, {}

    def acquire(name: str):
        if name not in ready:
            token = new_token()
            ready[name] = packer.pack(acquire_command(name, token)), packer.pack(ReleaseLease(name, token))
        acquire_bytes, release_bytes = ready[name]
        assert ask(acquire_bytes)

        def release() -> None:
            assert ask(release_bytes)

        return release

    yield acquire
    link.close()


@contextmanager
def polled(url: str, ttl: float):
    with scripts(url, ttl, timeout=_WIRE_S) as acquire:
        yield acquire


@contextmanager
def fresh(url: str, ttl: float):
    link = Link(url, _WIRE_S)
    packer, acquire_command = _known(link, ttl)
    ask, pack = link.ask, packer.pack

    def acquire(name: str):
        token = new_token()
        assert ask(pack(acquire_command(name, token)))

        def release() -> None:
            assert ask(pack(ReleaseLease(name, token)))

        return release

    yield acquire
    link.close()


@contextmanager
def transport(url: str, ttl: float):
    with holdfast.connect(url) as hf:
        client = hf._client  # noqa: SLF001 - the transport has no public name
        apply, packed_holder = client.transport.apply, client.packed
        hf.lock("bench-first").acquire().release()

        def acquire(name: str):
            token = new_token()
            apply(Acquire(name, token, packed_holder, round(ttl * 1000), True), None)
            return lambda: apply(ReleaseLease(name, token), None)

        yield acquire


class Popping(Link):
    """A bare socket on which a command may follow one that blocks."""

    def last_of_two(self, commands: bytes) -> Any:
        self.ask(commands)
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65536))
        return reply


@contextmanager
def handed(url: str, ttl: float):
    first, own = Link(url), threading.local()
    packer, acquire_command = _known(first, ttl)
    pack = packer.pack

    def acquire(name: str):
        if not hasattr(own, "link"):
            own.link = Popping(url)
        link, token = own.link, new_token()
        asked = acquire_command(name, token)
        reply = link.ask(pack(asked, pops=True))
        while isinstance(reply, list):
            reply = link.last_of_two(packer.pack_pop(asked, _POP_S) + pack(asked, pops=True))

        def release() -> None:
            assert link.ask(pack(ReleaseLease(name, token))) == 1

        return release

    yield acquire
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

        def acquire(name: str):
            token = new_token()
            run(taken(name, token))
            return lambda: transport.apply(ReleaseLease(name, token), None)

        yield acquire
