"""docs/architecture.md names files and functions; each of them exists.

A code span such as `core/step.py:run` or `blocking/lock.py:Lock.acquire` names a function or class of a file. Paths are
relative to `src/holdfast`, or to the root of the repository.
"""

import ast
import re

import pytest
from test_docs import ROOT

PAGE = ROOT / "docs" / "architecture.md"
SPAN = re.compile(r"`([\w./-]+\.(?:py|lua|toml|md))(?::([A-Za-z_][\w.]*))?`")
# A place that the reader fills in, such as `engines/NAME/engine.py`, or a file that is yet to be written.
TEMPLATE = re.compile(r"NAME|FEATURE|NNNN")
SHORTEST_LIST = 8


def text():
    return PAGE.read_text(encoding="utf-8")


def references(page):
    """Return the (path, name) pairs of a page, without templates."""
    return [(path, name) for path, name in SPAN.findall(page) if not TEMPLATE.search(path)]


def find(path):
    """Return the file that a path means, or None."""
    places = [ROOT / "src" / "holdfast" / path, ROOT / path]
    return next((place for place in places if place.is_file()), None)


def defines(file, name):
    """Tell whether a file defines a function, class or method."""
    source = file.read_text(encoding="utf-8")
    if file.suffix == ".lua":
        return re.search(rf"\bfunction {re.escape(name)}\b|\b{re.escape(name)} = function\b", source) is not None
    body = ast.parse(source).body
    for part in name.split("."):
        found = next((node for node in flat(body) if part in names_of(node)), None)
        if found is None:
            return False
        body = getattr(found, "body", [])
    return True


def flat(body):
    """Yield the statements of a body, including those under `if` and `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from flat(node.body)


def names_of(node):
    """Return the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def section(heading):
    """Return the text below a heading of the page, up to the next heading of the same level."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text(), re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def test_every_named_file_and_function_exists():
    """A map with wrong names costs a newcomer more time than no map."""
    missing = []
    for path, name in references(text()):
        file = find(path)
        if file is None:
            missing.append(f"{path} does not exist")
        elif name and not defines(file, name):
            missing.append(f"{path} does not define {name}")

    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("heading", ["Follow an acquire", "Follow a message"])
def test_a_followed_call_is_a_numbered_list_of_functions(heading):
    """A reader follows the list step by step, so each step names its function."""
    steps = re.findall(r"^\d+\. (.*(?:\n   .*)*)", section(heading), re.MULTILINE)
    without = [step for step in steps if not any(name for _, name in SPAN.findall(step))]

    assert len(steps) >= SHORTEST_LIST
    assert not without, "\n".join(without)


@pytest.mark.parametrize("heading", ["Add an engine", "Add a primitive"])
def test_the_page_explains_how_to_extend_the_library(heading):
    """A contributor finds every file to touch in one place."""
    assert len(SPAN.findall(section(heading))) >= SHORTEST_LIST


def test_a_wrong_reference_is_detected():
    """The check must fail for a missing function, and find functions, methods and constants."""
    file = ROOT / "tests" / "docs" / "test_architecture.py"

    assert defines(file, "section")
    assert defines(file, "PAGE")
    assert not defines(file, "chapter")
    assert not defines(file, "section.chapter")
    assert references("`core/NAME.py:run` and `core/step.py:run`") == [("core/step.py", "run")]
