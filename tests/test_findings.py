"""Every known fault has a test that fails without its fix, or a limit that a page states (tests/findings.toml)."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FINDINGS = tomllib.loads((ROOT / "tests" / "findings.toml").read_text())
PLACES = (ROOT / "tests", ROOT / "src" / "holdfast" / "testing")


def list_ids(source: str) -> set[str]:
    """Return the ids in all `pytest.mark.finding(…)` of a module, on functions, classes and parameters alike."""
    return {
        argument.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.finding"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }


def find_marked_ids() -> set[str]:
    """Return the ids that the tests of this repository carry."""
    files = [file for place in PLACES for file in place.rglob("*.py")]
    return {each for file in files if "mark.finding" in (text := file.read_text()) for each in list_ids(text)}


def test_every_finding_has_a_test_or_an_accepted_limit():
    """The list `open` names every finding that has neither, so that it can only shrink.

    A finding with several parts stays in the list until each of them has a test.
    """
    answered = find_marked_ids() | set(FINDINGS["limits"])
    assert {each for each in FINDINGS["subjects"] if each not in answered} <= set(FINDINGS["open"]["ids"])


def test_every_marked_id_is_a_finding():
    """A mark with a misspelt id would show nothing."""
    assert find_marked_ids() | set(FINDINGS["limits"]) <= set(FINDINGS["subjects"])


def test_the_pages_state_every_accepted_limit():
    """A limit is accepted only if users can read it."""
    missing = {
        each: limit["sentence"]
        for each, limit in FINDINGS["limits"].items()
        if limit["sentence"] not in re.sub(r"\s+", " ", (ROOT / limit["page"]).read_text())
    }
    assert missing == {}
