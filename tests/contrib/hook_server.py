"""A test server: one process with one webhook, which records the events that it handles."""

import asyncio
import os
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast.contrib.asgi import Connection, Webhook, github


def written(book, event):
    """Record that the event is handled; return how often all servers have handled it."""
    with open(book, "a+", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {event}\n")
        file.flush()
        file.seek(0)
        return sum(line.split()[1] == event for line in file)


def main(url, book):
    async def handle(request):
        event = await request.json()
        tries = written(book, event["id"])
        await asyncio.sleep(event.get("takes", 0))
        return JSONResponse({"handled": event["id"]}, 500 if tries <= event.get("fails", 0) else 200)

    app = Webhook(
        Starlette(routes=[Route("/hook", handle, methods=["POST"])]),
        Connection(url),
        github,
        path="/hook",
        name="hooks",
        lease=1.0,
        window=3600,
        timeout=30,
    )
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
