"""One client of a hub. A request and its reply are one line of JSON each, on a TCP connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading

from holdfast.clock import SYSTEM
from holdfast.engines import Capability, Promise, Scope
from holdfast.engines.admin import EngineReport, Fact, NamePage
from holdfast.engines.remote import RemoteEngine, ServerTime


class HubConnection:
    """The requests of a transaction; a subclass sends them."""

    server_id = ""

    def __init__(self, space, until_ns):
        self.space, self.until_ns = space, until_ns

    async def ask(self, do, **details):
        raise NotImplementedError

    async def begin(self, names, until_ns):
        self.until_ns = until_ns
        return ServerTime(*await self.ask("begin", names=list(names)))

    async def load(self, name):
        return await self.ask("load", name=self.space + name)

    async def store(self, name, body, forget_us):
        await self.ask("store", name=self.space + name, body=body, forget_us=forget_us)

    async def heartbeats(self, clients):
        return await self.ask("heartbeats", clients=list(clients))

    async def heartbeat(self, client):
        await self.ask("heartbeat", client=client)

    async def notify(self, client, token):
        await self.ask("notify", client=client, token=token)

    async def commit(self):
        await self.ask("commit")

    def left_s(self):
        return max(0.001, (self.until_ns - SYSTEM.now_ns()) / 1e9)


class BlockingHubConnection(HubConnection):
    """A connection for threads: it blocks inside its awaits."""

    def __init__(self, address, space, until_ns):
        super().__init__(space, until_ns)
        self._socket = socket.create_connection(address, timeout=self.left_s())
        self._lines = self._socket.makefile("rb")
        try:
            self.server_id = self._read()
        except BaseException:
            self.close_now()
            raise

    def _read(self):
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the hub closed the connection")
        return json.loads(line)

    async def ask(self, do, **details):
        return self.ask_now(do, **details)

    def ask_now(self, do, **details):
        self._socket.settimeout(self.left_s())
        self._socket.sendall(json.dumps({"do": do, **details}).encode() + b"\n")
        return self._read()

    def lines(self):
        """Wait for lines that the hub sends unasked, until the connection ends."""
        self._socket.settimeout(None)
        return map(json.loads, self._lines)

    async def close(self):
        self.close_now()

    def stop(self):
        """End a read of another thread, which closing alone would not wake up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close_now(self):
        self.stop()
        self._lines.close()
        self._socket.close()


class AsyncioHubConnection(HubConnection):
    """A connection for tasks: it suspends."""

    @classmethod
    async def open(cls, address, space, until_ns):
        self = cls(space, until_ns)
        async with asyncio.timeout(self.left_s()):
            self._reader, self._writer = await asyncio.open_connection(*address)
            self.server_id = json.loads(await self._reader.readuntil())
        return self

    async def ask(self, do, **details):
        self._writer.write(json.dumps({"do": do, **details}).encode() + b"\n")
        async with asyncio.timeout(self.left_s()):
            await self._writer.drain()
            return json.loads(await self._reader.readuntil())

    async def close(self):
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class HubEngine(RemoteEngine):
    """A client of the hub: it keeps leases, and nothing else."""

    name = "hub"
    scope = Scope.HOSTS
    capabilities = frozenset((Capability.FIFO,))

    def __init__(self, path, memory_us):
        super().__init__(memory_us)
        address, _, self._space = path.partition("/")
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))

    def connect_blocking(self, until_ns):
        return BlockingHubConnection(self._address, self._space, until_ns)

    async def connect_asyncio(self, until_ns):
        return await AsyncioHubConnection.open(self._address, self._space, until_ns)

    def subscribe(self, wake, missed):
        connections, ended = [self._subscribed_connection()], threading.Event()

        def read():
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    for token in connections[-1].lines():
                        wake(token)
                connections[-1].close_now()
                while not ended.wait(0.05):
                    try:
                        connections.append(self._subscribed_connection())
                    except (OSError, EOFError):
                        continue
                    missed()
                    break

        def end():
            ended.set()
            connections[-1].stop()
            reader.join()

        reader = threading.Thread(target=read, name="hub-wakeups", daemon=True)
        reader.start()
        return end

    def _subscribed_connection(self):
        connection = self.connect_blocking(SYSTEM.now_ns() + 1_000_000_000)
        connection.ask_now("subscribe", client=self.client)
        return connection

    def _once(self, do, **details):
        connection = self.connect_blocking(SYSTEM.now_ns() + 5_000_000_000)
        try:
            return connection.ask_now(do, **details)
        finally:
            connection.close_now()

    def promised(self):
        return Promise(
            engine="hub",
            scope=self.scope,
            level="survives client faults",
            fifo=True,
            fences_grow=True,
            reasons=("each command is one transaction on the hub",),
            caveats=(),
        )

    def location(self):
        return f"{self._address[0]}:{self._address[1]}/{self._space}"

    def names(self, prefix, limit, kind=""):
        stored = [] if kind else self._once("names")
        found = sorted(name[len(self._space) :] for name in stored if name.startswith(self._space + prefix))
        return NamePage(tuple(found[:limit]), more=len(found) > limit)

    def examine(self):
        count = len(self._once("names"))
        return EngineReport((Fact("names remembered", str(count), {"names": count}),))
