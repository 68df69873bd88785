"""`holdfast acquire`, `check` and `release` in real scripts of real shells, with real signals."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from cli_tool import LONGEST_S, alive, comm_of, eventually

from holdfast.rules.trust import HEARTBEAT_MS

SHELLS = [shell for shell in ("bash", "dash") if shutil.which(shell)]
TTL_S = 2
# The name in the scripts is `$1`. `report` writes a line for the test; the file `go` ends the wait of a script.
PRELUDE = f"""
holdfast() {{ {sys.executable} -m holdfast "$@"; }}
report() {{ echo "$*" >> "$REPORTS"; }}
pause() {{ until [ -e "$REPORTS.$1" ]; do sleep 0.05; done; }}
"""
HOLD = """
eval "$(holdfast acquire "$1" --ttl "$TTL" $OPTIONS)" || exit
report "$HOLDFAST_TOKEN" "$HOLDFAST_FENCE"
pause go
"""


class Script:
    """A running script, and the lines that it reports."""

    def __init__(self, tool, text, name="x", shell="bash", ttl=TTL_S, options=""):
        tool.folder.mkdir(exist_ok=True)
        number = len(list(tool.folder.glob("script-*.sh")))
        self.reports_file = tool.folder / f"reports-{number}"
        file = tool.folder / f"script-{number}.sh"
        file.write_text(PRELUDE + text)
        env = {**tool.environ, "REPORTS": str(self.reports_file), "TTL": f"{ttl}s", "OPTIONS": options}
        self.err_file = tool.folder / f"err-{number}"
        with self.err_file.open("wb") as err:
            self.process = subprocess.Popen(
                [shell, str(file), name], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err
            )
        self.pid = self.process.pid

    def reports(self, count=1):
        """Wait until the script has reported so many lines; return their words."""

        def read():
            lines = self.reports_file.read_text().splitlines() if self.reports_file.exists() else []
            return lines if len(lines) >= count else None

        return [line.split(" ") for line in eventually(read, LONGEST_S, f"{count} reports")]

    def go(self, which="go"):
        Path(f"{self.reports_file}.{which}").touch()

    def send(self, number):
        os.kill(self.pid, number)

    def end(self):
        """Wait for the end of the script; return its exit code."""
        self.out, _ = self.process.communicate(timeout=LONGEST_S)
        return self.process.returncode

    @property
    def err(self):
        return self.err_file.read_text()

    @property
    def watcher(self):
        """Return the pid of the watcher."""

        def find():
            for entry in Path("/proc").iterdir():
                if entry.name.isdecimal() and comm_of(int(entry.name)) == "holdfast-watch":
                    with suppress(OSError):
                        environ = (entry / "environ").read_bytes()
                        if f"REPORTS={self.reports_file}\0".encode() in environ:
                            return int(entry.name)
            return None

        return eventually(find, what="a watcher")


@pytest.fixture
def script(every_tool):
    """Start scripts; the test ends those that it left."""
    started = []

    def start(text, **options):
        started.append(Script(every_tool, text, **options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


def status(tool, name="x"):
    """Return the state of the name."""
    with every_client(tool) as hf:
        return hf.show(name)


@contextmanager
def every_client(tool):
    """Return one client for the whole test: a new one for each look would be slow."""
    if not tool._clients:
        tool.client()
    yield tool._clients[0]


def seconds_until_acquired(tool, name="x", timeout=LONGEST_S):
    """Acquire the name in this process; return how long that took."""
    with every_client(tool) as hf:
        began = time.monotonic()
        hf.lock(name, timeout=timeout).acquire().release()
        return time.monotonic() - began


ALL = """
eval "$(holdfast acquire "$1" --timeout 10s)" || exit
printf '%s\\n' "$HOLDFAST_NAME"
report token "$HOLDFAST_TOKEN" "$HOLDFAST_FENCE"
holdfast check "$HOLDFAST_TOKEN"; report check $?
sh -c 'test -n "$HOLDFAST_FENCE"'; report child $?
pause go
holdfast release "$HOLDFAST_TOKEN"; report release $?
holdfast check "$HOLDFAST_TOKEN"; report check $?
holdfast release "$HOLDFAST_TOKEN"; report release $?
pause end
"""


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_acquires_checks_and_releases(every_tool, script, shell):
    """`check` is 0 only while the lease is trusted; after a release another caller gets it at once."""
    run = script(ALL, shell=shell)
    token, check, child = run.reports(3)

    held = status(every_tool)
    assert (len(token[1]), int(token[2])) == (32, held.fence)
    assert (check[1], child[1]) == ("0", "0")

    run.go()
    assert [words[1] for words in run.reports(6)[3:]] == ["0", "79", "66"]
    assert seconds_until_acquired(every_tool) < 1
    assert run.process.poll() is None, "the script ended by itself"
    run.go("end")
    assert (run.end(), run.out) == (0, b"x\n")
    assert "was released" in run.err


@pytest.mark.parametrize("name", ["it's $HOME", '"; touch pwned; "', "`id`$(id)", "two\nlines\\n", "größe*?~", "-x="])
def test_no_name_reaches_the_shell_as_code(local, name):
    """A name may come from a user. Every shell gets exactly the name, and runs none of it."""
    for shell in SHELLS:
        text = 'eval "$(holdfast acquire --timeout 5s -- "$1")" || exit\nprintf %s "$HOLDFAST_NAME"'
        run = Script(local, text, name=name, shell=shell)
        assert (run.end(), run.out.decode()) == (0, name), run.err


@pytest.mark.parametrize("ending", ["exit", "kill"])
def test_the_lease_ends_with_the_script(every_tool, script, ending):
    """A script that forgets to release, or is killed, must not block the name for a ttl of 30 s."""
    run = script(HOLD, ttl=30)
    run.reports()
    watcher = run.watcher
    if ending == "exit":
        run.go()
    else:
        run.send(signal.SIGKILL)
    run.end()

    assert seconds_until_acquired(every_tool) < 10
    eventually(lambda: not alive(watcher), what="the end of the watcher")


def test_a_busy_name_gives_75_and_sets_nothing(every_tool, script):
    """The status of `eval` is the code, because the shell ignores that of the command inside."""
    with every_client(every_tool) as hf, hf.lock("x"):
        run = script('eval "$(holdfast acquire "$1" --timeout 0)"; report $? "set:${HOLDFAST_TOKEN-}"\nexit 0')
        assert run.reports() == [["75", "set:"]]
        assert run.end() == 0
        assert "busy" in run.err

        run = script('set -e\neval "$(holdfast acquire "$1" --timeout 0)"\nreport on')
        assert run.end() == 75
        assert not run.reports_file.exists()

        done = every_tool("acquire", "x", "--timeout", "0", "--json", "--pid", str(os.getpid()))
        assert (done.code, done.out, json.loads(done.err)["code"]) == (75, b"", 75)


def test_a_frozen_script_keeps_its_lease(every_tool, script):
    """The watcher renews: only the end of the script gives the lease up."""
    run = script(HOLD, ttl=1)
    ((_, fence),) = run.reports()
    run.send(signal.SIGSTOP)
    with every_client(every_tool) as hf, pytest.raises(TimeoutError):
        hf.lock("x", timeout=3).acquire()  # three times the ttl
    assert status(every_tool).fence == int(fence)

    run.send(signal.SIGCONT)
    run.go()
    assert run.end() == 0


def test_a_loss_ends_the_script(every_tool, script):
    """The script must not go on as if it still held the lease; `exit` in a trap shows that TERM came."""
    run = script("trap 'report term; exit 3' TERM\n" + HOLD)
    run.reports()
    with every_client(every_tool) as hf:
        hf.break_lease("x", "a test")

    assert run.reports(2)[1] == ["term"]
    assert run.end() == 3
    assert "a test" in run.err
    assert f"ending the script (process {run.pid})" in run.err


def test_on_loss_report_only_writes(every_tool, script):
    """The script goes on, and `check` tells it."""
    text = HOLD + 'holdfast check "$HOLDFAST_TOKEN"; report $?\nholdfast release "$HOLDFAST_TOKEN"; report $?'
    run = script(text, options="--on-loss report")
    run.reports()
    with every_client(every_tool) as hf:
        hf.break_lease("x", "a test")
    eventually(lambda: "a test" in run.err, what="the loss on standard error")

    run.go()
    assert run.reports(3)[1:] == [["79"], ["79"]]
    assert run.end() == 0


def test_a_killed_watcher_frees_nothing_before_the_ttl(every_tool, script):
    """The script goes on without noticing. SQLite and shared directories see a death at once, and must wait."""
    run = script(HOLD + 'holdfast check "$HOLDFAST_TOKEN"; report $?', ttl=4)
    run.reports()
    watcher = run.watcher
    with every_client(every_tool) as hf:
        waiting = threading.Thread(target=seconds_until_acquired, args=(every_tool,))
        waiting.start()
        eventually(lambda: hf.show("x").waiters, what="a waiter")
        left = hf.show("x").remaining
        began = time.monotonic()
        os.kill(watcher, signal.SIGKILL)
        waiting.join(LONGEST_S)
        took = time.monotonic() - began
    # A renewal may come between the look and the kill, and makes it longer.
    assert left - 0.1 < took < 4 + 5

    run.go()
    assert run.reports(2)[1] == ["79"], "check trusts a lease without a watcher"
    assert run.end() == 0


def test_sessions_of_killed_watchers_do_not_pile_up(local):
    """Their leases expire, and the next client removes the rest of them."""
    run = Script(local, HOLD, ttl=1)
    run.reports()
    os.kill(run.watcher, signal.SIGKILL)
    assert sessions(local) == 1
    eventually(lambda: not status(local).holder, what="the end of the lease")
    local("show", "x")  # a new client clears the sessions of dead ones

    assert sessions(local) == 1, "more than this test's own client"
    run.go()
    assert run.end() == 0


def sessions(tool):
    """Return how many sessions the file has."""
    with closing(sqlite3.connect(f"{tool.place.folder}/leases.db")) as database:
        return database.execute("SELECT count(*) FROM session").fetchone()[0]


def test_a_frozen_watcher_is_not_trusted(local):
    """`check` must neither wait for it nor believe in it."""
    run = Script(local, HOLD, ttl=30)
    ((token, _),) = run.reports()
    watcher = run.watcher
    os.kill(watcher, signal.SIGSTOP)
    try:
        done = local("check", token)
        assert (done.code, b"does not answer" in done.err) == (79, True)
    finally:
        os.kill(watcher, signal.SIGCONT)
    run.go()
    assert run.end() == 0


def test_signals_to_a_whole_service_leave_the_watcher_in_place(local):
    """A service manager sends TERM to all processes; a script that cleans up in a trap still needs its lease."""
    run = Script(local, HOLD, ttl=30)
    ((token, _),) = run.reports()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(run.watcher, number)
    assert local("check", token).code == 0
    run.go()
    assert run.end() == 0


@pytest.mark.parametrize("end", ["script", "command"])
def test_a_waiting_acquire_ends_with_its_caller(every_tool, script, end):
    """Without a caller, no process would use the lease: the waiter leaves the line."""
    with every_client(every_tool) as hf, hf.lock("x"):
        run = script('eval "$(holdfast acquire "$1")"; report $?')
        eventually(lambda: hf.show("x").waiters, what="a waiter")
        watcher = run.watcher
        if end == "script":
            run.send(signal.SIGKILL)
        else:
            (command,) = (int(pid) for pid in parents_of(watcher))
            os.kill(command, signal.SIGTERM)
        eventually(lambda: not alive(watcher), what="the end of the watcher")
        eventually(lambda: not hf.show("x").waiters, what="an empty line")


def test_a_script_that_waits_long_keeps_its_place_in_line(every_tool, script):
    """Its watcher sends heartbeats like every waiter, until it holds the lease."""
    if every_tool.place.kind not in ("sqlite", "file"):
        pytest.skip("this engine has no session that outlives its process")
    with every_client(every_tool) as hf, hf.lock("x"):
        run = script('eval "$(holdfast acquire "$1")"; report first; pause go')
        eventually(lambda: hf.show("x").waiters, what="a waiter")
        time.sleep(HEARTBEAT_MS / 1000 + 1)
        rival = threading.Thread(target=seconds_until_acquired, args=(every_tool,))
        rival.start()
        eventually(lambda: len(hf.show("x").waiters) == 2, what="a rival behind it")
    assert run.reports() == [["first"]]
    assert rival.is_alive(), "the rival overtook the script"
    run.go()
    rival.join(LONGEST_S)
    assert run.end() == 0


def parents_of(pid):
    return [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]]


@pytest.mark.parametrize(
    "call",
    [
        "$(timeout 20 {python} -m holdfast acquire x || echo exit 9)",
        "$( (holdfast acquire x) )",
        "$(HOLDFAST_LABEL=x holdfast acquire x 2>&1)",
        "$(echo true; holdfast acquire x)",
    ],
)
def test_the_lease_belongs_to_the_script_and_not_to_a_subshell(local, call):
    """A wrapper and a subshell end at once, and the lease must not end with them."""
    for shell in SHELLS:
        run = Script(
            local, f'eval "{call.format(python=sys.executable)}"\nreport "$HOLDFAST_TOKEN"\npause go', shell=shell
        )
        ((token,),) = run.reports()
        answer = local.json("check", token)
        assert (answer["state"], answer["script"]) == ("held", run.pid)
        run.go()
        assert run.end() == 0
        eventually(lambda: not status(local).holder, what="the release")


def test_each_subshell_can_have_its_own_lease(local):
    """Parallel jobs of one script release each at its own end."""
    text = """
for job in 1 2 3; do
    ( eval "$(holdfast acquire x --ttl 30s)"; report "$job" ) &
done
wait
"""
    run = Script(local, text)
    assert run.end() == 0
    assert sorted(words[0] for words in run.reports(3)) == ["1", "2", "3"]


def test_output_that_no_script_reads_is_refused(local):
    """The lease would belong to a subshell that has ended. The error tells both remedies."""
    run = Script(local, 'holdfast acquire x | cat\nexit "${PIPESTATUS[0]}"')
    assert run.end() == 64
    assert "--pid $$" in run.err
    assert run.out == b"(exit 64)\n"

    run = Script(local, 'eval "$(holdfast acquire x --pid $$ | cat)"\nholdfast check "$HOLDFAST_TOKEN"')
    assert run.end() == 0, run.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--pid", "999999999"], "999999999"),
        (["--on-loss", "explode"], "--on-loss report"),
        (["--ttl", "0"], "ttl=0"),
        (["--timeout", "soon"], "30s"),
        (["--url", "memory://"], "one process only"),
    ],
)
def test_a_bad_option_of_acquire_starts_nothing(local, words, named):
    """An error names the value and the remedy, and `eval` of the output fails too."""
    done = local("acquire", "x", *words)
    assert (done.code, done.out) == (64, b"(exit 64)\n")
    assert named in done.err.decode()


def test_an_engine_that_is_down_fails_the_acquire(local):
    """The code is that of `run`; nothing is left behind."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        done = local("acquire", "x", "--url", f"redis://127.0.0.1:{server.getsockname()[1]}", "--pid", str(os.getpid()))
    assert (done.code, done.out) == (69, b"(exit 69)\n")


@pytest.mark.parametrize("command", ["check", "release"])
def test_a_token_that_is_none_is_refused(local, command):
    """An unset variable is the usual cause."""
    done = local(command, "")
    assert done.code == 64
    assert '"$HOLDFAST_TOKEN"' in done.err.decode()


def test_the_watcher_keeps_no_descriptor_of_the_script(local):
    """A flock(1) lock or a pipe of the script must not stay open because of the watcher."""
    text = 'exec 8>"$REPORTS.lock"; exec 9>"$REPORTS.other"\n' + HOLD
    run = Script(local, text)
    run.reports()
    watcher = run.watcher
    open_files = [os.readlink(entry) for entry in Path(f"/proc/{watcher}/fd").iterdir()]
    assert not [file for file in open_files if file.startswith(str(run.reports_file))]
    assert os.readlink(f"/proc/{watcher}/fd/2") == str(run.err_file)
    run.go()
    assert run.end() == 0


def test_the_calling_script_is_the_parent_without_a_pipe(tmp_path):
    """`holdfast acquire x > file` has no reader; the parent is the script."""
    code = "import os; from holdfast.cli.shell.script import calling_script; print(os.getppid() == calling_script())"
    with (tmp_path / "out").open("w+") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
        out.seek(0)
        assert out.read() == "True\n"
