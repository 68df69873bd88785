"""tools/acceptance.py writes the acceptance page from the markers, and refuses markers that show nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools" / "acceptance.py"


def acceptance(project, *options):
    return subprocess.run(
        [sys.executable, TOOL, "--root", project, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def project(tmp_path):
    """Return a function that writes a project with one test file of the given text."""

    def write(source):
        (tmp_path / "tests").mkdir(exist_ok=True)
        (tmp_path / "tests" / "test_a.py").write_text("import pytest\n" + source, encoding="utf-8")
        return tmp_path

    return write


def row(project, number):
    lines = (project / "docs" / "acceptance.md").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"| {number} |"))


def test_markers_are_found_in_every_place_that_pytest_allows(project):
    """A marker works on a module, a class, a function or one parameter: the test below it shows the row."""
    where = project("""
pytestmark = [pytest.mark.acceptance("G-1")]
@pytest.mark.acceptance("A0-1", "A0-2")
class TestA:
    async def test_b(self): ...
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.acceptance("C-1"))])
def test_c(x): ...
""")

    done = acceptance(where)

    assert done.returncode == 0
    assert done.stdout.startswith("acceptance: 4 of ")
    assert row(where, "A0-2").endswith("| `tests/test_a.py::TestA::test_b` |")
    assert row(where, "C-1").endswith("| `tests/test_a.py::test_c` |")
    assert row(where, "G-1").endswith("| `tests/test_a.py::TestA::test_b`<br>`tests/test_a.py::test_c` |")
    assert row(where, "A0-3").endswith("| not yet |")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ('@pytest.mark.acceptance("A0-31")\ndef test_a(): ...', "no acceptance row 'A0-31'"),
        ('@pytest.mark.acceptance("A0-1")\ndef not_a_test(): ...', "marks no test"),
        ('X = "A0-1"\n@pytest.mark.acceptance(X)\ndef test_a(): ...', "plain strings"),
        ("@pytest.mark.acceptance()\ndef test_a(): ...", "plain strings"),
        ('@pytest.mark.skip\n@pytest.mark.acceptance("A0-1")\ndef test_a(): ...', "skipped"),
        (
            '@pytest.mark.acceptance("A0-1")\n@pytest.mark.xfail(strict=True)\ndef test_a(): ...',
            "expected to fail",
        ),
    ],
)
def test_markers_that_show_nothing_are_refused(project, source, complaint):
    """The page must contain no claim without a test."""
    where = project(source)

    done = acceptance(where)

    assert done.returncode == 2
    assert complaint in done.stderr
    assert "tests/test_a.py:" in done.stderr
    assert not (where / "docs" / "acceptance.md").exists()


def test_check_detects_an_outdated_page(project):
    """A new page is up to date; after a new marker it is not, and the message names the remedy."""
    where = project("def test_a(): ...")
    missing = acceptance(where, "--check")
    acceptance(where)
    made = acceptance(where, "--check")
    project('@pytest.mark.acceptance("A0-1")\ndef test_a(): ...')
    old = acceptance(where, "--check")

    assert [missing.returncode, made.returncode, old.returncode] == [1, 0, 1]
    assert "out of date; run `make docs`" in old.stderr
