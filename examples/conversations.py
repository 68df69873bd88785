"""Several web servers, one of which runs each conversation; whichever of them a client asks, it is served.

    python examples/conversations.py redis://localhost "server 1" 8001

It needs `pip install 'holdfast[redis]' httpx starlette uvicorn`. Start several of them, ask any for /conversations/42,
kill the one that runs it, and ask another. A conversation is a counter here. Whoever is asked
and does not own it passes the question on to the owner, whose address is in its claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast import LeaseLost, aio


class Server:
    """One of them: what it runs, and the directory that says who runs the rest."""

    def __init__(self, directory: aio.Registry, label: str, port: int) -> None:
        self._directory = directory
        self._label = label
        self._address = f"http://127.0.0.1:{port}"
        self._running: dict[str, tuple[aio.RegistryLease, int]] = {}
        self._web = httpx.AsyncClient(timeout=5)

    async def ask(self, key: str) -> dict[str, object]:
        """Serve the conversation here, if nobody does, or where it runs."""
        for _ in range(50):
            if key in self._running:
                return self._turn(key)
            lease = await self._directory.claim(key, {"address": self._address})
            if isinstance(lease, aio.RegistryLease):
                self._running[key] = (lease, 0)
                continue
            with contextlib.suppress(httpx.TransportError, KeyError):  # it has just died, or is about to be known
                answer = await self._web.get(f"{lease.info['address']}/run/{key}")
                if answer.status_code == 200:
                    return dict(answer.json())
            await asyncio.sleep(0.2)
        raise TimeoutError(key)

    def _turn(self, key: str) -> dict[str, object]:
        lease, turns = self._running[key]
        try:
            lease.check()  # never two: whoever lost it does nothing more
        except LeaseLost:
            del self._running[key]
            raise
        self._running[key] = (lease, turns + 1)
        return {"conversation": key, "server": self._label, "turns": turns + 1, "fence": lease.fence}

    def run(self, key: str) -> dict[str, object] | None:
        """For the other servers: only if it runs here."""
        return self._turn(key) if key in self._running else None

    async def close(self) -> None:
        """Give everything back, so that others have it at once."""
        for lease, _ in self._running.values():
            with contextlib.suppress(LeaseLost):
                await lease.release()
        await self._web.aclose()


async def conversation(request: Request) -> JSONResponse:
    return JSONResponse(await request.app.state.server.ask(request.path_params["key"]))


async def run(request: Request) -> JSONResponse:
    told = request.app.state.server.run(request.path_params["key"])
    return JSONResponse(told or {"error": "it does not run here"}, 200 if told else 409)


def application(url: str, label: str, port: int) -> Starlette:
    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with await aio.connect(url, label=label) as hf:
            app.state.server = Server(hf.registry("conversations", ttl=3), label, port)
            yield
            await app.state.server.close()

    return Starlette(routes=[Route("/conversations/{key}", conversation), Route("/run/{key}", run)], lifespan=lifespan)


if __name__ == "__main__":
    if len(sys.argv) != 4 or not sys.argv[3].isdecimal():
        sys.exit(__doc__)
    uvicorn.run(application(sys.argv[1], sys.argv[2], int(sys.argv[3])), port=int(sys.argv[3]), log_level="error")
