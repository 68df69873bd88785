"""Shared parts of the command line tests: the tool, its processes, and the engines that store the leases."""

import io
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import holdfast
from holdfast import testing
from holdfast.cli import app
from holdfast.testing.servers import Server

HERE = Path(__file__).parent
HOLDFAST = [sys.executable, "-m", "holdfast"]
TICKING = [sys.executable, "-I", "-S", str(HERE / "ticking.py")]
LONGEST_S = 60

# Holds the gate of a SQLite file, so that the engine answers no command.
_GATE = """
import fcntl, os, sys
gate = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(gate, fcntl.LOCK_EX, 2, 0)  # the turn, and the byte of the process that is inside
print("held", flush=True)
sys.stdin.read()
"""


def eventually(condition, timeout=20, what=""):
    """Like `testing.eventually`, with a longer timeout: a process of the tool starts slowly on a busy machine."""
    return testing.eventually(condition, timeout, what)


class Embedded:
    """The SQLite file of one test."""

    kind = "sqlite"

    def __init__(self, folder):
        self.folder = folder
        self.url = f"sqlite://{folder}/leases.db"

    @contextmanager
    def unusable(self):
        """Make the engine answer no command: another process holds its gate."""
        command = [sys.executable, "-c", _GATE, f"{self.folder}/leases.db.gate"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"held\n"
            try:
                yield
            finally:
                process.stdin.close()
                process.wait()


class Shared:
    """The shared directory of one test."""

    kind = "file"

    def __init__(self, folder):
        self.url = f"file://{folder}"


class Served:
    """A real server that the tests use one after the other."""

    def __init__(self, server):
        self.server = server
        self.kind = server.kind
        self.url = server.url

    @contextmanager
    def unusable(self):
        """Kill the engine for the block; it restarts without its data."""
        self.server.kill()
        try:
            yield
        finally:
            self.server.start()


class Places:
    """All engines of the test session."""

    def __init__(self, folder):
        self._folder = folder
        self._numbers = itertools.count()
        self._servers = {}

    def lend(self, kind):
        """Yield an empty engine of the kind."""
        if kind == "sqlite":
            folder = self._folder / f"sqlite-{next(self._numbers)}"
            folder.mkdir()
            place = Embedded(folder)
            with holdfast.connect(place.url) as maker:
                maker.show("x")
            yield place
            return
        if kind == "file":
            folder = self._folder / f"file-{next(self._numbers)}"
            folder.mkdir()
            yield Shared(folder)
            return
        if kind not in self._servers:
            self._servers[kind] = Server(kind).start()
        self._servers[kind].command("FLUSHALL")
        yield Served(self._servers[kind])

    def close(self):
        for server in self._servers.values():
            server.close()


class Running:
    """A running `holdfast`, with the processes that it started."""

    def __init__(self, process):
        self.process = process
        self.pid = process.pid

    def children(self):
        """Return the pids of its children: `watcher` and `program`."""
        with suppress(OSError):
            pids = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            found = {comm_of(int(pid)): int(pid) for pid in pids}
            watcher = found.pop("holdfast-watch", None)
            return {"watcher": watcher, "program": next(iter(found.values()), None)}
        return {"watcher": None, "program": None}

    @property
    def watcher(self):
        return eventually(lambda: self.children()["watcher"], what="a watcher")

    @property
    def program(self):
        return eventually(lambda: self.children()["program"], what="a program")

    def send(self, number):
        os.kill(self.pid, number)

    def end(self):
        """Wait for its end, and keep its exit code and output."""
        self.out, self.err = self.process.communicate(timeout=LONGEST_S)
        self.code = self.process.returncode
        return self


def comm_of(pid):
    """Return the name of the process, empty if there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def alive(pid):
    """Return whether the process exists and is not a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def together(law):
    """Run a law on every engine at the same time: for laws that mostly wait."""

    def on_all(tools):
        everywhere(law, tools)

    on_all.__name__, on_all.__doc__, on_all.__module__ = law.__name__, law.__doc__, law.__module__
    return on_all


def everywhere(law, cases):
    """Call the law with each case, in a thread of its own; an error names its case."""
    with ThreadPoolExecutor(len(cases)) as threads:
        running = [(case, threads.submit(law, case)) for case in cases]
        broken = [(case, error) for case, law in running if (error := law.exception()) is not None]
    for case, error in broken:
        error.add_note(f"with {case}")
    if broken:
        raise BaseExceptionGroup(f"broken with {[str(case) for case, _ in broken]}", [error for _, error in broken])


class Tool:
    """Starts `holdfast`, and ends the processes that are left after the test."""

    def __init__(self, place, folder):
        self.place = place
        self.url = url = place.url
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.log = folder / "ticks"
        self._started = []
        self._clients = []
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        self.environ = {**kept, "HOLDFAST_URL": url, "HOME": str(folder)}

    def __str__(self):
        return self.place.kind

    def start(self, *words, **options):
        """Start the tool without waiting for it."""
        settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        env = {**self.environ, **options.pop("env", {})}
        process = subprocess.Popen([*HOLDFAST, *words], env=env, start_new_session=True, **{**settings, **options})
        self._started.append(process)
        return Running(process)

    def __call__(self, *words, **options):
        """Run the tool to its end."""
        return self.start(*words, **options).end()

    def inside(self, *words, env=None):
        """Run the tool inside the test process, which is faster. Not from several threads at once."""
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
        log = logging.getLogger("holdfast")
        before = log.handlers[:], log.propagate
        variables = {**self.environ, **(env or {})}
        try:
            with redirect_stdout(out), redirect_stderr(err), mock.patch.dict(os.environ, variables, clear=True):
                code = app.main([os.fsdecode(word) for word in words])
        finally:
            log.handlers[:], log.propagate = before
        out.flush()
        err.flush()
        return SimpleNamespace(code=code, out=out.buffer.getvalue(), err=err.buffer.getvalue())

    def ticking(self, name, *options, seconds=60, reaction=(), ttl=2, **process_options):
        """Start `holdfast run` with the ticking program."""
        program = [*TICKING, str(self.log), str(seconds), *map(str, reaction)]
        return self.start("run", name, "--ttl", str(ttl), *options, "--", *program, **process_options)

    def ticks(self):
        """Return the times of the ticks by fence, in the order in which they were written."""
        found = {}
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            fence, at_ns, _ = line.split()
            found.setdefault(int(fence), []).append(int(at_ns))
        return found

    def until_ticking(self, runs=1):
        """Wait until so many programs have started; return the newest fence."""
        eventually(lambda: len(self.ticks()) >= runs, 20, f"{runs} running programs")
        return max(self.ticks())

    def assert_never_two(self):
        """Check that no two programs held the name at once, from first to last tick; return their number."""
        events = []
        for fence, times in self.ticks().items():
            fields = {"pid": fence, "worker": str(fence), "name": "x", "fence": fence, "token": str(fence)}
            events.append(testing.HistoryEvent(at_ns=times[0], kind="granted", **fields))
            events.append(testing.HistoryEvent(at_ns=times[-1], kind="released", **fields))
        testing.assert_holds(events)
        return len(events) // 2

    def client(self, **options):
        """Return a client in this process."""
        self._clients.append(holdfast.connect(self.url, **options))
        return self._clients[-1]

    def json(self, *words, **options):
        """Run the command with --json inside the test process; return the decoded answer."""
        done = self.inside(*words, "--json", **options)
        assert done.code == 0, done.err
        return json.loads(done.out)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for client in self._clients:
            client.close(1)
        for process in self._started:
            if process.poll() is None:
                for pid in Running(process).children().values():
                    if pid is not None:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                process.kill()
            process.communicate()
