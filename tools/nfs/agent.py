"""The agent on a host of the lab: a client sends one line of JSON, and the agent runs the program that it names.

The connection is the program's input and output. After its end, its exit code follows behind a NUL.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading

PORT = 7000


def serve(connection: socket.socket) -> None:
    """Run one program for one connection."""
    with connection, connection.makefile("rb", buffering=0) as lines:
        line = lines.readline()
        if not line:
            return  # the client only checked that the agent runs
        order = json.loads(line)
        program = subprocess.Popen(
            order["command"],
            stdin=connection.fileno(),
            stdout=connection.fileno(),
            stderr=connection.fileno(),
            cwd=order["cwd"],
            env={**os.environ, **order["env"]},
            start_new_session=True,
        )
        code = program.wait()
        connection.sendall(b"\0%d\n" % code)


def main() -> None:
    """Accept connections for ever."""
    with socket.create_server((sys.argv[1], PORT)) as listener:
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main()
