"""A delay line between a client and a server: a process that forwards all bytes, later.

    with DelayLine(server.port) as line:
        client = holdfast.connect(line.url)
        line.delay(0.06)    # the round trip, from now on

The line has its own process, because a proxy in the process of the test would compete with the keeper for the
interpreter.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Self


class DelayLine:
    """A delay line to a port of this host; the `with` block ends it."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, __file__, str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.port = int(self._stdout.readline())
        self.url = f"redis://127.0.0.1:{self.port}"

    def delay(self, seconds: float) -> None:
        """Let each round trip take so much longer, from now on."""
        print(seconds, file=self._stdin, flush=True)
        self._stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stdin.close()
        self._process.wait(10)
        self._stdout.close()


class _Line:
    def __init__(self, port: int) -> None:
        self._port = port
        self._one_way_s = 0.0

    async def run(self) -> None:
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            self._one_way_s = float(line) / 2
            print("set", flush=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, commands = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._forward(reader, commands), self._forward(answers, writer), return_exceptions=True)

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await source.read(65536):
                loop.call_later(self._one_way_s, target.write, data)
        finally:
            loop.call_later(self._one_way_s, target.close)


if __name__ == "__main__":
    asyncio.run(_Line(int(sys.argv[1])).run())
