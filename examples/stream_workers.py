"""Workers that are killed at random, and a queue that loses no message.

    python examples/stream_workers.py                    # processes of this host, with a temporary file
    python examples/stream_workers.py redis://localhost --messages 2000 --workers 4 --kills 20
    python examples/stream_workers.py sqlite:///tmp/jobs.db
    python examples/stream_workers.py memory://          # threads of one process, which a program cannot kill

A producer publishes numbers. Each worker is a process that writes every received number into a journal, as its effect.
Now and then the program kills a worker without warning and starts another one. At the end it compares the published
messages with the journal. A message may be done twice, if its worker died between the effect and the ack; it is never
lost. The exit code is 0 if that held.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import holdfast

TTL_S = 2.0


def jobs(hf: holdfast.Holdfast) -> holdfast.Queue:
    return hf.queue("stream-workers", ttl=TTL_S, grace=0.5, max_attempts=20)


def work(url: str, journal: Path, until: threading.Event) -> None:
    """Run one worker. Its effect is a line in the journal, written in one piece."""
    with holdfast.connect(url) as hf, journal.open("ab", buffering=0) as file:

        def handle(message: holdfast.Message) -> None:
            time.sleep(random.uniform(0, 0.01))
            file.write(f"{message.id} {message.fence}\n".encode())

        worker = jobs(hf).worker(handle, concurrency=8, prefetch=8)
        threading.Thread(target=lambda: (until.wait(), worker.stop()), daemon=True).start()
        worker.run()


class Fleet:
    """The workers: processes, or threads with `memory://`."""

    def __init__(self, url: str, journal: Path, count: int) -> None:
        self._url, self._journal = url, journal
        self._over = threading.Event()
        self.processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self.killed = 0
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        if self._url.startswith("memory:"):
            self._threads.append(threading.Thread(target=work, args=(self._url, self._journal, self._over)))
            self._threads[-1].start()
        else:
            command = [sys.executable, __file__, self._url, "--journal", str(self._journal)]
            self.processes.append(subprocess.Popen(command))

    def kill_one(self) -> None:
        """Kill one worker without warning, and start another."""
        if self.processes:
            victim = self.processes.pop(random.randrange(len(self.processes)))
            victim.kill()
            victim.wait()
            self.killed += 1
            self._start()

    def end(self) -> None:
        self._over.set()
        for process in self.processes:
            process.terminate()
            process.wait()
        for thread in self._threads:
            thread.join()


def counters(queue: holdfast.Queue, fleet: Fleet, began: float) -> str:
    now = queue.stats()
    done = now.counts.get("acked", 0)
    rate = done / max(0.001, time.monotonic() - began)
    return (
        f"ready {now.ready:5}  in flight {now.in_flight:3}  done {done:6} ({rate:5.0f}/s)  "
        f"again {now.counts.get('crashed', 0):4}  workers {now.consumers}  killed {fleet.killed}"
    )


def play(url: str, messages: int, workers: int, kills: int) -> bool:
    """Publish, kill workers, wait, and compare."""
    with tempfile.TemporaryDirectory() as folder, holdfast.connect(url or f"sqlite://{folder}/jobs.db") as hf:
        journal = Path(folder) / "journal"
        journal.touch()
        queue = jobs(hf)
        sent = set(queue.publish_many(range(messages)))
        began = shown = time.monotonic()
        fleet = Fleet(url or hf.url, journal, workers)
        try:
            while not sent <= done(journal) or queue.stats().in_flight:
                if fleet.killed < kills and len(done(journal)) > messages * (fleet.killed + 1) / (kills + 2):
                    fleet.kill_one()
                if time.monotonic() - shown > 0.5:
                    shown = time.monotonic()
                    print(counters(queue, fleet, began), flush=True)
                time.sleep(0.05)
        finally:
            fleet.end()
        effects = Counter(done_all(journal))
        lost, twice = sent - effects.keys(), sum(effects.values()) - len(effects)
        valid = bool(queue.check())
        print(f"sent {len(sent)}, lost {len(lost)}, done twice {twice}, killed {fleet.killed}, consistent {valid}")
        bound = fleet.killed * 8  # at most the messages that the killed workers had
        return not lost and twice <= bound and valid and queue.stats().dead == 0


def done_all(journal: Path) -> list[str]:
    return [line.split()[0] for line in journal.read_text().splitlines() if len(line.split()) == 2]


def done(journal: Path) -> set[str]:
    return set(done_all(journal))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default=os.environ.get("HOLDFAST_URL", ""), help="default: a temporary file")
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--journal", type=Path, help="run as a worker and write here (used by the program itself)")
    options = parser.parse_args()
    if options.journal is None:
        return 0 if play(options.url, options.messages, options.workers, options.kills) else 1
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    work(options.url, options.journal, over)
    return 0


if __name__ == "__main__":
    sys.exit(main())
