"""Runs inside of a host of the lab: whoever connects sends one line of JSON and is joined to the program it names.

The connection is the program's input and output. When it has ended, its exit code follows behind a NUL.
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
    with connection, connection.makefile("rb", buffering=0) as lines:
        line = lines.readline()
        if not line:
            return  # somebody who only looked whether we are there
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
    with socket.create_server((sys.argv[1], PORT)) as door:
        while True:
            threading.Thread(target=serve, args=(door.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main()
