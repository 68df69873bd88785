"""Every `console` block of the pages runs in a real shell and prints the lines that the page shows.

Lines that begin with `$ ` are the commands of one script; the others are its output, in this order. `…` stands for any
text, and several blanks count as one. A block that cannot run has a comment right above it: <!-- not run: reason -->.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import ROOT, name_of, pages, split

LONGEST_RUN_S = 40
BLANKS = re.compile(r"\s+")


def blocks():
    """Return the `console` blocks of all pages."""
    return [
        pytest.param(block.code, id=f"{name_of(file)}:{block.line}")
        for file in pages()
        for block in split(file.read_text(encoding="utf-8"))[0]
        if block.language == "console" and not block.comment.startswith("not run")
    ]


def script_and_output(code):
    """Split a block into the commands and the expected output."""
    lines = code.splitlines()
    script = [line[2:] for line in lines if line.startswith("$ ")]
    expected = [line for line in lines if line.strip() and not line.startswith("$ ")]
    return "\n".join(script), expected


def run_script(script, folder, longest_s=LONGEST_RUN_S):
    """Run a script in a shell with its own home directory; return its exit code and output."""
    tool = folder / "bin" / "holdfast"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    tool.chmod(0o755)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "XDG_"))}
    own = {
        "HOME": str(folder),
        "USER": "ann",
        "PATH": f"{tool.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }
    process = subprocess.Popen(
        ["/bin/bash", "-c", f"set -e\n{script}"],
        cwd=folder,
        env={**inherited, **own},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=longest_s)
    except subprocess.TimeoutExpired:
        end_session(process.pid)
        output = process.communicate()[0] + f"\nstill running after {longest_s} s"
    return process.returncode, output


def end_session(leader):
    """Kill all processes of a session, because `holdfast run` puts its program into another process group."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                if session == leader:
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, IndexError):
                continue


def first_missing(expected, output):
    """Return the first expected line that the output lacks, in order, or `None`."""
    lines = iter(BLANKS.sub(" ", line).strip() for line in output.splitlines())
    for each in expected:
        parts = BLANKS.sub(" ", each).strip().split("…")
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in parts))
        if not any(pattern.fullmatch(line) for line in lines):
            return each
    return None


@pytest.mark.parametrize("code", blocks())
def test_commands_on_the_pages_do_what_the_page_shows(code, tmp_path):
    """Readers stop trusting a page whose commands do not work as shown."""
    script, expected = script_and_output(code)
    returncode, output = run_script(script, tmp_path)

    assert returncode == 0, output
    assert first_missing(expected, output) is None, output


def test_the_readme_and_the_cli_page_have_commands_that_run():
    """A newcomer types the commands of the README first, so they must work."""
    tested = {block.id.split(":")[0] for block in blocks()}

    assert {"README.md", "docs/cli.md"} <= tested


def test_commands_in_sentences_exist():
    """A command that a page mentions in a sentence must exist."""
    from holdfast.cli.app import COMMANDS

    known = {command.name for command in COMMANDS}
    used = {
        (name_of(file), name)
        for file in pages()
        for name in re.findall(r"`holdfast ([a-z]+)", file.read_text(encoding="utf-8"))
    }

    assert ("docs/cli.md", "run") in used
    assert {(page, name) for page, name in used if name not in known} == set()


def test_a_wrong_page_is_detected(tmp_path):
    """The runner must fail on a failing command, on a missing line, and on lines out of order."""
    assert run_script("false; echo never", tmp_path)[0] == 1
    assert first_missing(["a … c", "d"], "a b c\nd\n") is None
    assert first_missing(["b"], "a\n") == "b"
    assert first_missing(["b", "a"], "a\nb\n") == "a"
