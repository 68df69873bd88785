"""The wheel: what users install. It stays small, and an engine author can run the laws from it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 600_000
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [*PIP, "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_is_at_most_six_hundred_kilobytes(wheel):
    """Every service that takes a lock installs it."""
    assert wheel.stat().st_size <= MOST_BYTES


def test_the_wheel_has_the_laws_and_no_tools_of_this_repository(wheel):
    """The campaign, its mutants and the servers of our own tests are of no use to anybody who installs Holdfast."""
    names = zipfile.ZipFile(wheel).namelist()

    assert any(name.startswith("holdfast/testing/conformance/test_") for name in names)
    assert not [name for name in names if not name.startswith(("holdfast/", "holdfast-"))]
    assert not [name for name in names if "mutant" in name or name.endswith((".c", ".so", ".pyc"))]


def test_the_installed_wheel_proves_an_engine(wheel, tmp_path):
    """`pytest --pyargs holdfast.testing.conformance --holdfast-url URL` needs the wheel and pytest, nothing else."""
    folder = tmp_path / "site"
    subprocess.run(
        [*PIP, "install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel], check=True, timeout=100
    )
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST", "HOLDFAST"))}
    laws = ["--pyargs", "holdfast.testing.conformance", "--holdfast-url", "memory://", "-k", "exclusion and not storm"]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *laws, *options],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
