"""The style of the project, as laws. Each test collects every offence, so that one run reports all of them."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tools import vocabulary

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "holdfast"

LINES_THAT_WARN = 500
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
    "a path in a home directory": re.compile(r"(?<![\w.~-])/(?:home|Users|root)/\w|[A-Z]:\\Users\\"),
    "a package index of one network": re.compile(r"--(?:extra-)?index[-]url|PIP_(?:EXTRA_)?INDEX[_]URL"),
}
# Programs construct these classes themselves; they get all others from a method of a client.
MADE_BY_CALLERS = {"Backoff", "Reject", "Release", "Retry"}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def project_files(folder="", suffix=""):
    """Return the files that are part of the project or about to be; never the files that git ignores."""
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
    """Return the text of a file, or an empty text for a binary file."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def fresh_python(*arguments, cwd):
    """Run a new interpreter that imports this checkout and may write its compiled files."""
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


def test_long_source_files_are_reported():
    """A file that grows past a few screens may hold more than one idea. Split it by idea, never to satisfy a number."""
    sizes = {shown(file): len(text_of(file).splitlines()) for file in project_files("src")}

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for name, size in sizes.items():
            if size > LINES_THAT_WARN:
                warnings.warn(f"{name} has {size} lines; does it hold more than one idea?", stacklevel=1)

    assert sizes


def test_functions_fit_one_screen():
    """A reader can only check a function that is visible as a whole."""
    long = [
        f"{shown(file)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for file in project_files("src", ".py")
        for node in ast.walk(tree_of(file))
        if isinstance(node, FUNCTION) and node.end_lineno - node.lineno + 1 > MOST_LINES_OF_A_FUNCTION
    ]

    assert not long, "\n".join(long)


def test_every_module_has_a_docstring():
    """A module opens with its purpose and the rule that it keeps."""
    silent = [shown(file) for file in project_files("src/holdfast", ".py") if not ast.get_docstring(tree_of(file))]

    assert not silent, "\n".join(silent)


def test_no_module_has_a_vague_name():
    """A module is named after its one noun; `utils` says nothing about its contents."""
    vague = [
        shown(file)
        for folder in ("src", "tests", "tools")
        for file in project_files(folder, ".py")
        if VAGUE_NAMES & {part.removesuffix(".py").strip("_") for part in file.relative_to(ROOT).parts}
    ]

    assert not vague, "\n".join(vague)


def test_every_public_error_is_described():
    """docs/errors.md explains the meaning of each error, and what a caller can do about it."""
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


def test_every_test_names_its_law_and_reason():
    """The name of a test states the law in at least three words; the docstring gives the reason."""
    offences = []
    for file in [*project_files("tests", ".py"), *project_files("src/holdfast/testing/conformance", ".py")]:
        for node in ast.walk(tree_of(file)):
            if not (isinstance(node, FUNCTION) and node.name.startswith("test_")):
                continue
            if len(node.name.removeprefix("test_").split("_")) < 3:
                offences.append(f"{shown(file)}:{node.lineno} {node.name} is not a sentence")
            if not ast.get_docstring(node):
                offences.append(f"{shown(file)}:{node.lineno} {node.name} has no docstring")

    assert not offences, "\n".join(offences)


def test_every_lua_file_opens_with_its_contract():
    """A caller passes arguments by position, so the header is the only signature of a script."""
    offences = []
    for file in project_files("src", ".lua"):
        header = re.match(r"(?:--[^\n]*(?:\n|\Z))*", text_of(file)).group()
        offences += [
            f"{shown(file)}: no {word} in its header"
            for word in LUA_HEADER_WORDS
            if not re.search(rf"\b{word}\b", header)
        ]

    assert not offences, "\n".join(offences)


def test_the_readme_is_short():
    """The README is an introduction of one page; the details are in docs/. Its lines fit into an editor."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    wide = [
        f"README.md:{number} has {len(line)} characters"
        for number, line in enumerate(lines, start=1)
        if len(line) > 160
    ]

    assert 0 < len(lines) <= MOST_LINES_OF_THE_README
    assert not wide, "\n".join(wide)


def test_decision_records_have_all_their_parts():
    """A decision record gives the reasons, the consequences, and the facts that would change the decision."""
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
    """A number belongs to one decision for ever, and the index lists each record."""
    folder = ROOT / "docs" / "decisions"
    records = sorted(file.name for file in folder.glob("[0-9]*.md"))
    numbers = [name[:4] for name in records]
    linked = re.findall(r"\((\d{4}-[^)#]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))

    assert sorted(set(numbers)) == numbers
    assert sorted(set(linked)) == records


@pytest.mark.parametrize("dependency", FORBIDDEN)
def test_no_file_depends_on_one_machine(dependency):
    """The project works in every checkout, on every machine."""
    found = [
        f"{shown(file)}:{number}"
        for file in project_files()
        for number, line in enumerate(text_of(file).splitlines(), start=1)
        if FORBIDDEN[dependency].search(line)
    ]

    assert not found, "\n".join(found)


def test_no_lock_file_is_kept():
    """A library is tested against the versions that its users can install, not against one frozen set."""
    assert [shown(file) for file in project_files() if LOCK_FILES.fullmatch(file.name)] == []


@pytest.mark.parametrize("page", ["acceptance", "reference"])
def test_generated_pages_are_up_to_date(page):
    """The generated pages agree with the markers and the code; `make docs` writes them again."""
    check = subprocess.run(
        [sys.executable, ROOT / "tools" / f"{page}.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (check.returncode, check.stderr) == (0, "")


def test_importing_holdfast_brings_no_client_library(tmp_path):
    """Only programs that use an engine, an event loop or a terminal pay for its import."""
    program = "import sys; before = set(sys.modules); import holdfast; print(*(set(sys.modules) - before))"

    imported = set(fresh_python("-c", program, cwd=tmp_path).stdout.split())

    assert "holdfast" in imported
    assert imported & set(NOT_IMPORTED_BY_HOLDFAST) == set()


@pytest.mark.parametrize("face", ["holdfast.blocking", "holdfast.aio"])
def test_a_face_imports_queues_and_builds_only_when_they_are_used(face, tmp_path):
    """Most programs use a lock and no queue, so the import of a queue waits until the first use."""
    program = (
        f"import sys, {face} as face; before = {{*sys.modules}}; assert 'Queue' in dir(face); face.Queue; "
        "print(*before); print(*({*sys.modules} - before))"
    )

    before, after = fresh_python("-c", program, cwd=tmp_path).stdout.splitlines()

    assert {f"{face}.client", "holdfast.core.lease.acquire"} <= set(before.split())
    assert NOT_BEFORE_A_QUEUE | {f"{face}.queue", f"{face}.ownership"} <= set(after.split())
    assert set(before.split()) & (NOT_BEFORE_A_QUEUE | NOT_BEFORE_A_BUILD) == set()


def test_importing_holdfast_takes_under_thirty_ms(tmp_path):
    """A command-line tool can afford the import. The best of several runs counts, because machines are busy."""
    cumulative_us = []
    for _ in range(IMPORT_RUNS):
        report = fresh_python("-X", "importtime", "-c", "import holdfast", cwd=tmp_path).stderr
        cumulative_us.append(int(re.search(r"\|\s*(\d+) \| holdfast$", report, re.MULTILINE).group(1)))

    assert min(cumulative_us) < MOST_IMPORT_US


def test_the_test_files_that_start_first_exist():
    """A renamed file would start last again, and nothing would show it."""
    source = (ROOT / "tests" / "conftest.py").read_text()
    named = re.findall(r'"(tests/\S+\.py)"', source)

    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_no_file_uses_a_banned_word_more_often_than_allowed():
    """A reader finds a thing by the word of the field. `python tools/vocabulary.py` lists the uses that are left."""
    allowed = vocabulary.allowed_uses()
    offences = [
        f"{file}: {word!r} occurs {times} times; allowed: {allowed.get(file, {}).get(word, 0)}"
        for file, words in vocabulary.counts(vocabulary.find_uses()).items()
        for word, times in words.items()
        if times > allowed.get(file, {}).get(word, 0)
    ]

    assert not offences, "\n".join(offences)


def test_the_list_of_allowed_words_only_shrinks():
    """An entry that allows more than the file uses would let a banned word come back."""
    today = vocabulary.counts(vocabulary.find_uses())
    stale = [
        f"{file}: {word!r} is allowed {times} times; it occurs {today.get(file, {}).get(word, 0)} times"
        for file, words in vocabulary.allowed_uses().items()
        for word, times in words.items()
        if times > today.get(file, {}).get(word, 0)
    ]

    assert not stale, "\n".join([*stale, "run: python tools/vocabulary.py --shrink"])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.py", "class RoofState: pass", ["roof"]),
        ("a.py", "find_tombs(URLRoof, MY_BELL)", ["tombs", "roof", "bell"]),
        ("a.py", "proof = indeed.tombstone", []),
        ("a.md", "A dead letter, a dead-letter queue, letters and digits, `DeadLetter`.", []),
        ("a.md", "It is in the letters.", ["letters"]),
        ("a.md", "It is said that you beat them.", []),
        ("a.py", "said = beat_due  # he said", ["said", "beat"]),
        ("a.lua", "local said = 'told' -- told", ["said"]),
    ],
)
def test_the_scan_splits_identifiers_and_compares_whole_words(name, text, words):
    """A check that misses `TombBoard`, or that stumbles over `proof`, is of no use."""
    assert sorted(use.word for use in vocabulary.uses_in(name, text)) == sorted(words)


def test_only_the_resend_module_names_a_lost_reply():
    """Sending a command again is the riskiest pattern of the library, so the core writes it once."""
    others = [
        shown(file)
        for file in project_files("src/holdfast/core", ".py")
        if "ReplyLost" in text_of(file) and shown(file) != "src/holdfast/core/resend.py"
    ]

    assert not others, "\n".join(others)


def test_the_makefile_names_existing_tests():
    """A target that names a renamed file would fail, or run nothing, long after the rename."""
    named = re.findall(r"(?<!\S)(tests/\S+|tools/\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    missing = [name for name in named if not list(ROOT.glob(name))]

    assert named
    assert not missing, "\n".join(missing)


def test_the_nfs_scenarios_name_existing_laws():
    """`make nfs` runs rarely, so a renamed law would be missed for long."""
    names = {
        target.id: ast.literal_eval(node.value)
        for node in tree_of(ROOT / "tools" / "nfs" / "scenarios.py").body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in {"LAWS", "UNFIT"}
    }
    laws = "".join(text_of(file) for file in project_files("src/holdfast/testing/conformance", ".py"))

    assert [law for law in names["LAWS"] if not (ROOT / "tests" / "laws" / f"test_{law}_laws.py").exists()] == []
    assert [law for law in names["UNFIT"] if not re.search(rf"def test_\w*{law}", laws)] == []


def test_no_class_name_is_defined_twice():
    """One name is one thing. Only the two faces of one class share a name."""
    doubles = vocabulary.duplicate_classes()

    assert not doubles, "\n".join(f"{name}: {', '.join(places)}" for name, places in sorted(doubles.items()))


# The ASGI specification defines these; users pass the functions on, and do not call them.
ASGI_PARAMETERS = {"scope", "receive", "send", "body"}


def public_functions(module_name):
    """Yield the public functions, methods and constructors of a module, each with the text about its parameters."""
    module = importlib.import_module(module_name)
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isfunction(thing):
            yield name, thing, inspect.getdoc(thing) or ""
        elif name in MADE_BY_CALLERS:
            yield name, thing, (inspect.getdoc(thing) or "") + (thing.__init__.__doc__ or "")
        elif inspect.isclass(thing) and not issubclass(thing, BaseException | tuple):
            yield from public_methods(name, thing)


def public_methods(name, kind):
    """Yield the public methods of a class. The docstring of `Holdfast` may describe parameters of many methods."""
    shared = inspect.getdoc(kind) if name == "Holdfast" else ""
    internal = {member for base in kind.__mro__ for member in vars(base).get("_internal", ())}
    for member, thing in inspect.getmembers_static(kind):
        if member in internal:
            continue
        function = thing.__func__ if isinstance(thing, staticmethod | classmethod) else thing
        if inspect.isfunction(function) and (member == "__call__" or not member.startswith("_")):
            yield f"{name}.{member}", function, f"{inspect.getdoc(function)} {shared}"


@pytest.mark.parametrize(
    "module",
    [
        "holdfast",
        "holdfast.aio",
        "holdfast.guards",
        "holdfast.testing",
        "holdfast.contrib.asgi",
        "holdfast.contrib.lancedb",
    ],
)
def test_public_functions_document_their_parameters(module):
    """The hover of an editor is enough to call a public function: its docstring names each parameter."""
    if module == "holdfast.contrib.lancedb":
        pytest.importorskip("lancedb")
    undocumented = [
        f"{function.__module__}: {name}({parameter})"
        for name, function, text in public_functions(module)
        for parameter in inspect.signature(function).parameters
        if parameter not in {"self", "cls", *ASGI_PARAMETERS} and not re.search(rf"\b{parameter}\b", text)
    ]

    assert not undocumented, "\n".join(undocumented)


def test_only_resend_knows_how_a_lost_reply_looks():
    """The resend after a lost reply is written once: no other module of the core may start a second way."""
    core = PACKAGE / "core"
    naming = [
        shown(file)
        for file in project_files("src/holdfast/core", ".py")
        if file != core / "resend.py" and re.search(r"\bReplyLost\b", text_of(file))
    ]

    assert not naming, "\n".join(naming)


def test_only_a_lease_writes_its_state():
    """A lease is a state machine: every transition is a method in `core/lease/state.py`."""
    writing = re.compile(r"\b(?!self\b)\w*(?:lease|item|term|session|claim|first)\w*\.state\s*=[^=]")
    offences = [
        f"{shown(file)}: {match.group()}"
        for file in project_files("src/holdfast", ".py")
        if "testing" not in file.parts
        for match in writing.finditer(text_of(file))
    ]
    exempt = {
        PACKAGE / "core" / "lease" / "state.py",
        PACKAGE / "core" / "client.py",
    }  # a client has a state of its own
    steps = [
        f"{shown(file)}: self.state ="
        for file in project_files("src/holdfast/core", ".py")
        if file not in exempt and re.search(r"\bself\.state\s*(?:=[^=]|,.*=)", text_of(file))
    ]

    assert not offences + steps, "\n".join(offences + steps)


# Modules and calls that turn text into code: a body, a name or a reply of a server would run as a program.
CODE_LOADERS = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "code", "runpy"}
CODE_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput"}


def runs_text(node):
    """Return whether a node imports a module that loads code, runs a text as code, or passes it to a shell."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
        return any(name.split(".")[0] in CODE_LOADERS for name in names)
    if not isinstance(node, ast.Call):
        return False
    in_shell = any(each.arg == "shell" and ast.unparse(each.value) != "False" for each in node.keywords)
    return in_shell or ast.unparse(node.func) in CODE_CALLS


def test_no_module_runs_text_as_code():
    """Names, bodies and replies come from other programs: the library decodes them as JSON or bytes only."""
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in project_files("src/holdfast", ".py")
        if "testing" not in file.relative_to(PACKAGE).parts
        for node in ast.walk(tree_of(file))
        if runs_text(node)
    ]
    assert found == []
    risky = "import pickle; from yaml import load; eval(x); os.system(x); run(x, shell=True)"
    assert sum(map(runs_text, ast.walk(ast.parse(risky)))) == 5


# Calls that use a file by its path, or change its owner or mode. Only `shared_files.py` makes them for files in places
# that other users can write to.
BY_PATH = {
    "os": "chmod chown fchmod fchown lchown link makedirs mkdir mkfifo open remove rename replace rmdir symlink unlink",
    "shutil": "chown copy copytree move rmtree",
}
OF_PATHS = "chmod hardlink_to mkdir read_bytes read_text rename rmdir symlink_to touch unlink write_bytes write_text"
# The files of the system and of the package itself, which no other user can replace, and the tools for tests.
NOT_SHARED = {
    "cli/app.py": "/dev/null",
    "cli/run/program.py": "/proc",
    "cli/run/terminal.py": "the terminal",
    "cli/run/watcher.py": "/proc",
    "cli/shell/script.py": "/proc",
    "cli/shell/watcher.py": "/dev/null, and /proc",
    "contrib/npm.py": "the tree that npm left in the staging directory, which is only read",
    "contrib/npm_runs.py": "settings of npm, and /proc",
    "core/registry/registry.py": "/proc",
    "demo/narration.py": "a file of the demo",
    "engines/redis/script.py": "the package",
    "engines/schemes.py": "the metadata of installed packages",
    "engines/sqlite/process_locks.py": "/proc",
    "failpoints.py": "a directory of a test",
    "guards/file_locks.py": "/dev/null",
    "guards/redis.py": "the package",
    "host.py": "/proc",
    "names.py": "/proc",
}


def uses_by_path(tree):
    """Return the calls of a module that use files by path, or change the owner or the mode of a file."""
    found = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Name):
            is_descriptor = call.args and re.match(r"descriptor|open_file\(", ast.unparse(call.args[0]))
            found |= {"open"} if call.func.id == "open" and not is_descriptor else set()
        elif isinstance(call.func, ast.Attribute):
            owner, name = ast.unparse(call.func.value), call.func.attr
            of_path = name in OF_PATHS.split() or (name == "replace" and len(call.args) == 1 and not call.keywords)
            if name == "open":  # other classes have this method too: that of paths takes a mode or an encoding
                of_path = any(isinstance(each, ast.Constant) for each in call.args) or any(
                    each.arg == "encoding" for each in call.keywords
                )
            if name in BY_PATH.get(owner, "").split() or (of_path and owner not in BY_PATH):
                found.add(f"{owner}.{name}" if owner in BY_PATH else f"Path.{name}")
    return found


@pytest.mark.finding("S2", "S4", "S5")
def test_only_one_module_uses_files_of_shared_places_by_path():
    """Between a check of a path and its use, another user can put another file there."""
    modules = {file.relative_to(PACKAGE).as_posix(): file for file in project_files("src/holdfast", ".py")}
    found = {
        name: calls
        for name, file in modules.items()
        if name != "shared_files.py" and not name.startswith("testing/") and (calls := uses_by_path(tree_of(file)))
    }
    changes = re.compile(r"chmod|chown|link|mkdir|mkfifo|re(name|move|place)|rm|touch|write_(?!text)")

    assert {name: calls for name, calls in found.items() if name not in NOT_SHARED} == {}
    assert NOT_SHARED.keys() - found.keys() == set()
    assert {call for name in NOT_SHARED for call in found[name] if changes.search(call)} <= {"Path.replace"}


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("os.chmod(path, 0o600)", {"os.chmod"}),
        ("shutil.rmtree(path)", {"shutil.rmtree"}),
        ("open(path)", {"open"}),
        ("open(descriptor, 'wb')", set()),
        ("path.open('x')", {"Path.open"}),
        ("path.open(encoding='utf-8')", {"Path.open"}),
        ("folder.open(name)", set()),
        ("draft.replace(path)", {"Path.replace"}),
        ("text.replace('a', 'b')", set()),
        ("(a / b).unlink(missing_ok=True)", {"Path.unlink"}),
    ],
)
def test_the_scan_for_uses_by_path_finds_them(text, calls):
    """A scan that finds nothing would pass for ever."""
    assert uses_by_path(ast.parse(text)) == calls
