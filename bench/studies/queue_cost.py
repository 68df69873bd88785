"""The cost of a queue for its server: commands and microseconds per message, and the longest single steps.

    python bench/studies/queue_cost.py

The study compares our queue with the same path on a stream with a consumer group: the least that a stream needs for
the same promises (it checks the holder of a message, deliveries are fenced, a publish that is sent twice counts once).
Figures are the server's own: INFO commandstats and used_memory. They include all commands that scripts call.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from holdfast import config
from holdfast.commands.queue import (
    ACK,
    BATCH_MAX,
    REJECT,
    RETRY,
    Join,
    Leave,
    MessageOutcome,
    NewMessage,
    Publish,
    Receive,
    ReclaimExpired,
    RecordOutcomes,
)
from holdfast.core.step import run
from holdfast.engines import open_engine
from holdfast.testing.servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable

BODY = b"x" * 100
NOT_COUNTED = ("config", "info", "script", "xgroup")

STREAM = {
    "publish": """
redis.call('TIME') redis.call('GET', '{q}:sent')
for i = 1, #ARGV, 2 do
  redis.call('XADD', '{q}:s', '*', 'i', ARGV[i], 'm', '1700000000000000 0 0 0 0 0', 'b', ARGV[i + 1])
end
redis.call('SET', '{q}:sent', '1', 'PX', 60000) redis.call('ZPOPMIN', '{q}:waiting')
redis.call('HINCRBY', '{q}:meta', 'published', #ARGV / 2)
return 1""",
    "receive": """
redis.call('TIME') redis.call('HGET', '{q}:consumers', ARGV[1])
redis.call('ZRANGEBYSCORE', '{q}:due', '-inf', 1, 'LIMIT', 0, 128)
local found = redis.call('XREADGROUP', 'GROUP', 'g', ARGV[1], 'COUNT', ARGV[2], 'STREAMS', '{q}:s', '>')
redis.call('ZREM', '{q}:waiting', ARGV[1]) redis.call('XLEN', '{q}:s')
redis.call('HINCRBY', '{q}:meta', 'received', 1) redis.call('HINCRBY', '{q}:meta', 'fence', 1)
return found""",
    "ack": """
redis.call('TIME') redis.call('HGET', '{q}:consumers', ARGV[1])
local mine, ids = {}, {}
for _, each in ipairs(redis.call('XPENDING', '{q}:s', 'g', ARGV[2], ARGV[#ARGV], #ARGV * 2, ARGV[1])) do
  mine[each[1]] = true
end
for i = 2, #ARGV do if mine[ARGV[i]] then ids[#ids + 1] = ARGV[i] end end
redis.call('XACK', '{q}:s', 'g', unpack(ids)) redis.call('XDEL', '{q}:s', unpack(ids))
redis.call('HINCRBY', '{q}:meta', 'acked', #ids)
return #ids""",
}


class ServerFigures:
    """The counters of a server."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def calls(self) -> int:
        """Return the number of commands so far."""
        calls = 0
        for line in self.server.command("INFO", "commandstats").decode().split("\r\n"):
            name, _, facts = line.removeprefix("cmdstat_").partition(":calls=")
            if facts and not name.startswith(NOT_COUNTED):
                calls += int(facts.partition(",")[0])
        return calls

    def cpu_us(self) -> float:
        """Return the CPU time of the server: other programs disturb it little."""
        text = self.server.command("INFO", "cpu").decode()
        seconds = (float(text.partition(f"used_cpu_{kind}:")[2].partition("\r")[0]) for kind in ("user", "sys"))
        return sum(seconds) * 1e6

    def step_us(self, work: Callable[[], Any]) -> int:
        """Return how long the server was blocked by the one script that `call` runs."""
        self.server.command("CONFIG", "RESETSTAT")
        work()
        text = self.server.command("INFO", "commandstats").decode()
        return int(text.partition("cmdstat_evalsha:")[2].partition("usec=")[2].partition(",")[0])

    def memory(self) -> int:
        text = self.server.command("INFO", "memory").decode()
        return int(text.partition("used_memory:")[2].partition("\r")[0])

    def of(self, work: Callable[[], Any]) -> tuple[int, float]:
        """Return commands and microseconds of some work."""
        self.server.command("CONFIG", "RESETSTAT")
        before = self.cpu_us()
        work()
        after = self.cpu_us()
        return self.calls(), after - before


class Ours:
    """Our queue: commands as the library sends them."""

    def __init__(self, server: Server) -> None:
        self._transport = open_engine(config.settings(server.url)).blocking()
        self.send(Join("q", "t", "", "me", 3_600_000))
        self._received: list[list[str]] = []

    def send(self, command: Any) -> Any:
        answer = self._transport.apply(command)
        return answer if isinstance(answer, tuple) else run(answer)

    def publish(self, first: int, count: int) -> None:
        self.send(
            Publish(
                "q", f"{first}", tuple(NewMessage(f"{number:026d}", BODY) for number in range(first, first + count))
            )
        )

    def receive(self, count: int) -> None:
        self._received.append([each.entry for each in self.send(Receive("q", "t", count)).deliveries])

    def ack(self) -> None:
        entries = self._received.pop(0)
        self.send(RecordOutcomes("q", "t", tuple(MessageOutcome(entry, ACK) for entry in entries)))

    def close(self) -> None:
        run(self._transport.close())


class OnStream:
    """The same path on a stream."""

    def __init__(self, server: Server) -> None:
        self._server = server
        server.command("XGROUP", "CREATE", "{q}:s", "g", "0", "MKSTREAM")
        self._shas = {name: server.command("SCRIPT", "LOAD", text) for name, text in STREAM.items()}
        self._received: list[list[bytes]] = []

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._server.command("EVALSHA", self._shas[name], 0, *arguments)

    def publish(self, first: int, count: int) -> None:
        self._call("publish", *(value for n in range(first, first + count) for value in (f"{n:026d}", BODY)))

    def receive(self, count: int) -> None:
        self._received.append([each[0] for each in self._call("receive", "t", count)[0][1]])

    def ack(self) -> None:
        self._call("ack", "t", *self._received.pop(0))

    def close(self) -> None:
        return


def layout(server: Server, kind: type, count: int, batch: int) -> dict[str, float]:
    """Return the cost of a message from its publish to its ack."""
    server.command("FLUSHALL")
    side, counters = kind(server), ServerFigures(server)
    side.publish(0, batch)  # loads the scripts
    side.receive(batch)
    side.ack()
    empty, found = counters.memory(), {}
    rounds = range(1, count // batch + 1)
    costs = [counters.of(lambda: [side.publish(number * batch, batch) for number in rounds])]
    found["bytes ready"] = (counters.memory() - empty) / count
    costs.append(counters.of(lambda: [side.receive(batch) for _ in rounds]))
    found["bytes held"] = (counters.memory() - empty) / count
    costs.append(counters.of(lambda: [side.ack() for _ in rounds]))
    side.close()
    for name, (calls, usec) in zip(("publish", "receive", "ack"), costs, strict=True):
        found[f"{name} us"], found[f"{name} commands"] = usec / count, calls / count
    found["all us"] = sum(usec for _, usec in costs) / count
    found["all commands"] = sum(calls for calls, _ in costs) / count
    return found


def checks(server: Server, held: int, consumers: int) -> tuple[float, float]:
    """Return the microseconds of a check for expired consumers without any, and of a check that comes too early."""
    server.command("FLUSHALL")
    ours, counters = Ours(server), ServerFigures(server)
    for number in range(consumers):
        ours.send(Join("q", f"c{number}", "", "me", 3_600_000))
    for first in range(0, held, BATCH_MAX):
        ours.publish(first, BATCH_MAX)
        ours.send(Receive("q", f"c{first // BATCH_MAX % consumers}", BATCH_MAX))
    each, early = [], []
    for _ in range(50):
        time.sleep(0.003)
        each.append(counters.step_us(lambda: ours.send(ReclaimExpired("q", 1, 0, 1, 5))))
        ours.send(ReclaimExpired("q", 60_000, 0, 1, 5))
        early.append(counters.step_us(lambda: ours.send(ReclaimExpired("q", 60_000, 0, 1, 5))))
        server.command("DEL", "hf2:{q}:queue")  # makes the next check due
    ours.close()
    return statistics.median(each), statistics.median(early)


def longest(server: Server) -> dict[str, int]:
    """Return the microseconds of the largest steps: the least of several, because other programs disturb them."""
    rounds = [_steps(server) for _ in range(5)]
    return {what: min(each[what] for each in rounds) for what in rounds[0]}


def _steps(server: Server) -> dict[str, int]:
    server.command("FLUSHALL")
    ours, counters, found = Ours(server), ServerFigures(server), {}

    def received(token: str, count: int) -> list[str]:
        entries = []
        for first in range(0, count, BATCH_MAX):
            part = min(BATCH_MAX, count - first)
            ours.publish(time.monotonic_ns(), part)
            entries += [each.entry for each in ours.send(Receive("q", token, part)).deliveries]
        return entries

    received("t", 1)
    found[f"publish {BATCH_MAX}"] = counters.step_us(lambda: ours.publish(0, BATCH_MAX))
    found[f"receive {BATCH_MAX}"] = counters.step_us(lambda: ours.receive(BATCH_MAX))
    for kind in (ACK, RETRY, REJECT):
        outcomes = tuple(MessageOutcome(entry, kind, 0, "reason", "an error") for entry in received("t", BATCH_MAX))
        ours.send(RecordOutcomes("q", "t", outcomes[:1]))
        command = RecordOutcomes("q", "t", outcomes[1:])
        found[f"record {BATCH_MAX} outcomes, {kind}"] = counters.step_us(lambda command=command: ours.send(command))
    for number, count in enumerate((1, BATCH_MAX, 1000)):
        ours.send(Join("q", f"leaves {number}", "", "me", 3_600_000))
        received(f"leaves {number}", count)
        found[f"leave with {count}"] = counters.step_us(lambda number=number: ours.send(Leave("q", f"leaves {number}")))
    for token in ("dies", "too"):
        ours.send(Join("q", token, "", "me", 100))
        received(token, 500)
    server.command("DEL", "hf2:{q}:queue")
    time.sleep(0.2)
    ours.send(ReclaimExpired("q", 1000, 0, 1000, 5))
    found[f"a check that reclaims {BATCH_MAX}"] = counters.step_us(
        lambda: ours.send(ReclaimExpired("q", 1000, 0, 1000, 5))
    )
    ours.close()
    return found


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with Server("valkey") as server:
        for batch in (100, 1):
            for kind in (OnStream, Ours, OnStream, Ours):
                found = layout(server, kind, count if batch > 1 else count // 10, batch)
                print(f"batch {batch:3d} {kind.__name__:9s}", "  ".join(f"{k} {v:.2f}" for k, v in found.items()))
        for held in (1000, 100_000):
            each, early = checks(server, held, 100)
            print(f"{held} held, no expired consumer: a check {each:.0f} us, a check that is too early {early:.0f} us")
        for what, usec in longest(server).items():
            print(f"{what}: {usec} us")


if __name__ == "__main__":
    main()
