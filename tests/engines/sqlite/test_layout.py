"""A file of another layout is refused, older or newer, and nothing in its folder changes."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from holdfast.engines.sqlite import schema
from holdfast.errors import Unavailable

OLDER = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE record (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, look_us INTEGER NOT NULL, body TEXT NOT NULL);
INSERT INTO meta VALUES ('layout', '3');
INSERT INTO meta VALUES ('boot', 'some boot');
INSERT INTO record VALUES (1, 'x', 0, '7');
"""


def snapshot(folder):
    """Return the names, contents and times of all files in the folder."""
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


def refusal(connect):
    """Return the error that a client gets when it opens the file or sends its first command."""
    with pytest.raises(Unavailable) as caught:
        connect().lock("x").acquire(timeout=0)
    return caught.value


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_file_of_the_layout_before_is_refused_and_nothing_changes(connect, path, mode):
    """No version converts it: the error names the file, both layouts and what to do."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.executescript(OLDER)
    before = snapshot(path.parent)

    error = refusal(connect)

    assert error.reason == "other layout"
    assert f"{path} has layout 3, and this version of holdfast uses layout {schema.LAYOUT}" in error.detail
    assert "move it away" in error.detail
    assert snapshot(path.parent) == before


def test_a_layout_that_stands_in_the_log_only_is_refused(connect, path):
    """A process that was killed before the first checkpoint leaves its tables in the write-ahead log."""
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.executescript(OLDER)

    error = refusal(connect)
    writer.close()

    assert error.reason == "other layout"
    assert "layout 3" in error.detail


def test_a_file_of_a_newer_layout_is_refused_and_nothing_changes(connect, path):
    """An old version that writes into a new file would break it for all clients."""
    with connect() as client:
        client.lock("x").acquire().release()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'layout'", (schema.LAYOUT + 1,))
    before = snapshot(path.parent)

    error = refusal(connect)

    assert error.reason == "other layout"
    assert f"layout {schema.LAYOUT + 1}" in error.detail
    assert snapshot(path.parent) == before
