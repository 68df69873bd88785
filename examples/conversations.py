"""Several web servers: one of them runs each conversation, and a client may ask any of them.

    python examples/conversations.py redis://localhost "server 1" 8001

It needs `pip install 'holdfast[redis]' httpx starlette uvicorn`. Start several servers, ask any of them for
/conversations/42, kill the one that runs it, and ask another. A conversation is a counter here. A server that does not
own a conversation forwards the request to the owner, whose address is in its registry entry.
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
    """One web server: its conversations, and the registry of all conversations."""

    def __init__(self, registry: aio.Registry, label: str, port: int) -> None:
        self._registry = registry
        self._label = label
        self._address = f"http://127.0.0.1:{port}"
        self._running: dict[str, tuple[aio.RegistryLease, int]] = {}
        self._web = httpx.AsyncClient(timeout=5)

    async def ask(self, key: str) -> dict[str, object]:
        """Serve the conversation here if it has no owner yet, or else at its owner."""
        for _ in range(50):
            if key in self._running:
                return self._turn(key)
            lease = await self._registry.claim(key, {"address": self._address})
            if isinstance(lease, aio.RegistryLease):
                self._running[key] = (lease, 0)
                continue
            with contextlib.suppress(httpx.TransportError, KeyError):  # the owner has just died or restarted
                answer = await self._web.get(f"{lease.info['address']}/run/{key}")
                if answer.status_code == 200:
                    return dict(answer.json())
            await asyncio.sleep(0.2)
        raise TimeoutError(key)

    def _turn(self, key: str) -> dict[str, object]:
        lease, turns = self._running[key]
        try:
            lease.check()  # never two owners: a server that lost the lease stops
        except LeaseLost:
            del self._running[key]
            raise
        self._running[key] = (lease, turns + 1)
        return {"conversation": key, "server": self._label, "turns": turns + 1, "fence": lease.fence}

    def run(self, key: str) -> dict[str, object] | None:
        """Serve a forwarded request, only if the conversation runs here."""
        return self._turn(key) if key in self._running else None

    async def close(self) -> None:
        """Release everything, so that other servers can take over at once."""
        for lease, _ in self._running.values():
            with contextlib.suppress(LeaseLost):
                await lease.release()
        await self._web.aclose()


async def conversation(request: Request) -> JSONResponse:
    return JSONResponse(await request.app.state.server.ask(request.path_params["key"]))


async def run(request: Request) -> JSONResponse:
    answer = request.app.state.server.run(request.path_params["key"])
    return JSONResponse(answer or {"error": "this server does not run it"}, 200 if answer else 409)


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
