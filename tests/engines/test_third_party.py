"""Engines of other packages: found through the entry-point group `holdfast.engines`, and refused with clear errors."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hub_server import Hub

import holdfast
from holdfast import InvalidConfig
from holdfast.engines import ENGINES, Capability, Scope, find_driver
from holdfast.testing.conformance.places import place_of

ROOT = Path(__file__).parents[2]
PACKAGE = Path(__file__).with_name("minimal_engine")
DRIVER = "from holdfast_hub import DRIVER\n"


class Site:
    """A directory for packages, on the path of this process."""

    def __init__(self, folder):
        self.folder = folder

    def install(self, name, entry, **modules):
        """Install a package that registers the entry; each module is a file with this text."""
        for module, text in modules.items():
            (self.folder / f"{module}.py").write_text(text)
        metadata = self.folder / f"{name.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[holdfast.engines]\n{entry}\n")

    def install_hub(self):
        """Install the minimal engine as its `pyproject.toml` says."""
        project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
        ((scheme, target),) = project["entry-points"]["holdfast.engines"].items()
        self.install(project["name"], f"{scheme} = {target}")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A directory for packages, on the path; the code of the minimal engine is there, and not installed."""
    shutil.copytree(PACKAGE / "holdfast_hub", tmp_path / "holdfast_hub")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for module in [name for name in sys.modules if name.startswith("holdfast_hub")]:
        monkeypatch.delitem(sys.modules, module)
    return Site(tmp_path)


@pytest.fixture
def hub():
    server = Hub()
    yield server
    server.close()


def refusal(scheme):
    """Return the rule that the error for a URL with this scheme states."""
    with pytest.raises(InvalidConfig) as caught:
        holdfast.connect(f"{scheme}://localhost")
    assert caught.value.setting == "url"
    return caught.value.rule


def test_an_installed_package_opens_its_scheme(site, hub):
    """Its leases work like those of every engine, and it declares what it can do."""
    site.install_hub()
    driver = find_driver("hub")

    with holdfast.connect(hub.url) as one, holdfast.connect(hub.url) as other, one.lock("x") as lease:
        assert other.lock("x").try_acquire() is None
        assert other.show("x").fence == lease.fence
        assert one._client.engine.capabilities == driver.capabilities
    assert (driver.scope, Capability.POOLS in driver.capabilities) == (Scope.HOSTS, False)


def test_a_feature_that_the_engine_does_not_declare_is_refused(site, hub):
    """The error names the feature and the engines that have it."""
    site.install_hub()

    with (
        holdfast.connect(hub.url) as client,
        pytest.raises(InvalidConfig, match="hub keeps leases and no queues: sqli"),
    ):
        client.queue("jobs")


def test_an_installed_engine_passes_the_laws_of_exclusion(site, hub):
    """The conformance suite finds the engine by its URL. This test runs the laws of exclusion, which take seconds."""
    site.install_hub()
    url = f"{hub.url}/{{unique}}"
    suite = ["--pyargs", "holdfast.testing.conformance", "--holdfast-url", url, "-k", "exclusion"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *suite]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=site.folder,
        env={**os.environ, "PYTHONPATH": str(site.folder)},
    )

    assert run.returncode == 0, run.stdout
    assert int(re.search(r"(\d+) passed", run.stdout)[1]) > 10, run.stdout


def test_an_unknown_scheme_is_refused_with_all_known_ones(site):
    """Those of installed packages are among them."""
    site.install_hub()

    rule = refusal("bogus")

    assert {"hub", *ENGINES} <= set(re.split(r"[ ,;]+", rule))
    assert "holdfast.engines" in rule
    with pytest.raises(InvalidConfig, match="the scheme must be one of"):
        place_of("bogus://")  # as `--holdfast-url`


def test_a_missing_extra_is_named_with_the_line_that_installs_it(site):
    """An entry point names its extra, as in `redis = package:DRIVER [redis]`."""
    site.install("slow-engine", "slow = slow_engine:DRIVER [fast]", slow_engine="import absent_library\n")

    assert refusal("slow") == "absent_library is not installed: pip install 'slow-engine[fast]'"


def test_a_missing_extra_of_redis_is_named_with_the_line_that_installs_it(monkeypatch):
    """The driver of Redis looks for its libraries before it imports them."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    assert refusal("redis") == "redis is not installed: pip install 'holdfast[redis]'"


@pytest.mark.parametrize("text", ["raise RuntimeError('no such chip')\n", "import absent_library\n"])
def test_an_engine_that_fails_to_import_is_named_with_its_package_and_error(site, text):
    """The user sees which package to report it to."""
    site.install("broken-engine", "broken = broken_engine:DRIVER", broken_engine=text)

    rule = refusal("broken")

    assert rule.startswith("the engine broken_engine:DRIVER of the package broken-engine cannot be imported: ")
    assert "no such chip" in rule or "absent_library" in rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("import absent_library\n", "absent_library is not installed: pip install 'late[server]'"),
        (
            "raise RuntimeError('no such chip')\n",
            "the engine late_driver:DRIVER of the package late cannot be imported: RuntimeError: no such chip",
        ),
    ],
)
def test_a_driver_that_imports_its_engine_late_gives_the_same_errors(site, text, rule):
    """The page recommends a driver that imports its engine when it is opened."""
    driver = (
        "from holdfast.engines import EngineDriver, Scope\n"
        "def open_engine(settings):\n"
        "    import late_engine\n"
        "DRIVER = EngineDriver(open_engine, Scope.HOSTS)\n"
    )
    site.install("late", "late = late_driver:DRIVER [server]", late_driver=driver, late_engine=text)

    assert refusal("late").replace(" [server] ", " ") == rule


def test_an_entry_point_that_is_no_driver_is_refused(site):
    """An older package may register a module or a function."""
    site.install("odd-engine", "odd = odd_engine:open", odd_engine="def open(): ...\n")

    assert "odd_engine:open of the package odd-engine is no holdfast.engines.EngineDriver" in refusal("odd")


def test_a_scheme_that_two_packages_claim_is_refused_with_both(site):
    """The order of the path must not decide where the leases live."""
    site.install_hub()
    site.install("other-hub", "hub = other_hub:DRIVER", other_hub=DRIVER)

    rule = refusal("hub")

    assert rule == "the scheme hub is claimed by more than one package: holdfast-hub, other-hub. Uninstall all but one"


@pytest.mark.parametrize("scheme", ["memory", "redis+cluster"])
def test_a_package_that_claims_a_built_in_scheme_is_refused(site, scheme):
    """Neither wins silently."""
    site.install("usurper", f"{scheme} = usurper:DRIVER", usurper=DRIVER)

    assert f"the scheme {scheme} is claimed by more than one package: holdfast, usurper" in refusal(scheme)


def test_a_claim_in_the_current_directory_is_refused_too(site, monkeypatch):
    """An empty text on the path is the current directory, as in `python -c`."""
    site.install("clash", "memory = holdfast_hub:DRIVER")
    monkeypatch.chdir(site.folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path[1:]])

    assert "holdfast, clash" in refusal("memory")


def test_a_built_in_scheme_is_opened_without_reading_the_metadata_of_packages():
    """A command line tool opens an engine in every run."""
    program = "import holdfast, sys; holdfast.connect('memory://').close(); print('importlib.metadata' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert run.stdout.strip() == "False"


def test_the_page_lists_the_files_of_the_minimal_engine():
    """Under "Add an engine": what it lists for a package is what the minimal engine has, file by file."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("\n## Add an engine\n")[2].partition("\n## ")[0]
    package = section.partition("\n### As a package of its own\n")[2].partition("\n### ")[0]
    listed = {cell.replace("NAME", "hub") for cell in re.findall(r"^\| `([^`]+)` \|", package, re.MULTILINE)}
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*") if path.suffix in (".py", ".toml")}

    assert listed == files


def test_every_file_that_the_page_lists_for_a_built_in_engine_exists_for_sqlite():
    """The list is checked against an engine that has all of them."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("\n### As a part of Holdfast\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)

    assert len(listed) >= 6
    for path in (each.partition(":")[0].replace("NAME", "sqlite") for each in listed):
        assert (ROOT / path).exists() or (ROOT / "src" / "holdfast" / path).exists(), path
