"""What the pages type is typed: every `console` block runs in a real shell, and what it shows is what comes.

Lines that begin with `$ ` are commands of one script; the others are what they print, in this order, where `…` stands
for anything and runs of blanks for one. A block that cannot be run has a comment right above it: <!-- not run: why -->.
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
    """Every block of every page that is a conversation with a shell."""
    return [
        pytest.param(block.code, id=f"{name_of(file)}:{block.line}")
        for file in pages()
        for block in split(file.read_text(encoding="utf-8"))[0]
        if block.language == "console" and not block.comment.startswith("not run")
    ]


def script_and_answers(code):
    """The commands, and what should be seen."""
    lines = code.splitlines()
    script = [line[2:] for line in lines if line.startswith("$ ")]
    answers = [line for line in lines if line.strip() and not line.startswith("$ ")]
    return "\n".join(script), answers


def typed(script, folder, longest_s=LONGEST_RUN_S):
    """What a shell shows for the script, in a home of its own; nothing that it started outlives it."""
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
    """Everything that the shell of this test started: `holdfast run` puts its program into a group of its own."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                if session == leader:
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, IndexError):
                continue


def missing(answers, output):
    """The first answer that is not among the lines, in order; `None` if all are."""
    lines = iter(BLANKS.sub(" ", line).strip() for line in output.splitlines())
    for answer in answers:
        words = BLANKS.sub(" ", answer).strip().split("…")
        pattern = re.compile(".*".join(re.escape(word.strip()) for word in words))
        if not any(pattern.fullmatch(line) for line in lines):
            return answer
    return None


@pytest.mark.parametrize("code", blocks())
def test_commands_on_the_pages_do_what_the_page_shows(code, tmp_path):
    """A command that does not work as shown teaches distrust."""
    script, answers = script_and_answers(code)
    returncode, output = typed(script, tmp_path)

    assert returncode == 0, output
    assert missing(answers, output) is None, output


def test_the_readme_and_the_page_of_the_tool_are_among_them():
    """The first thing that a newcomer types is tried."""
    tried = {block.id.split(":")[0] for block in blocks()}

    assert {"README.md", "docs/cli.md"} <= tried


def test_commands_outside_of_conversations_exist():
    """Where a page only mentions a command, it is one that the tool has."""
    from holdfast.cli.app import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    used = {
        (name_of(file), word)
        for file in pages()
        for word in re.findall(r"`holdfast ([a-z]+)", file.read_text(encoding="utf-8"))
    }

    assert ("docs/cli.md", "run") in used
    assert {(page, word) for page, word in used if word not in known} == set()


def test_a_wrong_page_is_noticed(tmp_path):
    """The runner itself can fail: on a command that fails, on an answer that is missing, and on one out of order."""
    assert typed("false; echo never", tmp_path)[0] == 1
    assert missing(["a … c", "d"], "a b c\nd\n") is None
    assert missing(["b"], "a\n") == "b"
    assert missing(["b", "a"], "a\nb\n") == "a"
