"""A system that starts no more processes: the caller gets `Unavailable` with the reason, and continues later."""

import asyncio
import contextlib
import io
import json
import os
import resource
import threading
import time
import traceback
from contextlib import contextmanager

import pytest

import holdfast
from holdfast import Unavailable
from holdfast.aio import guards
from holdfast.cli import app
from holdfast.cli.run import program, watcher_process
from holdfast.contrib import npm
from holdfast.contrib.npm_runs import NpmRuns
from holdfast.guards import Stamp
from tests.support.other_users import as_user, need_root, public_directory

CROWDED = 4711  # a user without any other process


@contextmanager
def no_processes():
    """Let the user of this process start no more processes and threads."""
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, before)


@pytest.fixture
def crowded(tmp_path):
    """Return a function that calls its argument as a user of its own, and returns what that returned."""
    need_root()
    with holdfast.connect(f"sqlite:///{tmp_path}/before.db") as hf:  # the other user may be unable to load modules
        hf.build_once(tmp_path, "before", lambda staging: staging.run("true"))
    with public_directory(0o777) as shared:

        def call(work):
            answer = shared / "answer.json"

            def answering():
                try:
                    answer.write_text(json.dumps(work(shared)))
                except BaseException:
                    answer.write_text(traceback.format_exc())
                    raise

            assert as_user(CROWDED, answering) == 0, answer.read_text()
            return json.loads(answer.read_text())

        yield call


def reason_of(call):
    """Return the reason and the outcome of the `Unavailable` that a call raises, and its text."""
    try:
        call()
    except Unavailable as error:
        return [error.reason, error.outcome, str(error)]
    return ["no error"]


def run_tool(*arguments):
    """Run `holdfast` in this process; return its exit code and its standard error."""
    with contextlib.redirect_stderr(io.StringIO()) as text:
        code = app.main(list(arguments))
    return code, text.getvalue()


def test_run_says_that_no_process_can_start_and_takes_no_lease(crowded, tmp_path):
    """The program is forked before the lease is requested, so nothing is stored; later the same command succeeds."""
    command = ("run", "x", "--url", f"sqlite:///{tmp_path}/x.db", "--ttl", "5", "--json", "--", "true")

    def work(_shared):
        with no_processes():
            return run_tool(*command)

    assert run_tool(*command, "-v")[0] == 0  # loads the modules
    (tmp_path / "x.db").unlink()
    code, text = crowded(work)
    assert code == 69, text
    assert not (tmp_path / "x.db").exists()
    assert run_tool(*command)[0] == 0
    message = json.loads(text)
    assert (message["outcome"], message["reason"]) == ("unavailable", "out of processes")
    assert "too many processes" in message["error"]


def test_a_build_that_cannot_start_its_program_leaves_nothing_and_succeeds_later(crowded):
    """The build function gets `Unavailable`, the lease ends with the call, and the next call builds."""

    def work(shared):
        with holdfast.connect(f"sqlite:///{shared}/x.db") as hf:
            held = hf.lock("kept").acquire()
            (shared / "trees").mkdir()

            def build(staging):
                staging.run("touch", "built")

            with no_processes():
                refused = reason_of(lambda: hf.build_once(shared / "trees", "t", build, timeout=0))
            left = sorted(each.name for each in (shared / "trees").iterdir() if not each.name.startswith("."))
            built = hf.build_once(shared / "trees", "t", build, timeout=0)
            held.release()
            return refused, left, os.listdir(built.path)

    (reason, outcome, text), left, built = crowded(work)
    assert (reason, outcome) == ("out of processes", "not started")
    assert "too many processes" in text
    assert left == []
    assert "built" in built


def test_npm_that_cannot_start_is_reported_in_words(crowded):
    """`install` runs npm in threads: the system refuses the thread or the process."""

    def work(shared):
        repo, runs = npm.Repo(None, shared, npm="/bin/true"), NpmRuns("/bin/true", 5, {})
        with no_processes():
            thread = reason_of(lambda: repo.install(["alpha@1.0.0"]))
            process = reason_of(lambda: runs.run(("view",), "alpha", shared))
        return thread, process, runs.run(("view",), "alpha", shared).returncode

    thread, process, later = crowded(work)
    assert thread[0] == "out of threads"
    assert process[0] == "out of processes"
    assert later == 0


def test_run_without_a_watcher_starts_nothing_and_frees_the_lease(tmp_path, monkeypatch):
    """The system refuses the second process: the program never runs, and the next call gets the lease at once."""

    def refuse(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    url, made = f"sqlite:///{tmp_path}/x.db", tmp_path / "made"
    monkeypatch.setattr(watcher_process.subprocess, "Popen", refuse)
    code, text = run_tool("run", "x", "--url", url, "--ttl", "60", "--", "touch", str(made))
    monkeypatch.undo()
    assert code == 69
    assert "the watcher did not start: [Errno 11] Resource temporarily unavailable" in text
    assert not made.exists()
    with holdfast.connect(url) as hf, hf.lock("x", timeout=0) as lease:
        lease.check()


def test_a_refused_fork_leaves_no_descriptor(monkeypatch):
    """The gate of the program is closed again."""

    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(Unavailable, match="out of processes"):
        program.Program(["true"])
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_guarded_write_without_a_thread_is_never_made_later(tmp_path, monkeypatch):
    """The caller learns that nothing was written, so no other thread may write it afterwards."""
    path = tmp_path / "x"

    async def write():
        guard = guards.FileGuard(path)
        await asyncio.to_thread(int)  # a thread of the loop's own executor
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(Unavailable, match="out of threads"):
                await guard.write(Stamp(time.time_ns() // 1000, "t"), b"first")
        await asyncio.gather(*(asyncio.to_thread(int) for _ in range(8)))
        assert not path.exists()
        await guard.write(Stamp(time.time_ns() // 1000, "t"), b"second")

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    asyncio.run(write())
    assert path.read_bytes() == b"second"
