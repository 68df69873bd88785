"""Write docs/acceptance.md: which test shows which acceptance row.

acceptance.toml contains the rows. A test shows a row by carrying its id as a marker, on itself, on its class
or on its module:

    @pytest.mark.acceptance("A0-4", "G-2")

The tool parses the tests and never imports them, so the page is the same on every machine. A marker is an error if it
names no known row, marks no test, or marks a test that is skipped or expected to fail: it would show nothing.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

HERE = Path(__file__).resolve().parent
PAGE = Path("docs/acceptance.md")
FOLDERS = ("src/holdfast/testing/conformance", "tests")
OUT_OF_DATE = 1
INVALID = 2

INTRO = """\
# Acceptance

The acceptance criteria of Holdfast, and the tests that show each. A test shows a row by carrying its id as
a marker, `@pytest.mark.acceptance("A0-4")`; "not yet" means that no test shows the row.

`make docs` generates this page from `tools/acceptance.toml` and the markers. Do not edit it.
"""

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


class InvalidMarkerError(Exception):
    """A marker, or the list of rows, is invalid."""


@dataclass(frozen=True)
class Family:
    """A group of related rows: one table of the page."""

    key: str
    title: str
    rows: Mapping[str, str]


@dataclass(frozen=True)
class Marked:
    """One test with one row id, and the line of the marker."""

    row: str
    test: str
    where: str


def read_families(file: Path) -> list[Family]:
    """Return the families in the file's order. The rows of each family count up from 1 without a gap."""
    families = []
    for key, table in tomllib.loads(file.read_text(encoding="utf-8")).items():
        expected = [f"{key}-{number}" for number in range(1, len(table["rows"]) + 1)]
        if list(table["rows"]) != expected:
            raise InvalidMarkerError(f"{file.name}: the rows of {key} must be {key}-1, {key}-2, ... in order")
        families.append(Family(key, table["title"], table["rows"]))
    return families


class Reader:
    """A parser that collects the markers of one test file."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.tree = ast.parse(source, filename=path)
        self.placed: set[ast.Call] = set()

    def read(self) -> list[Marked]:
        found = list(self._body(self.tree.body, outer=[], names=[]))
        for call in _calls(self.tree, "acceptance"):
            if call not in self.placed:
                raise InvalidMarkerError(f"{self._where(call)}: this acceptance marker marks no test")
        return found

    def _body(self, body: Sequence[ast.stmt], outer: list[ast.Call], names: list[str]) -> Iterator[Marked]:
        marks = [*outer, *self._module_marks(body)]
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                yield from self._body(node.body, [*marks, *_decorators(node)], [*names, node.name])
            elif isinstance(node, FUNCTION) and node.name.startswith("test"):
                yield from self._test(node, [*marks, *_decorators(node)], [*names, node.name])

    @staticmethod
    def _module_marks(body: Sequence[ast.stmt]) -> Iterator[ast.Call]:
        """Yield the markers of `pytestmark = ...`, in a module or in a class."""
        for node in body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in targets):
                yield from _calls(node, "acceptance")

    def _test(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, marks: list[ast.Call], names: list[str]
    ) -> Iterator[Marked]:
        if marks and any(_is_mark(_called(each), "skip", "xfail") for each in node.decorator_list):
            raise InvalidMarkerError(f"{self._where(node)}: a test that is skipped or expected to fail shows no row")
        for call in marks:
            self.placed.add(call)
            for row in self._row_ids(call):
                yield Marked(row, "::".join([self.path, *names]), self._where(call))

    def _row_ids(self, call: ast.Call) -> list[str]:
        ids = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if not ids or len(ids) != len(call.args) or call.keywords:
            raise InvalidMarkerError(f"{self._where(call)}: an acceptance marker takes row ids as plain strings")
        return ids

    def _where(self, node: ast.expr | ast.stmt) -> str:
        return f"{self.path}:{node.lineno}"


def _is_mark(node: ast.AST, *names: str) -> bool:
    """Tell whether a node is `pytest.mark.<name>` or `mark.<name>`."""
    if not (isinstance(node, ast.Attribute) and node.attr in names):
        return False
    mark = node.value
    return (isinstance(mark, ast.Attribute) and mark.attr == "mark") or (
        isinstance(mark, ast.Name) and mark.id == "mark"
    )


def _called(node: ast.expr) -> ast.expr:
    """Return `f` for both `f` and `f(...)`."""
    return node.func if isinstance(node, ast.Call) else node


def _calls(root: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(root):
        if isinstance(node, ast.Call) and _is_mark(node.func, name):
            yield node


def _decorators(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    """Yield the markers among the decorators, including those inside `pytest.param(..., marks=...)`."""
    for decorator in node.decorator_list:
        yield from _calls(decorator, "acceptance")


def read_markers(root: Path) -> list[Marked]:
    """Return every marker of every test file, in the order of paths."""
    found: list[Marked] = []
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            found += Reader(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")).read()
    return found


def tests_by_row(families: Iterable[Family], markers: Iterable[Marked]) -> dict[str, list[str]]:
    """Map each row id to the sorted tests that show it."""
    known = {row for family in families for row in family.rows}
    shown: defaultdict[str, set[str]] = defaultdict(set)
    for marked in markers:
        if marked.row not in known:
            raise InvalidMarkerError(f"{marked.where}: there is no acceptance row {marked.row!r}")
        shown[marked.row].add(marked.test)
    return {row: sorted(tests) for row, tests in shown.items()}


def render(families: Iterable[Family], shown: Mapping[str, list[str]]) -> str:
    """Return the whole page. It has no totals, so that two branches rarely change the same line."""
    parts = [INTRO]
    for family in families:
        lines = [
            f"## {family.key}: {family.title}",
            "",
            "| row | criterion | shown by |",
            "|---|---|---|",
        ]
        for row, text in family.rows.items():
            tests = "<br>".join(f"`{test}`" for test in shown.get(row, [])) or "not yet"
            lines.append(f"| {row} | {text.replace('|', chr(92) + '|')} | {tests} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or with --check verify that it is up to date."""
    parser = argparse.ArgumentParser(description="Write docs/acceptance.md from the acceptance markers of the tests.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of date")
    parser.add_argument("--root", type=Path, default=HERE.parent, help="the project to read (default: this one)")
    options = parser.parse_args(arguments)

    try:
        families = read_families(HERE / "acceptance.toml")
        shown = tests_by_row(families, read_markers(options.root))
    except (InvalidMarkerError, SyntaxError) as error:
        print(f"acceptance: {error}", file=sys.stderr)
        return INVALID

    text = render(families, shown)
    page = options.root / PAGE
    rows = sum(len(family.rows) for family in families)
    print(f"acceptance: {len(shown)} of {rows} rows shown")
    if not options.check:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    elif not page.exists() or page.read_text(encoding="utf-8") != text:
        print(f"acceptance: {PAGE} is out of date; run `make docs`", file=sys.stderr)
        return OUT_OF_DATE
    return 0


if __name__ == "__main__":
    sys.exit(main())
