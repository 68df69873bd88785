"""The wheels: what programs, tests and engine authors install. Each works in a fresh environment."""

import ast
import base64
import hashlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from hatch_build import INTERNAL
from holdfast.engines.redis import script
from holdfast.engines.redis.scripts import SCRIPTS

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 600_000
PACKAGES = ("conformance", "lancedb")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
HOOK_MADE = "holdfast/engines/redis/scripts.bundle"

LOCKS = """
import sys
import holdfast

for url in ("memory://", f"sqlite://{sys.argv[1]}/leases.db"):
    with holdfast.connect(url) as hf, hf.lock("orders/42", timeout=5) as lease:
        print(lease.name)
"""
ENGINES = """
import holdfast

def test_on_an_engine(holdfast_engine):
    with holdfast.connect(holdfast_engine.url) as hf, hf.lock("x", timeout=5):
        pass

def test_with_a_tool(holdfast_workers):
    holdfast_workers.start("json:dumps", obj=1).wait()
"""
STORE = """
import sys
import pyarrow as pa
from holdfast.contrib import lancedb

schema = pa.schema([("id", pa.string()), ("text", pa.string())])
with lancedb.open_store(sys.argv[1], "memories", "embedded", schema=schema) as store:
    store.add({"id": "1", "text": "tea"})
    print(store.count(), lancedb.blocking.__file__)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheels of this checkout by the name of their project, built without the network."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [*PIP, "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder]
    places = [ROOT, *(ROOT / "packages" / name for name in PACKAGES)]
    subprocess.run([*command, *places], check=True, capture_output=True, timeout=100)
    return {file.name.partition("-")[0]: file for file in folder.glob("*.whl")}


@pytest.fixture
def installed(wheels, tmp_path):
    """Install wheels, and nothing else, into a fresh environment."""

    def install(*names):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
        environment = Environment(tmp_path / "venv")
        command = [*PIP, "--python", environment.python, "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*command, *(wheels[name] for name in names)], check=True, timeout=100)
        return environment

    return install


class Environment:
    """A virtual environment with the wheels under test and nothing of this checkout."""

    def __init__(self, folder):
        self.folder = folder
        self.python = folder / "bin" / "python"
        (self.site,) = folder.glob("lib/*/site-packages")

    def link_libraries(self):
        """Make the libraries of the tests' own environment importable, without the network and without `holdfast`."""
        for there in Path(pytest.__file__).parents[1].iterdir():
            here = self.site / there.name
            if "holdfast" not in there.name and there.suffix != ".pth" and not here.exists():
                here.symlink_to(there)

    def run(self, *command):
        """Run a program of this environment outside the checkout."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST", "HOLDFAST"))}
        return subprocess.run(
            command, cwd=self.folder.parent, env=kept, capture_output=True, text=True, check=False, timeout=100
        )

    def pytest(self, *arguments):
        """Run pytest of this environment."""
        quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
        return self.run(self.python, "-m", "pytest", *arguments, *quiet)


def files_of(wheel):
    """Return the files of a wheel, without its metadata."""
    return [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]


def project_of(folder):
    """Return the table `project` of a folder's pyproject.toml."""
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]


def test_the_wheel_stays_below_its_bound(wheels):
    """Every service that takes a lock installs it."""
    assert wheels["holdfast"].stat().st_size <= MOST_BYTES


def test_every_file_of_the_package_is_in_one_wheel(wheels):
    """A file in two wheels is deleted with either; a file in none is missing for every user."""
    packed = Counter(name for wheel in wheels.values() for name in files_of(wheel))
    sources = {
        file.relative_to(ROOT / "src").as_posix()
        for file in (ROOT / "src" / "holdfast").rglob("*")
        if file.is_file() and file.suffix != ".pyc" and file.parent.parent.name != "lua" and file.parent.name != "lua"
    }

    assert set(packed) == {*sources, HOOK_MADE}
    assert max(packed.values()) == 1


class WithoutDocstrings(ast.NodeTransformer):
    """Removes the docstrings of the functions that no user calls, and bodies that consist of `...` alone."""

    def __init__(self, name):
        self.all = name.startswith(INTERNAL)

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        private = node.name.startswith("_") and not node.name.startswith("__")
        if (ast.get_docstring(node) is not None and (self.all or private)) or (
            len(node.body) == 1 and ast.unparse(node.body[0]) == "..."
        ):
            del node.body[0]
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815


def test_a_module_in_the_main_wheel_has_every_statement_of_its_source_on_its_line(wheels):
    """Tracebacks and debuggers show the lines of the installed file; users see every public docstring."""
    archive = zipfile.ZipFile(wheels["holdfast"])
    moved = []
    for name in [name for name in files_of(wheels["holdfast"]) if name.endswith(".py")]:
        texts = (archive.read(name), (ROOT / "src" / name).read_bytes())
        packed, source = (WithoutDocstrings(name).visit(ast.parse(text)) for text in texts)
        if statements(packed) != statements(source):
            moved.append(name)

    assert not moved


def statements(tree):
    """Return the tree as text, with the line and column where each part begins."""
    for node in ast.walk(tree):
        if hasattr(node, "end_lineno"):
            node.end_lineno = node.end_col_offset = 0  # a function may end earlier without its docstring
    return ast.dump(tree, include_attributes=True)


def test_a_wheel_records_the_hash_of_every_file(wheels):
    """Installers compare the hashes of RECORD with the files."""
    for wheel in wheels.values():
        archive = zipfile.ZipFile(wheel)
        (record,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        listed = dict(line.split(",", 1) for line in archive.read(record).decode().splitlines())
        data = {name: archive.read(name) for name in archive.namelist() if name != record}
        hashes = {name: base64.urlsafe_b64encode(hashlib.sha256(each).digest()) for name, each in data.items()}
        found = {name: f"sha256={hashes[name].decode().rstrip('=')},{len(data[name])}" for name in data}

        assert listed == {**found, record: ","}


def test_a_wheel_has_no_tools_of_this_repository(wheels):
    """The campaign, its mutants and our own servers are of no use to users."""
    names = [name for wheel in wheels.values() for name in files_of(wheel)]

    assert not [name for name in names if not name.startswith("holdfast/")]
    assert not [name for name in names if "mutant" in name or name.endswith((".c", ".so", ".pyc"))]


def test_the_wheels_have_the_same_version_and_no_extra_names_them():
    """The laws of one version are those of its engines; `pip install '.[cli]'` must not ask an index for a sibling."""
    main = project_of(".")
    extras = [pin for pins in main["optional-dependencies"].values() for pin in pins]

    for package in PACKAGES:
        project = project_of(f"packages/{package}")
        assert project["version"] == main["version"]
        assert f"holdfast=={main['version']}" in project["dependencies"]
    assert not [pin for pin in extras if pin.startswith("holdfast")]


def test_the_bundled_scripts_are_those_of_the_folder(wheels, monkeypatch):
    """A server must know a script by one hash, whether its client was installed from a wheel or from a checkout."""
    text = zipfile.ZipFile(wheels["holdfast"]).read(HOOK_MADE).decode()
    parts = re.split(r"^--@file (.+)\n", text, flags=re.MULTILINE)
    bundle = {path: tuple(lua.splitlines(keepends=True)) for path, lua in zip(parts[1::2], parts[2::2], strict=True)}
    folder = {each.file: script.script_text(f"{each.file}.lua") for each in SCRIPTS.values()}
    monkeypatch.setattr(script, "_file", bundle.__getitem__)

    assert {file: script.script_text(f"{file}.lua") for file in folder} == folder


def test_the_main_wheel_alone_takes_locks_and_has_the_command_line(installed, tmp_path):
    """The other wheels are for tests and for LanceDB; a command or an import that needs one names it."""
    alone = installed("holdfast")
    locks = alone.run(alone.python, "-c", LOCKS, tmp_path)
    store = alone.run(alone.python, "-c", "import holdfast.contrib.lancedb.aio")
    tool = alone.run(alone.python, "-c", "from holdfast.testing import History")

    assert (locks.returncode, locks.stdout.split(), locks.stderr) == (0, ["orders/42"] * 2, "")
    assert store.stderr.endswith(".blocking is not installed: pip install 'holdfast-lancedb'\n")
    assert tool.stderr.endswith(".history is not installed: pip install 'holdfast-conformance'\n")
    assert alone.run(alone.folder / "bin" / "holdfast", "--version").returncode == 64  # without typer and rich

    alone.link_libraries()
    listed = alone.run(alone.folder / "bin" / "holdfast", "ls", "--url", f"sqlite://{tmp_path}/leases.db", "--json")
    demo = alone.run(alone.folder / "bin" / "holdfast", "demo")

    assert listed.returncode == 0, listed.stderr
    assert (demo.returncode, demo.stdout) == (64, "")
    assert demo.stderr == "holdfast: holdfast.demo is not installed: pip install 'holdfast-conformance'\n"


def test_the_plugin_of_the_main_wheel_gives_engines(installed, tmp_path):
    """`holdfast_engine` needs the main wheel and pytest; a fixture of the test tools names the wheel that it needs."""
    alone = installed("holdfast")
    alone.link_libraries()
    (tmp_path / "test_own.py").write_text(ENGINES)

    engines = alone.pytest("test_own.py", "-k", "memory or sqlite or file")
    tool = alone.pytest("test_own.py", "-k", "tool")

    assert engines.returncode == 0, engines.stdout + engines.stderr
    assert "3 passed" in engines.stdout
    assert "holdfast.testing.processes is not installed: pip install 'holdfast-conformance'" in tool.stdout


def test_the_installed_wheels_prove_an_engine(installed, tmp_path):
    """`pytest --pyargs holdfast.testing.conformance --holdfast-url URL` needs the two wheels and pytest only."""
    both = installed("holdfast", "holdfast_conformance")
    both.link_libraries()
    (tmp_path / "test_own.py").write_text(ENGINES)

    laws = both.pytest("--pyargs", "holdfast.testing.conformance", "--holdfast-url", "memory://", "-k", "exclusion")
    tool = both.pytest("test_own.py", "-k", "tool")
    demo = both.run(both.python, "-c", "from holdfast.demo import worker; print(worker.__file__)")

    assert laws.returncode == 0, laws.stdout + laws.stderr
    assert " passed" in laws.stdout
    assert tool.returncode == 0, tool.stdout + tool.stderr
    assert demo.stdout.startswith(str(both.site))


def test_the_installed_wheels_open_a_lancedb_table(installed, tmp_path):
    """`holdfast-lancedb` adds the store to the main wheel."""
    pytest.importorskip("lancedb")
    both = installed("holdfast", "holdfast_lancedb")
    both.link_libraries()
    (tmp_path / "tables").mkdir()

    store = both.run(both.python, "-c", STORE, tmp_path / "tables")

    assert store.returncode == 0, store.stderr
    assert store.stdout.startswith(f"1 {both.site}")
