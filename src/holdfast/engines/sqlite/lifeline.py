"""A lifeline: the sign that a session lives which its child processes carry on.

A POSIX lock falls with its process. So that a killed parent does not free a lease under which its program still runs,
a second byte of the live file is locked on an open file description, and the descriptor is handed down: that lock falls
when the last process that has it is gone. A session is dead when both of its bytes are free.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import TYPE_CHECKING

from holdfast.errors import InvalidConfig, Unavailable

if TYPE_CHECKING:
    from holdfast.engines.sqlite.process_locks import LockFile

# Far beyond any number that a session will ever have.
_BEYOND = 1 << 40
# One for each session, however often it is asked for.
_opened: dict[tuple[int, int, int], int] = {}
_LINUX = "hhqqi4x"


def is_held(live: LockFile, session: int) -> bool:
    """Whether some process still has the lifeline of this session."""
    return live.holder(_BEYOND + session) is not None


def open_lifeline(live: LockFile, session: int) -> int:
    """The descriptor that stands for the session for as long as any process has it open.

    It must not be closed before the end of this process: closing any descriptor of the file drops the POSIX locks that
    the process has on it.
    """
    key = (live.device, live.inode, session)
    if key in _opened:
        return _opened[key]
    command = getattr(fcntl, "F_OFD_SETLK", None)
    if command is None:
        raise InvalidConfig("url", live.path, "this system has no locks that a child process can inherit")

    descriptor = os.open(live.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    if os.fstat(descriptor).st_ino != live.inode:
        raise Unavailable("sqlite", "replaced", f"{live.path} is no longer the file that was opened")
    fcntl.fcntl(descriptor, command, struct.pack(_LINUX, fcntl.F_WRLCK, os.SEEK_SET, _BEYOND + session, 1, 0))
    _opened[key] = descriptor
    return descriptor
