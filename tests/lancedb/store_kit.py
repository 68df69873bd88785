"""Tools of the store tests: a schema, rows, an embedding without a model, and the asyncio face for blocking tests."""

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from zlib import crc32

import pyarrow as pa

from holdfast.contrib.lancedb import aio

WIDTH = 8
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("n", pa.int64()),
        ("vector", pa.list_(pa.float32(), WIDTH)),
    ]
)


def vector(number):
    number = number if isinstance(number, int) else crc32(number.encode())
    return [float(number % (place + 2)) for place in range(WIDTH)]


def row(number, text=None, n=0):
    return {"id": f"r{number}", "text": text or f"memory number {number}", "n": n, "vector": vector(number)}


def together(calls):
    """Run all calls at once, each on its own thread; return their results and errors."""
    begin = threading.Barrier(len(calls))

    def one(call):
        begin.wait(30)
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(one, calls))


class Loop:
    """An event loop on its own thread."""

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def open_store(self, *args, **kwargs):
        return Awaited(self.run(aio.open_store(*args, **kwargs)), self)

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Awaited:
    """A store of the asyncio face with the interface of the blocking face."""

    def __init__(self, store, loop):
        self.store = store
        self._loop = loop

    def __getattr__(self, name):
        found = getattr(self.store, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **kwargs: self._loop.run(found(*args, **kwargs))
