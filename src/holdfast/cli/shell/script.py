"""The script that a lease belongs to: which process it is, and when it ends."""

from __future__ import annotations

import os
import select
import signal
import stat
from contextlib import suppress
from pathlib import Path

from holdfast.errors import InvalidConfig

_USE = 'call it as eval "$(holdfast acquire NAME)", or add --pid $$'


class CallingScript:
    """A process that is not a child of this one. Its pid cannot pass to another process unnoticed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        if not hasattr(os, "pidfd_open"):
            raise InvalidConfig("pid", pid, "this system cannot report the end of a script: use `holdfast run`")
        try:
            os.kill(pid, 0)  # on a loss, the watcher sends it a signal
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            raise InvalidConfig("pid", pid, f"there is no such process: {_USE}") from None
        except PermissionError:
            raise InvalidConfig("pid", pid, f"it belongs to another user: {_USE}") from None
        except OSError as error:
            raise InvalidConfig("pid", pid, f"it cannot be watched ({error.strerror}): use `holdfast run`") from None

    def fileno(self) -> int:
        """Return the descriptor that is readable when the script has ended."""
        return self._descriptor

    def ended(self) -> bool:
        """Return whether the script has ended; a stopped script has not."""
        polling = select.poll()
        polling.register(self._descriptor, select.POLLIN)
        return bool(polling.poll(0))

    def terminate(self) -> None:
        """Send TERM to the script."""
        with suppress(OSError):  # it has ended, or it changed its user
            signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)


def calling_script() -> int:
    """Return the pid of the script: of the nearest ancestor that reads the output of this process.

    In `eval "$(timeout 5 holdfast acquire x || echo no)"`, the parent is timeout(1), its parent a subshell: both end
    at once. The script reads from the pipe. Without a pipe, the parent is the script.
    """
    output, pid = os.fstat(1), os.getppid()
    if not stat.S_ISFIFO(output.st_mode):
        return pid
    while pid > 1:
        if _reads(pid, output):
            return pid
        pid = _parent(pid)
    raise InvalidConfig("pid", os.getppid(), f"no process above this one reads its output, so it is no script: {_USE}")


def _reads(pid: int, pipe: os.stat_result) -> bool:
    """Return whether the process has the pipe open for reading."""
    with suppress(OSError):  # it has ended, or belongs to another user
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found = os.stat(f"/proc/{pid}/fd/{descriptor}")
                if (found.st_dev, found.st_ino) == (pipe.st_dev, pipe.st_ino):
                    flags = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text(encoding="ascii").split()
                    if int(flags[flags.index("flags:") + 1], 8) & os.O_ACCMODE != os.O_WRONLY:
                        return True
    return False


def _parent(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0
