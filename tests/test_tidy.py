"""The style of the project, as laws. Each test collects every offence, so that one run tells them all."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "holdfast"

MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 70
MOST_LINES_OF_THE_README = 100
MOST_IMPORT_US = 30_000
IMPORT_RUNS = 7

VAGUE_NAMES = {"common", "helper", "helpers", "manager", "managers", "util", "utils"}
NOT_IMPORTED_BY_HOLDFAST = ("asyncio", "hiredis", "lancedb", "redis", "rich", "sqlite3", "typer")
NOT_BEFORE_A_QUEUE = {
    f"holdfast.core.{each}"
    for each in ("queue.consumer", "queue.dlq", "ownership.owner", "queue.partitions", "queue.worker")
}
NOT_BEFORE_A_BUILD = {"holdfast.core.build.build_once", "holdfast.core.build.build_dir"}
DECISION_HEADINGS = ("Context", "Decision", "Consequences", "What would change our mind")
LUA_HEADER_WORDS = ("KEYS", "ARGV", "Returns")
LOCK_FILES = re.compile(
    r"uv\.lock|poetry\.lock|pdm\.lock|Pipfile\.lock|pixi\.lock|yarn\.lock|package-lock\.json"
    r"|pnpm-lock\.yaml|conda-lock\.ya?ml|pylock(\.\w+)?\.toml|requirements[\w-]*\.lock"
)
# Written so that no pattern matches its own text.
FORBIDDEN = {
    "a path in somebody's home": re.compile(r"(?<![\w.~-])/(?:home|Users|root)/\w|[A-Z]:\\Users\\"),
    "a package index of one place": re.compile(r"--(?:extra-)?index[-]url|PIP_(?:EXTRA_)?INDEX[_]URL"),
}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def project_files(folder="", suffix=""):
    """The files that are, or are about to be, part of the project; never what git ignores."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        names = [os.fsdecode(name) for name in listing.stdout.split(b"\0") if name]
        files = [ROOT / name for name in names]
    else:  # an unpacked archive
        files = [
            file
            for file in ROOT.rglob("*")
            if not any(part.startswith(".") or part == "__pycache__" for part in file.relative_to(ROOT).parts)
        ]
    inside = ROOT / folder
    return sorted(f for f in files if f.is_file() and f.is_relative_to(inside) and f.name.endswith(suffix))


def shown(file):
    return file.relative_to(ROOT).as_posix()


def tree_of(file):
    return ast.parse(file.read_text(encoding="utf-8"), filename=shown(file))


def text_of(file):
    """The text of a file, or nothing for one that is no text."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def sentences(text):
    """How many sentences; code spans count as words, also when they have dots."""
    return len(re.findall(r"[.!?](?=\s|$)", re.sub(r"`[^`]*`", "code", text.strip())))


def fresh_python(*arguments, cwd):
    """Run a new interpreter that finds this checkout, and may keep its compiled files."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV_", "COVERAGE_"))}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**kept, "PYTHONPATH": str(ROOT / "src")},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


def test_source_files_stay_short():
    """A file that grows past a few screens holds more than one idea."""
    sizes = {shown(file): len(text_of(file).splitlines()) for file in project_files("src")}
    long = [f"{name} has {size} lines" for name, size in sizes.items() if size > MOST_LINES_OF_A_FILE]

    assert not long, "\n".join(long)


def test_functions_fit_one_screen():
    """A function that cannot be seen whole cannot be checked by reading."""
    long = [
        f"{shown(file)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for file in project_files("src", ".py")
        for node in ast.walk(tree_of(file))
        if isinstance(node, FUNCTION) and node.end_lineno - node.lineno + 1 > MOST_LINES_OF_A_FUNCTION
    ]

    assert not long, "\n".join(long)


def test_every_module_says_its_rules():
    """A module opens with what it is for."""
    silent = [shown(file) for file in project_files("src/holdfast", ".py") if not ast.get_docstring(tree_of(file))]

    assert not silent, "\n".join(silent)


def test_no_module_has_a_vague_name():
    """`utils` is where ideas go to be forgotten; a module is named after its one noun."""
    vague = [
        shown(file)
        for folder in ("src", "tests", "tools")
        for file in project_files(folder, ".py")
        if VAGUE_NAMES & {part.removesuffix(".py").strip("_") for part in file.relative_to(ROOT).parts}
    ]

    assert not vague, "\n".join(vague)


def test_every_public_error_is_described():
    """Whoever catches an error finds in docs/errors.md what it says and what to do about it."""
    from holdfast import errors

    names = [
        name
        for name, thing in inspect.getmembers(errors, inspect.isclass)
        if issubclass(thing, BaseException) and thing.__module__ == errors.__name__ and not name.startswith("_")
    ]
    lines = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8").splitlines()
    headings = [line for line in lines if line.startswith("#")]
    first_cells = [line.split("|")[1] for line in lines if line.startswith("|")]

    undescribed = [
        name for name in names if not any(re.search(rf"\b{name}\b", place) for place in headings + first_cells)
    ]

    assert names != []
    assert not undescribed, "\n".join(undescribed)


def test_every_test_says_its_law_and_why():
    """The name of a test is the law in at least three words; the docstring is its reason."""
    offences = []
    for file in project_files("tests", ".py"):
        for node in ast.walk(tree_of(file)):
            if not (isinstance(node, FUNCTION) and node.name.startswith("test_")):
                continue
            if len(node.name.removeprefix("test_").split("_")) < 3:
                offences.append(f"{shown(file)}:{node.lineno} {node.name} is not a sentence")
            if not ast.get_docstring(node):
                offences.append(f"{shown(file)}:{node.lineno} {node.name} has no docstring")

    assert not offences, "\n".join(offences)


def test_every_lua_file_opens_with_its_contract():
    """A script is called by position, so its header is the only signature it has."""
    offences = []
    for file in project_files("src", ".lua"):
        header = re.match(r"(?:--[^\n]*(?:\n|\Z))*", text_of(file)).group()
        offences += [
            f"{shown(file)}: no {word} in its header"
            for word in LUA_HEADER_WORDS
            if not re.search(rf"\b{word}\b", header)
        ]

    assert not offences, "\n".join(offences)


def test_readme_can_be_read_in_one_go():
    """The README is an invitation; the rest is in docs/."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()

    assert 0 < len(lines) <= MOST_LINES_OF_THE_README


def test_change_fragments_are_short_and_well_named():
    """A fragment is one to three sentences for users, under a name that says its kind."""
    offences = []
    for file in project_files("changes"):
        if file.name == "README.md":
            continue
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*\.(added|changed|fixed|removed)\.md", file.name):
            offences.append(f"{shown(file)}: not <slug>.<added|changed|fixed|removed>.md")
        if not 1 <= sentences(text_of(file)) <= 3:
            offences.append(f"{shown(file)}: not one to three sentences")

    assert not offences, "\n".join(offences)


def test_decision_records_have_all_their_parts():
    """A decision without its price and its end is an order, not a decision."""
    offences = []
    for file in project_files("docs/decisions", ".md"):
        if file.name == "README.md":
            continue
        if not re.fullmatch(r"\d{4}-[a-z0-9]+(-[a-z0-9]+)*\.md", file.name):
            offences.append(f"{shown(file)}: not NNNN-title.md")
        headings = re.findall(r"^## (.+?)\s*$", text_of(file), re.MULTILINE)
        offences += [f"{shown(file)}: no heading {each}" for each in DECISION_HEADINGS if each not in headings]

    assert not offences, "\n".join(offences)


def test_decision_records_are_numbered_once_and_listed():
    """A number names one decision for ever, and the list leads to it."""
    folder = ROOT / "docs" / "decisions"
    records = sorted(file.name for file in folder.glob("[0-9]*.md"))
    numbers = [name[:4] for name in records]
    linked = re.findall(r"\((\d{4}-[^)#]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))

    assert sorted(set(numbers)) == numbers
    assert sorted(linked) == records


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_depends_on_one_place(what):
    """The project is the same wherever it is checked out."""
    found = [
        f"{shown(file)}:{number}"
        for file in project_files()
        for number, line in enumerate(text_of(file).splitlines(), start=1)
        if FORBIDDEN[what].search(line)
    ]

    assert not found, "\n".join(found)


def test_no_lock_file_is_kept():
    """A library is tested against what its users can get, not against one frozen set."""
    assert [shown(file) for file in project_files() if LOCK_FILES.fullmatch(file.name)] == []


@pytest.mark.parametrize("page", ["acceptance", "reference"])
def test_generated_pages_are_up_to_date(page):
    """They say what the markers and the code say: `make docs` makes them again."""
    check = subprocess.run(
        [sys.executable, ROOT / "tools" / f"{page}.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (check.returncode, check.stderr) == (0, "")


def test_importing_holdfast_brings_no_client_library(tmp_path):
    """Engines, event loops and terminals are paid for by those who use them."""
    program = "import sys; before = set(sys.modules); import holdfast; print(*(set(sys.modules) - before))"

    brought = set(fresh_python("-c", program, cwd=tmp_path).stdout.split())

    assert "holdfast" in brought
    assert brought & set(NOT_IMPORTED_BY_HOLDFAST) == set()


@pytest.mark.parametrize("face", ["holdfast.blocking", "holdfast.aio"])
def test_a_face_brings_neither_queues_nor_builders_before_they_are_used(face, tmp_path):
    """Most programs have a lock, and no queue: what is dear is loaded by whoever makes one."""
    program = (
        f"import sys, {face} as face; before = {{*sys.modules}}; assert 'Queue' in dir(face); face.Queue; "
        "print(*before); print(*({*sys.modules} - before))"
    )

    before, after = fresh_python("-c", program, cwd=tmp_path).stdout.splitlines()

    assert {f"{face}.client", "holdfast.core.lease.acquire"} <= set(before.split())
    assert NOT_BEFORE_A_QUEUE | {f"{face}.queue", f"{face}.ownership"} <= set(after.split())
    assert (
        set(before.split()) & {*NOT_BEFORE_A_QUEUE, "holdfast.core.build.build_once", "holdfast.core.build.build_dir"}
        == set()
    )


def test_importing_holdfast_takes_under_thirty_ms(tmp_path):
    """A command-line tool can afford the import; the best of several runs, because machines are busy."""
    cumulative_us = []
    for _ in range(IMPORT_RUNS):
        report = fresh_python("-X", "importtime", "-c", "import holdfast", cwd=tmp_path).stderr
        cumulative_us.append(int(re.search(r"\|\s*(\d+) \| holdfast$", report, re.MULTILINE).group(1)))

    assert min(cumulative_us) < MOST_IMPORT_US


def test_the_files_of_tests_that_are_begun_first_are_there():
    """One that was renamed would be begun last again, unseen."""
    told = (ROOT / "tests" / "conftest.py").read_text()
    named = re.findall(r'"(tests/\S+\.py)"', told)

    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
