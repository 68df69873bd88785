"""Failures: one clear line with what to do next, an exit code of its own, and never a traceback."""

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_tool import HOLDFAST, Served, Tool
from terminals import Terminal

import holdfast
from holdfast.cli import app, codes
from holdfast.testing.servers import Server, available, missing

ROOT = Path(__file__).resolve().parents[2]
KIND = "valkey" if "valkey" in available() else next(iter(available()), None)
COMMANDS = {
    "run": ["run", "x", "--", "echo", "never"],
    "ls": ["ls"],
    "show": ["show", "x"],
    "watch": ["watch", "--count", "1"],
    "wait": ["wait", "x"],
    "break": ["break", "x", "--reason", "why", "--yes"],
    "doctor": ["doctor"],
    "bench": ["bench", "--seconds", "1"],
    "pool ls": ["pool", "ls"],
    "pool show": ["pool", "show", "x"],
    "pool set": ["pool", "set", "x", "a"],
    "pool add": ["pool", "add", "x", "a"],
    "pool remove": ["pool", "remove", "x", "a"],
    "pool cool": ["pool", "cool", "x", "a", "1s"],
    "pool break": ["pool", "break", "x", "a", "--reason", "why", "--yes"],
    "limit show": ["limit", "show", "1/second", "ann"],
    "limit reset": ["limit", "reset", "1/second", "ann"],
    "registry ls": ["registry", "ls", "x"],
    "registry show": ["registry", "show", "x", "k"],
    "registry take": ["registry", "take", "x", "k", "--reason", "why", "--yes"],
    "registry hand-off": ["registry", "hand-off", "x", "k", "--to", "server 1", "--yes"],
    "queue ls": ["queue", "ls"],
    "queue stats": ["queue", "stats", "x"],
    "queue consumers": ["queue", "consumers", "x"],
    "queue peek": ["queue", "peek", "x"],
    "queue publish": ["queue", "publish", "x", "1"],
    "queue check": ["queue", "check", "x"],
    "dlq ls": ["dlq", "ls", "x"],
    "dlq show": ["dlq", "show", "x", "k"],
    "dlq redrive": ["dlq", "redrive", "x"],
    "dlq purge": ["dlq", "purge", "x", "--yes"],
}
# These bring an engine of their own, or need none.
WITHOUT_URL = {"demo", "install", "check", "release"}
IN_SCRIPTS = {"acquire"}  # tests/cli/test_shell.py has its failures


def every_command():
    """Yield the names of all commands, as they are typed."""
    for entry in app.COMMANDS:
        yield from (f"{entry.name} {name}" for name in entry.load().commands) if entry.is_group else (entry.name,)


def message_of(done):
    """Return the one line that the command printed, and check that it is all."""
    text = done.err.decode()
    assert done.out == b"" or text == "", done.out
    assert "Traceback" not in text
    assert text.count("\n") <= 1
    return text or done.out.decode()


def test_every_command_reports_an_unusable_engine_in_the_same_way(tmp_path):
    """No server, a wrong password and a missing right are three causes with two codes, each with its advice."""
    if KIND is None:
        pytest.skip(missing())
    with Server(KIND, password="right") as server, Tool(Served(server), tmp_path) as tool:
        server.command("ACL", "SETUSER", "app", "reset", "on", ">pw", "~hf2:*", "+ping", "+client|setname", "+select")
        where = f"127.0.0.1:{server.port}"
        causes = {
            "missing": ("redis://127.0.0.1:1", "unreachable", "is it running", codes.UNAVAILABLE),
            "password": (f"redis://:hunter2@{where}", "no permission", "user and password", codes.NO_PERMISSION),
            "right": (f"redis://app:pw@{where}", "no permission", "rights", codes.NO_PERMISSION),
        }

        def fails(name, cause):
            url, reason, advice, code = causes[cause]
            call = tool if name == "run" else tool.inside
            done = call(*COMMANDS[name], env={"HOLDFAST_URL": url})
            line = message_of(done)
            assert done.code == (codes.CRITICAL if name == "doctor" else code)
            assert f"({reason})" in line
            assert advice in line
            assert "hunter2" not in line
            assert "pw" not in line

        def fails_as_json(name):
            url, reason, _, code = causes["password"]
            arguments = ["run", "--json", *COMMANDS[name][1:]] if name == "run" else [*COMMANDS[name], "--json"]
            done = (tool if name == "run" else tool.inside)(*arguments, env={"HOLDFAST_URL": url})
            message = json.loads(done.err)
            assert (done.code, done.out) == (code, b"")
            assert (message["outcome"], message["code"], message["reason"]) == ("unavailable", code, reason)

        for name in COMMANDS:
            for cause in causes:
                fails(name, cause)
            if name != "doctor":  # an unusable engine is its answer, not its failure
                fails_as_json(name)


@contextmanager
def another_user():
    """Run the block as a user without rights on the files of others; root becomes the user `nobody`."""
    if os.getuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if os.getuid() == 0:
            os.seteuid(0)


def test_a_file_of_another_user_is_a_missing_permission(local, tmp_path):
    """It has its own exit code, and advice about files, not about servers.

    Cron starts system users whose home directory does not exist: they must name a file.
    """
    with holdfast.connect(f"file://{tmp_path}") as client:
        client.lock("x").acquire().release()
    for command in (["ls"], ["doctor"], ["ls", "--url", f"file://{tmp_path}"]):
        assert (
            local.inside(*command).code == 0
        )  # so that everything is imported: the other user may not read the modules
    with tempfile.TemporaryDirectory() as barred:  # pytest's own folders are closed to other users
        (Path(barred) / "x.db").touch(0o444)
        (Path(barred) / ".holdfast").mkdir(0o700)
        Path(barred).chmod(0o555)
        with another_user():
            named = local.inside("ls", "--url", f"sqlite://{barred}/x.db")
            doctor = local.inside("doctor", "--url", f"sqlite://{barred}/x.db")
            folder = local.inside("ls", "--url", f"file://{barred}")
            homeless = local.inside("ls", "--json", env={"HOLDFAST_URL": "", "HOME": f"{barred}/home"})
        Path(barred).chmod(0o755)

    assert (named.code, homeless.code, doctor.code) == (codes.NO_PERMISSION, codes.USAGE, codes.CRITICAL)
    assert "(no permission)" in message_of(named)
    assert folder.code == codes.NO_PERMISSION
    assert f"{barred}/.holdfast" in message_of(folder)
    assert "name another directory" in message_of(folder)
    for text in (named.err, homeless.err, doctor.out):
        assert b"HOLDFAST_URL" in text
        assert b"primary" not in text
    assert "set HOLDFAST_URL" in json.loads(homeless.err)["error"]


def test_an_unknown_user_without_a_home_reads_what_to_set(local, monkeypatch):
    """Containers start such users; the missing home is bad usage, not a bug."""
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    for variable in ("HOME", "XDG_STATE_HOME"):
        local.environ.pop(variable, None)
    done = local.inside("ls", env={"HOLDFAST_URL": ""})

    assert done.code == codes.USAGE
    assert "set HOLDFAST_URL" in message_of(done)


def test_bad_usage_is_refused_before_anything_is_started(local):
    """A bad name, a bad option or a bad URL exits with 64, and the line says what is wrong."""
    cases = {
        ("show", ""): "must not be empty",
        ("show", "x" * 600): "at most 512 bytes",
        ("show", b"\xff"): "valid Unicode",
        ("run", "x", "--ttl", "0.5", "--", "true"): "at least 1 s",
        ("run", "x", "--grace", "20", "--", "true"): "half of the ttl",
        ("run", "x", "--ttl", "soon", "--", "true"): "--ttl",
        ("run", "x", "--timeout=-1", "--", "true"): "timeout",
        ("run", "x"): "Missing argument '-- CMD'",
        ("run", "x", "sh", "-c", "true"): "put -- before the program",
        ("run", "x", "rsync", "--timeout", "10", "here", "there"): "put -- before the program",
        ("run", "--", "nice", "true"): "put -- before the program, and the name before it",
        ("run", "x", "nice", "--", "true"): "put -- before the program, and the name before it",
        ("run", "x", "--max-hold=-1", "--", "true"): "--max-hold",
        ("run", "x", "--once", "0", "--", "true"): "it must be between",
        ("run", "x", "--once", "soon", "--", "true"): "--once",
        ("queue", "publish", "x", "{}", "--delay", "1x"): "'1x'",
        ("ls", "--limit", "0"): "'0'",
        ("pool", "cool", "x", "a", "soon"): "DURATION",
        ("limit", "show", "often", "ann"): "rate",
        ("registry", "show", "x", ""): "not empty",
        ("ls", b"\xff"): "valid Unicode",
        ("demo", "--url", "bogus://"): "the scheme must be one of",
        ("ls", "--colour"): "No such option",
        ("--url", "memory://", "ls"): "No such option: --url; put it after the command",
        ("queue", "--json", "ls"): "No such option: --json; put it after the command",
        ("lock", "x"): "No such command 'lock'",
        ("ls", "--url", "http://localhost"): "the scheme must be one of",
        ("ls", "--url", "redis://user:hunter2@host:port"): "it is not a valid URL",
        ("ls", "--url", "sqlite://leases.db"): "by its absolute path",
        ("ls", "--url", "file://leases"): "by its absolute path",
        ("break", "x"): "Missing option '--reason'",
    }

    for arguments, rule in cases.items():
        done = local.inside(*arguments)
        line = message_of(done)
        assert done.code == codes.USAGE, line
        assert rule.lower() in line.lower()
        assert "hunter2" not in line
    assert json.loads(local.inside("show", "", "--json").err)["code"] == codes.USAGE
    assert local("show", b"\xff").code == codes.USAGE
    for url in ("redi://db", "memory://", "sqlite://leases.db"):
        assert f"HOLDFAST_URL='{url}' is refused" in message_of(local.inside("ls", env={"HOLDFAST_URL": url}))


def test_every_command_explains_itself_with_an_example(local):
    """`--help` is the first page that people read. It needs neither an engine nor a terminal."""
    everything = local("--help").out.decode()
    assert set(every_command()) == {*COMMANDS, *WITHOUT_URL, *IN_SCRIPTS}
    for name in every_command():
        page = local.inside(*name.split(), "--help").out.decode()
        usage = re.search(r"Usage: [^\[]*\[OPTIONS\](.*)", page)
        assert usage[1] == usage[1].upper(), "arguments look alike on every page"
        assert re.search(rf"Example:\n\s+(eval \"\$\()?holdfast {name}\b", page), page
        assert "--json" in page
        assert "HOLDFAST_URL" in page or name in WITHOUT_URL
        assert re.search(rf"^  {name.split()[0]} ", everything, re.MULTILINE)


def test_a_shell_can_complete_commands(local):
    """Typer's completion works for `holdfast`, without importing the commands."""
    script = local("--show-completion", "bash", env={"SHELL": "/bin/bash"})
    asked = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "holdfast d", "COMP_CWORD": "1"}
    offered = local(env=asked)
    options = local(env={**asked, "COMP_WORDS": "holdfast run --max", "COMP_CWORD": "2"})

    assert b"_HOLDFAST_COMPLETE" in script.out
    assert b"compdef" in local("--show-completion", "zsh").out  # whichever shell runs the test
    assert offered.out.split() == [b"doctor", b"demo", b"dlq"]
    assert options.out.split() == [b"--max-hold"]


def test_a_real_shell_completes(local):
    """The commands of the docs page, in a real shell: install the script, press Tab."""
    tool = local.folder / "bin" / "holdfast"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {" ".join(HOLDFAST)} "$@"\n')
    tool.chmod(0o755)
    environ = {**local.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}", "PS1": "$ ", "HISTFILE": "/dev/null"}
    with Terminal("bash", "--norc", "--noprofile", "-i", env=environ) as shell:
        shell.until(r"\$ ")
        shell.type('eval "$(holdfast --show-completion bash)"; echo done\n')
        shell.until(r"[\r\n]done")
        shell.type("holdfast doc\t --he\t")
        shell.until(r"holdfast doctor +--help")


def test_version_is_printed(local):
    """Every bug report needs it."""
    done = local.inside("--version")

    assert (done.code, done.out.decode(), done.err) == (0, f"holdfast {holdfast.__version__}\n", b"")


@pytest.mark.acceptance("C-23")
def test_without_the_extra_a_clear_line_says_what_to_install(tmp_path):
    """The core needs no other package; only the tool does."""
    program = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "typer" else found(name, *rest)
sys.modules["typer"] = sys.modules["rich"] = None  # a package that is not installed cannot be imported
from holdfast.cli import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program, "ls"], capture_output=True, text=True, check=False)

    assert done.returncode == codes.USAGE
    assert done.stdout == ""
    assert done.stderr == "holdfast: the command line needs typer and rich: pip install 'holdfast[cli]'\n"


def test_a_bug_is_reported_in_one_line(local):
    """HOLDFAST_DEBUG=1 shows the traceback."""
    broken = {"PYTHONPATH": str(local.folder)}
    (local.folder / "sitecustomize.py").write_text("import holdfast.cli.lease as lease; lease.connect = None")
    done = local("show", "x", env=broken)
    asked = local("show", "x", env={**broken, "HOLDFAST_DEBUG": "1"})

    assert done.code == codes.INTERNAL
    assert "a bug in holdfast" in message_of(done)
    assert b"Traceback" in asked.err


def test_every_exit_code_is_documented_and_distinct():
    """The table in the docs is the table in the code."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| (\d+)[^|]*\| (.+?) \|$", page, re.MULTILINE))
    numbers = {name: value for name, value in vars(codes).items() if name.isupper() and isinstance(value, int)}

    assert len(set(numbers.values())) == len(numbers)
    assert {int(code): meaning for code, meaning in listed.items()} == codes.MEANINGS
    assert set(codes.MEANINGS) == set(numbers.values())


def test_the_console_script_is_the_same_tool(local):
    """The script that pip installs as `holdfast` does the same as `python -m holdfast`."""
    script = Path(sys.executable).with_name("holdfast")
    if not script.exists():
        pytest.skip("there is no `holdfast` beside this Python: install the project with pip")

    both = [subprocess.run([*start, "show", "x", "--json"], env=local.environ, capture_output=True, check=True)
            for start in ([str(script)], HOLDFAST)]  # fmt: skip

    assert both[0].stdout == both[1].stdout
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize("group", ["pool", "limit", "registry"])
def test_a_group_without_a_command_shows_its_help(local, group):
    """Like `holdfast` alone: the whole help, with the code of bad usage."""
    bare, asked, misspelt = local.inside(group), local.inside(group, "--help"), local.inside(group, "peel")

    assert (bare.code, asked.code, misspelt.code) == (64, 0, 64)
    assert bare.out == asked.out
    assert bare.out.count(b"\n") > 5
    assert (bare.err, misspelt.out) == (b"", b"")


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls",),
        ("show", "x"),
        ("watch", "--count", "1"),
        ("wait", "x"),
        ("break", "x", "--reason", "y", "--yes"),
        ("doctor",),
        ("bench", "--seconds", "0.5"),
        ("pool", "ls"),
        ("pool", "set", "x", "a"),
        ("limit", "reset", "1/second", "ann"),
        ("registry", "ls", "x"),
    ],
    ids=" ".join,
)
def test_an_engine_of_process_scope_is_refused(local, arguments):
    """No other process shares its leases: an answer about them would mean nothing."""
    done = local.inside(*arguments, "--url", "memory://")

    assert (done.code, done.out) == (64, b"")
    assert b"one process" in done.err


def test_a_feature_that_shared_directories_lack_is_refused_with_alternatives(local, tmp_path):
    """`there are no pools` would be true, and misleading."""
    with holdfast.connect(f"file://{tmp_path}") as client:
        client.show("x")
    for arguments in (
        ("pool", "ls"),
        ("pool", "show", "x"),
        ("limit", "show", "1/second", "x"),
        ("registry", "ls", "x"),
    ):
        done = local.inside(*arguments, "--url", f"file://{tmp_path}")

        assert done.code == 64, done
        assert b"sqlite:// has them" in done.err


def test_a_name_that_is_not_found_comes_with_the_right_list_command(tool):
    """A hint at the wrong list misleads people."""
    tool.client().pool("channels").set_items(["alice"])
    item = tool.inside("pool", "cool", "channels", "zz", "5")
    key = tool.inside("registry", "show", "conv", "zz")

    assert (item.code, key.code) == (66, 66)
    assert b"`holdfast pool show`" in item.err
    assert b"`holdfast registry ls`" in key.err
    assert b"`holdfast ls`" in tool.inside("break", "x", "--reason", "y", "--yes").err


@pytest.mark.parametrize("ttl", ["0.1", "0.5", "0"])
def test_every_ttl_that_is_too_short_for_run_gets_the_same_message(local, ttl):
    """A user who follows the first message is not refused by a second rule."""
    done = local.inside("run", "x", "--ttl", ttl, "--", "true")

    assert done.code == 64
    assert b"at least 1 s" in done.err


def test_the_summary_of_every_command_is_the_beginning_of_its_help():
    """`holdfast --help` imports no command, so the table in `app` repeats the first sentence of each."""
    for entry in app.COMMANDS:
        page = " ".join((entry.load().help or "").split())
        assert page.startswith(entry.summary.rstrip(".")), entry.name


def test_help_imports_no_command():
    """`holdfast --help` must answer at once: commands, engines and rich are imported when they are used."""
    program = (
        "import sys; from holdfast.cli.app import main; main(['--help']);"
        "print([name for name in sys.modules if name.startswith(('holdfast.core', 'holdfast.engines', 'rich'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"
