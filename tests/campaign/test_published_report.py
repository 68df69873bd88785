"""A published report is linked from the docs, has a moderate size, and names no machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chaos import report
from chaos.statistics import Statistics

DOCS = Path(__file__).resolve().parents[2] / "docs"
LINK = f"](campaign/{report.PAGE})"
MOST_BYTES = 450_000
PATHS = re.compile(r"(?<![\w.:/])/(?:tmp|home|root|work|Users)/")


def wrong_with(docs):
    """Return the faults of the report in these docs; without a report there are none."""
    folder = docs / "campaign"
    if not folder.exists():
        return []
    found = []
    if LINK not in (docs / "README.md").read_text():
        found.append("docs/README.md does not lead to it")
    if sum(file.stat().st_size for file in folder.iterdir()) > MOST_BYTES:
        found.append("it is too large")
    if any(PATHS.search((folder / name).read_text()) for name in (report.PAGE, report.DATA)):
        found.append("it names a path of the machine")
    return found


@pytest.fixture
def docs(tmp_path):
    report.write(Statistics(7, 20), tmp_path / "campaign")
    (tmp_path / "README.md").write_text(f"[campaign{LINK}")
    return tmp_path


def test_a_published_report_is_fit_to_be_read():
    """The docs link to it."""
    assert wrong_with(DOCS) == []


def test_a_report_that_is_not_fit_is_found(docs):
    """Each fault is found by itself."""
    assert wrong_with(docs) == []

    (docs / "campaign" / "picture.png").write_bytes(bytes(MOST_BYTES))
    assert wrong_with(docs) == ["it is too large"]
    (docs / "campaign" / "picture.png").unlink()

    (docs / "campaign" / report.DATA).write_text('{"where": "in /tmp/holdfast-campaign-1"}')
    assert wrong_with(docs) == ["it names a path of the machine"]

    (docs / "README.md").write_text("")
    assert "docs/README.md does not lead to it" in wrong_with(docs)
