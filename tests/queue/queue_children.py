"""Processes that work on a queue, and are killed, frozen and stopped."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time

import holdfast
from holdfast import aio
from holdfast.testing import ready

TTL_S = 1.5


def jobs(hf, **options):
    return hf.queue("jobs", grace=0.3, **{"ttl": TTL_S, "max_attempts": 3, **options})


def work(url, journal, label="worker", seconds=0.0, concurrency=4, prefetch=4, ttl=TTL_S):
    """Handle messages until stopped; each effect is one line, written at once and whole."""
    with holdfast.connect(url) as hf, open(journal, "ab", buffering=0) as file:

        def handle(message):
            file.write(f"begun {message.id} {message.body} {message.fence} {message.attempt}\n".encode())
            file.write(f"met {message.id} {time.time()} {time.monotonic()}\n".encode())
            if message.body == "poison":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(seconds)
            file.write(f"done {message.id} {message.body} {message.fence} {message.attempt}\n".encode())

        worker = jobs(hf, ttl=ttl).worker(handle, name=label, concurrency=concurrency, prefetch=prefetch)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        ready()
        worker.run()


def hold_one(url, journal):
    """Receive a message, wait for a signal, then ack it and write down the result."""
    with holdfast.connect(url) as hf, jobs(hf).consumer("holder") as consumer:
        (message,) = consumer.receive(timeout=30)
        # A list, because the handler may interrupt the wait of a `threading.Event` and would then wait for its lock.
        signals = []
        signal.signal(signal.SIGUSR1, lambda number, _frame: signals.append(number))
        ready()
        while not signals:
            time.sleep(0.05)
        with open(journal, "a") as file:
            try:
                message.ack()
                file.write(f"acked {message.fence}\n")
            except holdfast.LeaseLost as lost:
                file.write(f"lost {message.fence} {lost.reason}\n")


def acknowledge_first(url, journal):
    """Handle messages as a broken worker: ack first, then work."""
    with holdfast.connect(url) as hf, jobs(hf).consumer("hasty") as consumer:
        for message in consumer:
            message.ack()
            ready()
            time.sleep(60)
            with open(journal, "a") as file:
                file.write(f"done {message.id} {message.body} 0 1\n")


def stall(url, journal, kind, seconds, queue):
    """Run an asyncio worker whose handler blocks its loop, or keeps the interpreter from every other thread."""

    async def handle(message):
        file.write(f"begun {message.id} {queue} {message.fence} {message.attempt}\n".encode())
        if message.attempt == 1:
            ready()
            if kind == "loop":
                time.sleep(seconds)  # noqa: ASYNC251 - that is the mistake
            else:
                ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # called without releasing the interpreter lock
        file.write(f"done {message.id} {queue} {message.fence} {message.attempt}\n".encode())

    def observe(event):
        if event.kind == "lost" and "refused" in event.detail:
            file.write(f"refused {queue}\n".encode())

    async def work():
        async with await aio.connect(url, observer=observe) as hf:
            worker = hf.queue(queue, ttl=TTL_S, grace=0.3).worker(handle, name=kind, concurrency=1)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
            await worker.run()

    with open(journal, "ab", buffering=0) as file:
        asyncio.run(work())


def work_with_care(url, journal):
    """Run an asyncio worker whose handler is long, and writes down once that it was cancelled."""

    async def handle(message):
        ready()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            file.write(f"cancelled {message.fence}\n".encode())
            raise

    async def work():
        async with await aio.connect(url) as hf:
            await jobs(hf).worker(handle, name="careful", concurrency=1, prefetch=0, on_loss="cancel").run()

    with open(journal, "ab", buffering=0) as file:
        asyncio.run(work())


def redrive(url, journal, rate):
    """Redrive all dead letters at this rate, until killed."""
    with holdfast.connect(url) as hf:
        ready()
        jobs(hf).dlq.redrive(rate=rate)


def send_later(url, journal, count, delay):
    """Publish delayed messages, and write down the time by the calendar here and by the machine's clock."""
    with holdfast.connect(url) as hf, open(journal, "ab", buffering=0) as file:
        file.write(f"sent {time.time()} {time.monotonic()}\n".encode())
        jobs(hf).publish_many(range(count), delay=delay)
        ready()
        time.sleep(60)
