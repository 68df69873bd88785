"""What goes wrong is one clear line with what to do next, a code of its own, and never a traceback."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_tool import HOLDFAST, Served, Tool

from holdfast.cli import codes
from holdfast.testing.servers import Server, available

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
}


def told(done):
    """The one line, which is all that there is."""
    text = done.err.decode()
    assert done.out == b"" or text == "", done.out
    assert "Traceback" not in text
    assert text.count("\n") <= 1
    return text or done.out.decode()


def test_an_engine_in_trouble_is_told_alike_by_every_command(tmp_path):
    """No server, a wrong password, a missing right: three causes, two codes, each with its advice."""
    if KIND is None:
        pytest.skip("neither Redis nor Valkey is here")
    with Server(KIND, password="right") as server, Tool(Served(server), tmp_path) as tool:
        server.command("ACL", "SETUSER", "app", "reset", "on", ">pw", "~hf1:*", "+ping", "+client|setname", "+select")
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
            line = told(done)
            assert done.code == (codes.CRITICAL if name == "doctor" else code)
            assert f"({reason})" in line
            assert advice in line
            assert "hunter2" not in line
            assert "pw" not in line

        for name in COMMANDS:
            for cause in causes:
                fails(name, cause)


def test_bad_usage_is_refused_before_anything_is_started(local):
    """A name that is none, an option that is none, a URL that is none: 64, and what is wrong with it."""
    cases = {
        ("show", ""): "must not be empty",
        ("show", "x" * 600): "at most 512 bytes",
        ("show", b"\xff"): "valid Unicode",
        ("run", "x", "--ttl", "0.5", "--", "true"): "at least 1 s",
        ("run", "x", "--grace", "20", "--", "true"): "half of the ttl",
        ("run", "x", "--ttl", "soon", "--", "true"): "--ttl",
        ("run", "x", "--timeout=-1", "--", "true"): "timeout",
        ("run", "x"): "Missing argument 'CMD'",
        ("ls", "--colour"): "No such option",
        ("lock", "x"): "No such command 'lock'",
        ("ls", "--url", "http://localhost"): "the scheme must be one of",
        ("ls", "--url", "redis://user:hunter2@host:port"): "cannot be read as a URL",
        ("break", "x"): "Missing option '--reason'",
    }

    for words, rule in cases.items():
        done = local.inside(*words)
        line = told(done)
        assert done.code == codes.USAGE, line
        assert rule.lower() in line.lower()
        assert "hunter2" not in line
    assert json.loads(local.inside("show", "", "--json").err)["code"] == codes.USAGE
    assert local("show", b"\xff").code == codes.USAGE


def test_every_command_explains_itself_with_an_example(local):
    """`--help` is the first page that anybody reads. It needs neither an engine nor a terminal."""
    everything = local("--help").out.decode()
    for name in [*COMMANDS, "demo"]:
        page = local.inside(name, "--help").out.decode()
        assert re.search(rf"Example:\n\s+holdfast {name}\b", page), page
        assert "--json" in page
        assert "HOLDFAST_URL" in page
        assert re.search(rf"^  {name} ", everything, re.MULTILINE)


def test_a_shell_can_complete_commands(local):
    """Typer's own completion, wired to our name."""
    script = local("--show-completion", "bash", env={"SHELL": "/bin/bash"})
    asked = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "holdfast d", "COMP_CWORD": "1"}
    offered = local(env=asked)

    assert b"_HOLDFAST_COMPLETE" in script.out
    assert offered.out.split() == [b"doctor", b"demo", b"directory"]


@pytest.mark.acceptance("C-23")
def test_without_the_extra_a_clear_line_says_what_to_install(tmp_path):
    """The core needs no package; only the tool does."""
    program = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "typer" else found(name, *rest)
sys.modules["typer"] = sys.modules["rich"] = None  # what is not installed cannot be imported either
from holdfast.cli import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program, "ls"], capture_output=True, text=True, check=False)

    assert done.returncode == codes.USAGE
    assert done.stdout == ""
    assert done.stderr == "holdfast: the command line needs typer and rich: pip install 'holdfast[cli]'\n"


def test_a_mistake_of_ours_is_one_line_too(local):
    """A traceback is for whoever asks for it."""
    broken = {"PYTHONPATH": str(local.folder)}
    (local.folder / "sitecustomize.py").write_text("import holdfast.cli.look as look; look.show = None")
    done = local("show", "x", env=broken)
    asked = local("show", "x", env={**broken, "HOLDFAST_DEBUG": "1"})

    assert done.code == codes.INTERNAL
    assert "a mistake in holdfast" in told(done)
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
    """What pip installs as `holdfast` and `python -m holdfast.cli` do the same."""
    script = Path(sys.executable).with_name("holdfast")
    if not script.exists():
        pytest.skip("the project is not installed here")

    both = [subprocess.run([*start, "show", "x", "--json"], env=local.environ, capture_output=True, check=True)
            for start in ([str(script)], HOLDFAST)]  # fmt: skip

    assert both[0].stdout == both[1].stdout
    assert os.access(script, os.X_OK)
