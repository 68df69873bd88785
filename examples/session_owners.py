"""Pods own chat sessions; meanwhile they are killed, frozen, started and stopped.

    python examples/session_owners.py
    python examples/session_owners.py redis://localhost --sessions 200 --pods 5
    python examples/session_owners.py sqlite:///tmp/sessions.db

Each pod is a process. A session is a few steps, and a small database that compares fences stores its progress.
The program kills one pod without warning, freezes one until others own its sessions (it wakes up as a zombie), starts
one, and stops one. At the end it checks the journal: each step was done once, by owners with growing fences; no two
pods owned a session at once; the database refused the late writes of the zombie. The exit code is 0 if that held.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import holdfast
from holdfast import guards

if TYPE_CHECKING:
    from collections.abc import Callable

TTL_S, GRACE_S = 1.5, 0.3
STEPS = 8
PATIENCE_S = 60


def sessions_of(hf: holdfast.Holdfast) -> holdfast.Queue:
    return hf.queue("session-owners", ttl=TTL_S, grace=GRACE_S)


class Store:
    """The progress of each session. It accepts a step only from the newest owner that it has seen."""

    def __init__(self, folder: Path) -> None:
        self._guard = guards.SqlGuard()
        self._db = sqlite3.connect(folder / "store.db", timeout=10)
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("CREATE TABLE IF NOT EXISTS step (id TEXT, number INT, fence INT, PRIMARY KEY (id, number))")
        self._db.execute(self._guard.schema)
        self._db.commit()

    def step(self, work: holdfast.Assignment, *, begins: bool = False) -> int:
        """Do one step and return the number of finished steps; raise `Fenced` if a newer owner has written."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._guard.admit(work, self._db, work.key)
            (done,) = self._db.execute("SELECT count(*) FROM step WHERE id = ?", (work.id,)).fetchone()
            if not begins and done < STEPS:
                self._db.execute("INSERT INTO step VALUES (?, ?, ?)", (work.id, done, work.fence))
                done += 1
        return int(done)

    def steps(self) -> list[tuple[str, int, int]]:
        return self._db.execute("SELECT id, number, fence FROM step ORDER BY id, number").fetchall()

    def close(self) -> None:
        self._db.close()


class Line(NamedTuple):
    """One event of a session or of a pod."""

    at: float
    word: str
    pod: str
    key: str = "-"
    id: str = "-"
    fence: int = 0


class Journal:
    """The events of all pods: one file, written a whole line at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal"
        self._file = self._path.open("ab", buffering=0)

    def write(self, word: str, pod: str, work: holdfast.Assignment | None = None, at: float | None = None) -> None:
        about = ("-", "-", 0) if work is None else (work.key, work.id, work.fence)
        line = (time.monotonic() if at is None else at, word, pod, *about)
        self._file.write((" ".join(map(str, line)) + "\n").encode())

    def read(self) -> list[Line]:
        lines = (line.split() for line in self._path.read_text().splitlines())
        return [Line(float(at), word, pod, key, id_, int(fence)) for at, word, pod, key, id_, fence in lines]

    def close(self) -> None:
        self._file.close()


def be_a_pod(url: str, name: str, most: int, folder: Path) -> None:
    """Run as a pod: own sessions, and do a step of each now and then."""
    store, journal = Store(folder), Journal(folder)
    due: dict[str, float] = {}
    with holdfast.connect(url, label=name) as hf, sessions_of(hf).owner(most=most) as owner:
        signal.signal(signal.SIGTERM, lambda *_: owner.stop())
        journal.write("started", name)
        while True:
            event, at = owner.next(timeout=0.02), time.monotonic()
            match event:
                case holdfast.Assigned(work) if not work.lost:
                    journal.write("added", name, work, at)
                    with suppress(holdfast.Fenced):  # frozen just now
                        store.step(work, begins=True)
                    due[work.id] = time.monotonic() + random.uniform(0.1, 0.3)
                case holdfast.AssignmentLost(work):
                    journal.write("lost", name, work)
                    due.pop(work.id, None)
                    try:  # as a zombie does that does not know of the loss
                        store.step(work)
                        journal.write("slipped", name, work)
                    except holdfast.Fenced:
                        journal.write("refused", name, work)
                case holdfast.OwnerStopped():
                    break
            for work in owner.assignments.values():
                if due.get(work.id, float("inf")) < time.monotonic() and not work.lost:
                    due[work.id] = time.monotonic() + random.uniform(0.1, 0.3)
                    with suppress(holdfast.Fenced, holdfast.LeaseLost):  # an AssignmentLost follows
                        if store.step(work) == STEPS:
                            at = time.monotonic()  # from here on another pod may own it
                            work.ack()
                            journal.write("done", name, work, at)
        for work in owner.assignments.values():
            journal.write("back", name, work)


class Fleet:
    """The pods, and the faults that the program causes."""

    def __init__(self, url: str, folder: Path, journal: Journal, most: int) -> None:
        self._url, self._folder, self._journal, self._most = url, folder, journal, most
        self._pods: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    def start(self) -> str:
        self._started += 1
        name = f"pod-{self._started}"
        command = [sys.executable, __file__, self._url, "--pod", name, "--folder", str(self._folder)]
        command += ["--most", str(self._most)]
        self._pods[name] = subprocess.Popen(command)
        return name

    @property
    def names(self) -> list[str]:
        return list(self._pods)

    def kill(self, name: str) -> None:
        self._journal.write("killed", name)
        pod = self._pods.pop(name)
        pod.kill()
        pod.wait()

    def freeze(self, name: str, others_go_on: Callable[[], bool]) -> None:
        """Freeze a pod, but not while it locks the file of the engine or of the store: all others would wait for it."""
        while True:
            at = time.monotonic()
            self._pods[name].send_signal(signal.SIGSTOP)
            if others_go_on():
                self._journal.write("frozen", name, at=at)
                return
            self._pods[name].send_signal(signal.SIGCONT)
            time.sleep(0.05)

    def thaw(self, name: str) -> None:
        self._journal.write("thawed", name)
        self._pods[name].send_signal(signal.SIGCONT)

    def stop(self, name: str) -> None:
        pod = self._pods.pop(name)
        pod.terminate()
        pod.wait()

    def end(self) -> None:
        for pod in self._pods.values():
            pod.send_signal(signal.SIGCONT)
            pod.terminate()
        for pod in self._pods.values():
            pod.wait()


class Scenario:
    """The scenario, with a line of statistics while it runs."""

    def __init__(self, hf: holdfast.Holdfast, folder: Path, journal: Journal) -> None:
        self._hf, self._folder, self.journal = hf, folder, journal
        self.queue = sessions_of(hf)
        self._over = time.monotonic() + PATIENCE_S
        self._shown = 0.0

    def until(self, met: Callable[[], object], expected: str) -> None:
        while not met():
            if time.monotonic() > self._over:
                raise TimeoutError(f"there was no {expected} in {PATIENCE_S} s")
            if time.monotonic() - self._shown > 0.5:
                self._shown = time.monotonic()
                print(self._statistics(), flush=True)
            time.sleep(0.05)

    def _statistics(self) -> str:
        now, words = self.queue.stats(), Counter(line.word for line in self.journal.read())
        return (
            f"waiting {now.ready:3}  behind {now.behind:3}  owned {now.in_flight:3}  done {words['done']:4}  "
            f"pods {now.consumers}  handed back {words['back']:3}  lost {words['lost']:3}  refused {words['refused']:3}"
        )

    def has_come(self, pod: str) -> bool:
        return any(line.word == "started" and line.pod == pod for line in self.journal.read())

    def owned_by(self, pod: str) -> list[Line]:
        """Return the sessions of a pod, by the journal."""
        newest = {line.key: line for line in self.journal.read() if line.word in ("added", "done", "back")}
        return [line for line in newest.values() if line.pod == pod and line.word == "added"]

    def others_go_on(self) -> bool:
        store = sqlite3.connect(self._folder / "store.db", timeout=0.3)
        try:
            store.execute("BEGIN IMMEDIATE")
            store.rollback()
            with self._hf.lock("session-owners/probe", ttl=1, timeout=0.3):
                return True
        except (sqlite3.OperationalError, holdfast.HoldfastError):
            return False
        finally:
            store.close()


def play(url: str, sessions: int, pods: int) -> bool:
    """Open sessions, cause faults, wait, and check the journal."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        store, journal = Store(folder), Journal(folder)
        url = url or f"sqlite://{folder}/holdfast.db"
        with holdfast.connect(url) as hf:
            show, fleet = Scenario(hf, folder, journal), Fleet(url, folder, journal, sessions // pods)
            try:
                sent = direct(show, fleet, sessions, pods)
            finally:
                fleet.end()
            faults = judge(journal.read(), store.steps(), sent)
            consistency, left = show.queue.check(), show.queue.stats()
        words = Counter(line.word for line in journal.read())
        store.close()
        journal.close()
    faults += [*consistency.faults, *(["not everything is done"] if any(left[1:6]) or left.behind else [])]
    for fault in faults:
        print(fault)
    print(
        f"sessions {len(sent)}, done {words['done']}, handed back {words['back']}, killed {words['killed']}, "
        f"lost by a zombie {words['lost']}, refused {words['refused']}, faults {len(faults)}"
    )
    return not faults


def direct(show: Scenario, fleet: Fleet, sessions: int, pods: int) -> list[str]:
    """Run the scenario; return the ids of all published messages."""
    queue = show.queue

    def opened(numbers: range) -> list[str]:
        return queue.publish_many(numbers, key=lambda number: f"chat-{number % sessions}")

    def busiest() -> list[str]:
        return sorted(fleet.names, key=lambda name: -len(show.owned_by(name)))

    for _ in range(pods):
        fleet.start()
    show.until(lambda: all(map(show.has_come, fleet.names)), "pod that lives")
    sent = opened(range(sessions // 2))
    show.until(lambda: all(map(show.owned_by, busiest()[:2])), "second pod that owns something")
    zombie, victim, *_ = busiest()
    fleet.kill(victim)
    fleet.freeze(zombie, show.others_go_on)
    had = show.owned_by(zombie)
    late = fleet.start()
    show.until(lambda: show.has_come(late), "pod that comes")
    sent += opened(range(sessions // 2, sessions))
    sent += opened(range(0, sessions, 5))  # once more: these become ready when the owned ones are done
    show.until(lambda: moved(show, had), "owner for what the frozen pod had")
    fleet.thaw(zombie)
    show.until(lambda: show.owned_by(late), "session for the pod that came")
    fleet.stop(next(name for name in busiest() if name not in (zombie, late)))
    show.until(lambda: not any(queue.stats()[1:5]) and not queue.stats().behind, "end of all sessions")
    return sent


def moved(show: Scenario, had: list[Line]) -> bool:
    """Tell whether every session of a pod has a newer owner, or was finished."""
    newest: dict[str, int] = defaultdict(int)
    for line in show.journal.read():
        if line.word == "added":
            newest[line.key] = max(newest[line.key], line.fence)
    there = {seen.id for place in ("ready", "in_flight") for seen in show.queue.peek(place, 10_000)}
    return all(newest[line.key] > line.fence or line.id not in there for line in had)


def judge(lines: list[Line], steps: list[tuple[str, int, int]], sent: list[str]) -> list[str]:
    """Return the faults in the journal."""
    faults = [f"{id_} was never published" for id_ in {id_ for id_, _, _ in steps} - set(sent)]
    walked = defaultdict(list)
    for id_, number, fence in steps:
        walked[id_].append((number, fence))
    for id_ in sent:
        numbers, fences = [number for number, _ in walked[id_]], [fence for _, fence in walked[id_]]
        if numbers != list(range(STEPS)) or fences != sorted(fences):
            faults.append(f"{id_} had the steps {walked[id_]}")
    lost, refused = ({(line.pod, line.fence) for line in lines if line.word == word} for word in ("lost", "refused"))
    faults += [f"{pod} wrote under fence {fence} after it had lost the session" for pod, fence in lost - refused]
    faults += [] if lost else ["there was no zombie, so the run proves nothing"]
    for key in {line.key for line in lines if line.word == "added"}:
        turns = sorted((line for line in lines if line.key == key and line.word == "added"), key=lambda one: one.fence)
        for turn, after in pairwise(turns):
            if not any(turn.at <= end.at <= after.at for end in lines if ends(end, turn)):
                faults.append(f"{after.pod} and {turn.pod} owned {key} at once")
    return faults


def ends(line: Line, turn: Line) -> bool:
    """Tell whether an event ended an ownership: an event of its owner, or the end of its owner."""
    if line.pod != turn.pod:
        return False
    return line.word in ("killed", "frozen") or (line.fence == turn.fence and line.word in ("done", "back", "lost"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default=os.environ.get("HOLDFAST_URL", ""), help="default: a temporary file")
    parser.add_argument("--sessions", type=int, default=60)
    parser.add_argument("--pods", type=int, default=3)
    parser.add_argument(
        "--most", type=int, default=1000, help="how many sessions a pod may have (used by the program itself)"
    )
    parser.add_argument("--pod", help="run as the pod of this name (used by the program itself)")
    parser.add_argument(
        "--folder", type=Path, help="the directory of the journal and the store (used by the program itself)"
    )
    options = parser.parse_args()
    if options.url.startswith("memory:") or options.pods < 3 or options.sessions < 4 * options.pods:
        parser.error("pods are processes, at least three, with four sessions each: they need a server or a file")
    if options.pod is not None:
        be_a_pod(options.url, options.pod, options.most, options.folder)
        return 0
    return 0 if play(options.url, options.sessions, options.pods) else 1


if __name__ == "__main__":
    sys.exit(main())
