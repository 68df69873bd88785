"""A network partition is silent, in both directions, and leaves no trace outside."""

import subprocess
import sys
import textwrap

import pytest

from holdfast.testing.servers import available, missing
from tests.support import networks

KIND = next(iter(available()), None)

STORY = """
    from tests.support.networks import Network
    from holdfast.testing.processes import WorkerProcess
    from holdfast.testing.servers import Server

    def ask(host, port):
        import socket
        from holdfast.testing import send_line
        try:
            link = socket.create_connection((host, port), 1)
        except OSError as error:
            send_line(type(error).__name__)
        else:
            link.close()
            send_line("reached")

    def asked(home, server):
        arguments = {{"host": server.host, "port": server.port}}
        with WorkerProcess(f"{{__file__}}:ask", arguments, home=home) as worker:
            return worker.read_line(20)

    if __name__ == "__main__":
        with Network() as network:
            one, two, three = (network.home(name) for name in ("one", "two", "three"))
            with Server("{kind}", home=one) as server:
                print(asked(two, server), asked(three, server))
                network.cut([one], [two])
                print(asked(two, server), asked(three, server), server.command("PING").decode())
                network.heal()
                print(asked(two, server))
"""


@pytest.mark.skipif(KIND is None, reason=missing())
def test_a_cut_separates_only_the_homes_that_it_names(tmp_path):
    """A cut is silence, not a refusal; the story reaches every home, and nothing of it is left outside."""
    if networks.missing():
        pytest.skip(f"nothing can be cut here: {networks.missing()}")
    story = tmp_path / "story.py"
    story.write_text(textwrap.dedent(STORY.format(kind=KIND)))
    before = subprocess.run(["ip", "link"], check=True, capture_output=True).stdout

    done = subprocess.run(
        networks.inside(sys.executable, str(story)), check=False, capture_output=True, text=True, timeout=60
    )

    assert done.stdout.split("\n") == ["reached reached", "TimeoutError reached PONG", "reached", ""], done.stderr
    assert subprocess.run(["ip", "link"], check=True, capture_output=True).stdout == before


def test_a_machine_without_the_programs_names_what_is_missing(monkeypatch):
    """The reason of a skipped test says what to install."""
    monkeypatch.setenv("PATH", "")

    assert networks.missing() == "there is no program 'unshare': install util-linux and iproute2"
