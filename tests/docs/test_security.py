"""docs/security.md: each line of the threat model names a test that exists.

A code span such as `engines/test_squatting.py::test_name` names a test. Paths are relative to `tests`, those of the
laws (`conformance/…`) to `src/holdfast/testing`.
"""

import re

import pytest
from test_architecture import defines
from test_docs import ROOT

PAGE = ROOT / "docs" / "security.md"
SPAN = re.compile(r"`([\w./-]+\.py)::(\w+)`")
ROW = re.compile(r"^\| (?!party|file or|directory \|)(.*) \|$", re.MULTILINE)
PARTIES = (
    "same user|group of a shared directory|other users of the host|other tenants of a server|publishers of messages"
    "|web clients|package registries"
)
SUBJECTS = (
    "Memory|SQLite|Shared directories|Redis and Valkey|build_once and lock domains|Guards|Queues, owners and mailboxes"
    "|Webhooks and rate limits|npm packages|The command line and `holdfast run`|Logs, errors, metrics and traces"
)


def text():
    return PAGE.read_text(encoding="utf-8")


def missing_tests(page):
    """Return the tests that a page names and that do not exist."""
    found = []
    for path, name in SPAN.findall(page):
        file = next((f for f in (ROOT / "tests" / path, ROOT / "src/holdfast/testing" / path) if f.is_file()), None)
        if file is None or not name.startswith("test_") or not defines(file, name):
            found.append(f"{path}::{name}")
    return found


def rows_without_test(page):
    """Return the lines of the tables whose last cell names no test."""
    return [row for row in ROW.findall(page) if not SPAN.search(row.split(" | ")[-1])]


def test_every_line_names_tests_that_exist():
    """A line without a test is a hope, not a threat model."""
    assert len(ROW.findall(text())) >= 40
    assert rows_without_test(text()) == []
    assert missing_tests(text()) == []


@pytest.mark.parametrize("party", PARTIES.split("|"))
def test_the_page_lists_every_party(party):
    """A reader looks for the party that they worry about."""
    (rows,) = re.findall(r"^## Parties\n(.*?)^## ", text(), re.MULTILINE | re.DOTALL)

    assert party in " ".join(row.split(" | ")[0] for row in ROW.findall(rows))


@pytest.mark.parametrize("subject", SUBJECTS.split("|"))
def test_the_page_has_a_table_for_every_engine_and_feature(subject):
    """An engine or a feature without a line would look as if it trusted no party."""
    found = re.search(rf"^### {re.escape(subject)}\n(.*?)(?=^##|\Z)", text(), re.MULTILINE | re.DOTALL)

    assert found
    assert ROW.findall(found[1])


def test_a_line_without_a_test_is_detected():
    """The checks must fail for a missing test, a missing file and an empty cell."""
    page = (
        "| a | `engines/test_squatting.py::test_nothing` |\n| b | `nowhere.py::test_x` |\n| `x.py::test_y` | none |\n"
    )

    assert missing_tests(page) == ["engines/test_squatting.py::test_nothing", "nowhere.py::test_x", "x.py::test_y"]
    assert rows_without_test(page) == ["`x.py::test_y` | none"]
