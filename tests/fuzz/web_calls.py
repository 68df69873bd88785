"""Calls of the real web middleware with any request, and the bounds that each of them keeps."""

import asyncio
import gc
import itertools
import time
import tracemalloc

from hypothesis import strategies as st

from holdfast.contrib.asgi import Connection

CPU_MAX_S = 1.0
MEMORY_MAX_BYTES = 64 * 1024 * 1024
INPUT_MAX_BYTES = 1024 * 1024

_numbers = itertools.count()


async def handling(scope, receive, send):
    """Read the whole body, and answer 201, which no middleware does."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"handled"})


async def call(app, scope, pieces):
    """Send a request in pieces; return the status of the complete answer, or the close code of a WebSocket."""
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    if scope["type"] == "websocket":
        messages = [{"type": "websocket.connect"}]
    waiting, sent = iter(messages), []

    async def receive():
        return next(waiting, {"type": "http.disconnect"})

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    if scope["type"] == "websocket":
        return sent[-1]["code"]
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    headers = dict(sent[0]["headers"])
    assert all(b"\r" not in value and b"\n" not in value for value in headers.values())
    return sent[0]["status"]


def bounded(make, *requests):
    """Call a fresh application with each request; return the statuses.

    `make(connection)` returns the application. Each call keeps the bound of CPU time. A second run of all calls keeps
    the bound of memory: `tracemalloc` would slow the first one down.
    """

    async def run(check):
        connection = Connection(f"memory://fuzz-{next(_numbers)}")
        app = make(connection)
        await connection()
        try:
            return [await check(app, scope, pieces) for scope, pieces in requests]
        finally:
            await connection.close()

    async def timed(app, scope, pieces):
        began = time.thread_time()
        status = await call(app, dict(scope), pieces)
        seconds = time.thread_time() - began
        assert seconds <= CPU_MAX_S, f"{seconds:.2f} s of CPU time"
        return status

    async def measured(app, scope, pieces):
        tracemalloc.start()
        try:
            status = await call(app, dict(scope), pieces)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak <= MEMORY_MAX_BYTES, f"{peak} bytes"
        return status

    statuses = asyncio.run(run(timed))
    assert asyncio.run(run(measured)) == statuses
    gc.collect(0)
    return statuses


def scopes(paths, headers):
    """Return a strategy of scopes: any query, headers, address and subprotocols, and mostly these paths and headers."""
    names = st.one_of(st.sampled_from(headers), st.binary(max_size=20))
    values = st.one_of(st.binary(max_size=60), st.builds(bytes.__mul__, st.binary(max_size=9), st.integers(0, 9000)))
    return st.fixed_dictionaries(
        {
            "type": st.just("http"),
            "method": st.sampled_from(["POST", "POST", "GET"]),
            "path": st.one_of(st.sampled_from(paths), st.text(max_size=50)),
            "root_path": st.text(max_size=9),
            "query_string": st.binary(max_size=50),
            "headers": st.lists(st.tuples(names, values), max_size=6),
            "client": st.none() | st.tuples(st.text(max_size=600) | st.ip_addresses().map(str), st.just(1)),
            "subprotocols": st.lists(st.text(max_size=9), max_size=2),
        }
    )


def large(units):
    """Return a strategy of bodies up to the maximum: a prefix, a unit many times, and a suffix."""
    few = st.one_of(st.sampled_from(units), st.binary(max_size=12))

    def body(before, unit, times, after):
        return (before + unit * (times // max(1, len(unit))) + after)[:INPUT_MAX_BYTES]

    sizes = st.one_of(st.integers(0, 2000), st.integers(0, INPUT_MAX_BYTES))
    return st.builds(body, few, few, sizes, few)


def in_pieces(bodies):
    """Return a strategy of these bodies, cut into pieces of one length; some are as short as a byte."""

    def cut(body, size):
        size = max(size, len(body) // 20_000, 1)
        return [body[start : start + size] for start in range(0, len(body), size)]

    return st.builds(cut, bodies, st.one_of(st.integers(1, 100), st.just(INPUT_MAX_BYTES)))
