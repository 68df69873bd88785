"""The cost of a confirmed grant: the same pair with and without `confirm="replicas"`, on one machine.

Acquire and release of a free name, one after the other: the median over several rounds, in microseconds. Loopback and
two cores for everything, so a real network adds its own round trip to the farthest replica.

    python bench/studies/confirmed_grant.py [seconds per round]
"""

import asyncio
import statistics
import sys
import time

import holdfast
from holdfast import aio
from holdfast.testing import eventually
from holdfast.testing.servers import Server

ROUNDS = 5
QUICKLY = ("--repl-diskless-sync-delay", "0")


def blocking(url, confirm, seconds):
    with holdfast.connect(url) as hf:
        lock = hf.lock("bench", confirm=confirm)
        lock.acquire().release()
        until, took = time.perf_counter() + seconds, []
        while (began := time.perf_counter()) < until:
            lock.acquire().release()
            took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e6


async def tasks(url, confirm, seconds):
    async with await aio.connect(url) as hf:
        lock = hf.lock("bench", confirm=confirm)
        await (await lock.acquire()).release()
        until, took = time.perf_counter() + seconds, []
        while (began := time.perf_counter()) < until:
            await (await lock.acquire()).release()
            took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e6


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    servers = [Server("valkey", arguments=QUICKLY).start() for _ in range(3)]
    primary, replicas = servers[0], []
    for replica in (None, *servers[1:]):
        if replica is not None:
            replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
            eventually(lambda r=replica: b"master_link_status:up" in r.command("INFO", "replication"), 20)
            replicas.append(replica)
        for confirm in (None, "replicas") if replicas else (None,):
            rounds = [
                (blocking(primary.url, confirm, seconds), asyncio.run(tasks(primary.url, confirm, seconds)))
                for _ in range(ROUNDS)
            ]
            thread, task = (statistics.median(each) for each in zip(*rounds, strict=True))
            print(f"{len(replicas)} replicas, confirm={confirm}: blocking {thread:.0f} us, asyncio {task:.0f} us")
    for server in servers:
        server.close()


if __name__ == "__main__":
    main()
