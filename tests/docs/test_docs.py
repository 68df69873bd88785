"""Every Python block of the pages runs, and every relative link leads to a file.

A comment right above a block changes that:

    <!-- continues -->         the block continues the previous block of the page
    <!-- not run: reason -->   the block is for reading only
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.postgres import Postgres

ROOT = Path(__file__).resolve().parents[2]
LONGEST_RUN_S = 60

FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w+-]*)[^`]*$")
COMMENT = re.compile(r"^\s*<!--\s*(?P<text>.*?)\s*-->\s*$")
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\s*\[[^\]]+\]:\s*<?([^\s>]+)>?")
ELSEWHERE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


@dataclass
class Block:
    """One fenced block: its first line, its language, the comment above it, and its code."""

    line: int
    language: str
    comment: str
    code: str


@dataclass
class Program:
    """The blocks of one page that run as one program."""

    page: str
    blocks: list = field(default_factory=list)

    def __str__(self):
        return f"{self.page}:{self.blocks[0].line}"

    def source(self):
        """Return the code at the same line numbers as on the page, so that a traceback points there."""
        lines = []
        for block in self.blocks:
            lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
        return "\n".join(lines) + "\n"


def pages():
    """Return the README and the pages of docs. Decision records are history, and their code does not run."""
    docs = ROOT / "docs"
    return [
        file for file in [ROOT / "README.md", *sorted(docs.rglob("*.md"))] if file.exists() and not is_decision(file)
    ]


def is_decision(file):
    return file.is_relative_to(ROOT / "docs" / "decisions")


def split(text):
    """Return the blocks of a page, and its other lines with their numbers."""
    blocks, prose = [], []
    opened, comment, code, start = None, "", [], 0
    for number, line in enumerate(text.splitlines(), start=1):
        if opened is None:
            opened = FENCE.match(line)
            if opened:
                code, start = [], number + 1
                continue
            prose.append((number, line))
            remark = COMMENT.match(line)
            if remark:
                comment = remark["text"]
            elif line.strip():
                comment = ""
        elif line.strip().startswith(opened["fence"]) and set(line.strip()) == {opened["fence"][0]}:
            blocks.append(Block(start, opened["language"], comment, textwrap.dedent("\n".join(code))))
            opened, comment = None, ""
        else:
            code.append(line)
    if opened is not None:
        raise ValueError(f"the block at line {start - 1} never ends")
    return blocks, prose


def programs_of(name, text):
    """Return the programs of a page, and the mistakes in its comments."""
    programs, problems = [], []
    previous_ran = False
    for block in split(text)[0]:
        if block.language not in {"python", "py"}:
            continue
        where = f"{name}:{block.line}"
        if block.comment.startswith("not run"):
            if not re.fullmatch(r"not run:\s*\S.*", block.comment):
                problems.append(f"{where}: a block that is not run must give the reason")
            previous_ran = False
        elif block.comment == "continues" and not previous_ran:
            problems.append(f"{where}: there is no block before this one to continue")
        elif block.comment == "continues":
            programs[-1].blocks.append(block)
        else:
            programs.append(Program(name, [block]))
            previous_ran = True
    return programs, problems


def name_of(file):
    return file.relative_to(ROOT).as_posix()


def every_program():
    found = []
    for file in pages():
        found += programs_of(name_of(file), file.read_text(encoding="utf-8"))[0]
    return found


def run(program, folder, longest_s=LONGEST_RUN_S):
    """Run a program as a user would, in its own home directory, and end it after the longest time."""
    file = folder / "page.py"
    file.write_text(program.source(), encoding="utf-8")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "XDG_"))}
    own = {
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "HOLDFAST_URL": f"sqlite://{folder}/holdfast.db",
        "PYTHONPATH": str(ROOT / "src"),
        "PYTEST_ADDOPTS": "-p no:asyncio",  # it warns until a project has chosen one of its settings
    }
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(file)],
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
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0] + f"\nstill running after {longest_s} s"
    return process.returncode, output


@pytest.mark.parametrize("program", every_program(), ids=str)
def test_python_on_the_pages_runs(program, tmp_path, monkeypatch):
    """An example that does not run teaches a mistake. An example that reads `DATABASE_URL` gets a real PostgreSQL."""
    with ExitStack() as opened:
        if "DATABASE_URL" in program.source():
            url = opened.enter_context(Postgres()).url
            monkeypatch.setenv("DATABASE_URL", url.replace("postgresql:", "postgresql+psycopg:"))
        returncode, output = run(program, tmp_path)

    assert returncode == 0, f"{program}\n{output}"


def test_readme_shows_code_that_runs():
    """A newcomer copies the code of the README first, so it must run."""
    assert "README.md" in {program.page for program in every_program()}


def test_comments_above_blocks_make_sense():
    """A block that does not run gives the reason; a block that continues follows another block."""
    problems = []
    for file in pages():
        problems += programs_of(name_of(file), file.read_text(encoding="utf-8"))[1]

    assert not problems, "\n".join(problems)


def anchors(file):
    """Return the anchors of a page's headings, as the hosting sites make them."""
    headings = [line.lstrip("#").strip() for _, line in split(file.read_text(encoding="utf-8"))[1] if line[:1] == "#"]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_relative_links_lead_to_files_and_headings():
    """A link inside the project leads to a file of the project, and an anchor to one of its headings."""
    broken = []
    others = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    for file in [*pages(), *others, *sorted((ROOT / "docs" / "decisions").glob("*.md"))]:
        for number, line in split(file.read_text(encoding="utf-8"))[1]:
            for match in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
                target = match[1] or match[2]
                if ELSEWHERE.match(target):
                    continue
                path, _, anchor = target.partition("#")
                place = file.parent / path if path else file
                if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors(place)):
                    broken.append(f"{name_of(file)}:{number} -> {target}")

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("README.md", "distributed lock|leader election|semaphore|rate limiting|idempotency|dead-letter queue"),
        ("docs/guide.md", "distributed lock|leader election|semaphore|rate limit|idempotency key|cron"),
        ("docs/queues.md", "visibility timeout|dead-letter queue|heartbeat|redeliver"),
        ("docs/limits.md", "rate limiting|throttling"),
        ("docs/once.md", "idempotency key|deduplication"),
        ("docs/pools.md", "semaphore|connection pool|read-write lock"),
        ("docs/registry.md", "service registry"),
        ("docs/ownership.md", "sticky assignment|partition assignment|work leasing"),
        ("docs/build.md", "build once|install once|shared directory"),
        ("docs/cli.md", "cron"),
        ("docs/security.md", "threat model|multi-tenant|untrusted input|secrets|tls|acl"),
    ],
)
def test_a_page_contains_the_words_that_readers_search_for(page, words):
    """A reader who knows Redis, Kafka, SQS, etcd or Celery finds a page by the words of those systems."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8").lower().split())

    assert [word for word in words.split("|") if word not in text] == []


def test_joined_blocks_keep_their_lines():
    """A traceback leads to the right line of the page, also after a joined block."""
    page = "# A\n\n```python\nx = 1\n```\n\ntext\n\n<!-- continues -->\n```python\nx / 0\n```\n"

    (program,), problems = programs_of("a.md", page)

    assert not problems, "\n".join(problems)
    assert program.source().splitlines()[3] == "x = 1"
    assert program.source().splitlines()[10] == "x / 0"


@pytest.mark.parametrize("comment", ["continues", "not run", "not run:"])
def test_invalid_comments_are_reported(comment):
    """A wrong comment is an error, never a silent skip."""
    _, problems = programs_of("a.md", f"<!-- {comment} -->\n```python\npass\n```\n")

    assert len(problems) == 1


def test_failing_and_endless_blocks_are_detected(tmp_path):
    """The runner must fail on an error, and on a block that does not end."""
    fails, output = run(Program("a.md", [Block(1, "python", "", "1 / 0")]), tmp_path)
    endless, _ = run(Program("a.md", [Block(1, "python", "", "import time; time.sleep(60)")]), tmp_path, longest_s=1)

    assert fails == 1
    assert "ZeroDivisionError" in output
    assert endless == -signal.SIGKILL
