"""The watcher: end a program before its lease can expire, whatever happened to the process that renews the lease.

The parent starts this file with `python -I -S`, so that it starts quickly; the file imports only the standard library.
The watcher receives each new deadline through a pipe, as nanoseconds of the boot clock. The end of the pipe means that
the parent is dead. The watcher reports through a second pipe: R when it is ready, T and K before the signals that it
sends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import sys
import time

MESSAGE = struct.Struct("<q")
READY, TERMED, KILLED = b"R", b"T", b"K"
# poll() does not count the time that the machine sleeps, so the watcher reads the clock this often.
POLL_MS = 200
_NS_PER_MS = 1_000_000
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ns() -> int:
    """Return the boot clock: all processes of the host share it, and it counts suspend."""
    return time.clock_gettime_ns(_BOOT_CLOCK)


class Timetable:
    """When a program gets TERM, and when it must be dead. Once the timetable begins to end a program, nothing stops it.

    TERM comes `grace_ns` before the deadline and KILL `lead_ns` before it, but never later than a grace after TERM.
    """

    def __init__(self, grace_ns: int, lead_ns: int) -> None:
        self.deadline_ns = 0
        self._grace_ns = grace_ns
        self._lead_ns = lead_ns
        self._began_ns: int | None = None
        self._killed = False

    def begin(self, at_ns: int, grace_ns: int | None = None) -> bool:
        """Begin to end the program now, whatever the deadline; return whether this call began it.

        `grace_ns`: a shorter grace.
        """
        if grace_ns is not None:
            self._grace_ns = min(self._grace_ns, grace_ns)
        fresh = self._began_ns is None
        self._began_ns = at_ns if self._began_ns is None else self._began_ns
        return fresh

    def term_ns(self) -> int:
        """Return when TERM is due."""
        return self.deadline_ns - max(self._grace_ns, self._lead_ns)

    def kill_ns(self) -> int:
        """Return when KILL is due."""
        soon = self.deadline_ns - self._lead_ns
        return soon if self._began_ns is None else min(soon, self._began_ns + self._grace_ns)

    def due(self, at_ns: int) -> int | None:
        """Return the signal that is due now; each signal is due once."""
        if at_ns >= self.kill_ns() and not self._killed:
            self.begin(at_ns)
            self._killed = True
            return signal.SIGKILL
        if at_ns >= self.term_ns() and self.begin(at_ns):
            return signal.SIGTERM
        return None

    def wait_ms(self, at_ns: int) -> int:
        """Return how long to sleep until a signal may be due."""
        if self._killed:
            return POLL_MS
        until_ns = min(self.kill_ns(), self.term_ns()) if self._began_ns is None else self.kill_ns()
        return max(0, min(POLL_MS, -(-(until_ns - at_ns) // _NS_PER_MS)))


def send(group: int, number: int) -> bool:
    """Send a signal to the whole group; return false if the group is empty. TERM also wakes a stopped process."""
    try:
        os.killpg(group, number)
        if number == signal.SIGTERM:
            os.killpg(group, signal.SIGCONT)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # the program changed its user: only the fence helps
    return True


def watch(group: int, timetable: Timetable, orphan_ns: int, deadlines: int, reports: int) -> None:
    """Keep the timetable until the parent ends this process; without a parent, until the program has ended.

    The parent outlives the program. Without a parent the program has `orphan_ns` to end, and never longer than to the
    deadline.
    """
    waiting = select.poll()
    waiting.register(deadlines, select.POLLIN)
    orphaned = False
    while True:
        waiting.poll(timetable.wait_ms(now_ns()))
        # Read every queued deadline before deciding: this process may have been frozen.
        if not orphaned and not _read_newest(deadlines, timetable):
            orphaned = True
            waiting.unregister(deadlines)
            if timetable.begin(now_ns(), orphan_ns):
                _signal(group, signal.SIGTERM, reports)
        at_ns = now_ns()
        number = timetable.due(at_ns)
        if number is not None:
            _signal(group, number, reports)
        if orphaned and (not send(group, 0) or at_ns > timetable.deadline_ns):
            return


def _read_newest(deadlines: int, timetable: Timetable) -> bool:
    """Read every deadline in the pipe and keep the last; return false when the parent is gone."""
    while True:
        try:
            data = os.read(deadlines, MESSAGE.size * 512)
        except BlockingIOError:
            return True
        if not data:
            return False
        # The parent writes each deadline in one piece, and pipes do not split pieces this small.
        (timetable.deadline_ns,) = MESSAGE.unpack(data[-MESSAGE.size :])


def _signal(group: int, number: int, reports: int) -> None:
    """Report the signal, then send it: a parent that sees the program ended by it finds the report too."""
    _report(reports, KILLED if number == signal.SIGKILL else TERMED)
    send(group, number)


def _report(reports: int, code: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(reports, code)


def main() -> None:
    """Run `watcher.py GROUP GRACE_NS LEAD_NS ORPHAN_NS DEADLINES REPORTS`; the pipe already has the first deadline."""
    group, grace_ns, lead_ns, orphan_ns, deadlines, reports = (int(argument) for argument in sys.argv[1:7])
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # only the timetable or the parent ends the watcher
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write("holdfast-watch")
    os.set_blocking(deadlines, False)
    timetable = Timetable(grace_ns, lead_ns)
    _read_newest(deadlines, timetable)
    _report(reports, READY)
    watch(group, timetable, orphan_ns, deadlines, reports)


if __name__ == "__main__":
    main()
