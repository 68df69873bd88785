"""The watcher: ends a program before its lease can, whatever has become of the process that renews it.

Started as a file, by `python -I -S`, so that it is there in a moment: it imports nothing but the standard library. It
gets each new deadline through a pipe, as nanoseconds of the boot clock. The end of the pipe means that the parent is
dead. What it does it tells through a second pipe: R when it is ready, T and K before the signals that it sends.
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
# Poll does not count the time that the machine sleeps: so it looks at the clock this often.
LOOK_MS = 200
_NS_PER_MS = 1_000_000
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ns() -> int:
    """The boot clock, which all processes of the host share and which counts suspend."""
    return time.clock_gettime_ns(_BOOT_CLOCK)


class Timetable:
    """When a program is told to end, and when it must be dead. Once it began to end, nothing stops that.

    `grace_ns` before the deadline comes TERM, `lead_ns` before it KILL; and KILL never later than a grace after TERM.
    """

    def __init__(self, grace_ns: int, lead_ns: int) -> None:
        self.deadline_ns = 0
        self._grace_ns = grace_ns
        self._lead_ns = lead_ns
        self._began_ns: int | None = None
        self._killed = False

    def begin(self, at_ns: int, grace_ns: int | None = None) -> bool:
        """End it now, whatever the deadline; true if it was not ending before. `grace_ns` may shorten the grace."""
        if grace_ns is not None:
            self._grace_ns = min(self._grace_ns, grace_ns)
        fresh = self._began_ns is None
        self._began_ns = at_ns if self._began_ns is None else self._began_ns
        return fresh

    def term_ns(self) -> int:
        return self.deadline_ns - max(self._grace_ns, self._lead_ns)

    def kill_ns(self) -> int:
        soon = self.deadline_ns - self._lead_ns
        return soon if self._began_ns is None else min(soon, self._began_ns + self._grace_ns)

    def due(self, at_ns: int) -> int | None:
        """The signal that is due now, once each."""
        if at_ns >= self.kill_ns() and not self._killed:
            self.begin(at_ns)
            self._killed = True
            return signal.SIGKILL
        if at_ns >= self.term_ns() and self.begin(at_ns):
            return signal.SIGTERM
        return None

    def wait_ms(self, at_ns: int) -> int:
        """How long until something may be due."""
        if self._killed:
            return LOOK_MS
        until_ns = min(self.kill_ns(), self.term_ns()) if self._began_ns is None else self.kill_ns()
        return max(0, min(LOOK_MS, -(-(until_ns - at_ns) // _NS_PER_MS)))


def send(group: int, number: int) -> bool:
    """A signal for the whole group; false if nobody is left in it. Who is to end is woken, so that it can."""
    try:
        os.killpg(group, number)
        if number == signal.SIGTERM:
            os.killpg(group, signal.SIGCONT)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it runs as somebody else by now: only the fence helps
    return True


def watch(group: int, timetable: Timetable, orphan_ns: int, deadlines: int, told: int) -> None:
    """Keep the timetable until the parent, which outlives the program, ends us; or to the program's end without it.

    Without a parent the program has `orphan_ns` to end, and never longer than to the deadline.
    """
    waiting = select.poll()
    waiting.register(deadlines, select.POLLIN)
    orphaned = False
    while True:
        waiting.poll(timetable.wait_ms(now_ns()))
        # Whatever has piled up is read before anything is decided: we may have been frozen.
        if not orphaned and not _newest(deadlines, timetable):
            orphaned = True
            waiting.unregister(deadlines)
            if timetable.begin(now_ns(), orphan_ns):
                _do(group, signal.SIGTERM, told)
        at_ns = now_ns()
        number = timetable.due(at_ns)
        if number is not None:
            _do(group, number, told)
        if orphaned and (not send(group, 0) or at_ns > timetable.deadline_ns):
            return


def _newest(deadlines: int, timetable: Timetable) -> bool:
    """Read every deadline that has come; false when the parent is gone."""
    while True:
        try:
            data = os.read(deadlines, MESSAGE.size * 512)
        except BlockingIOError:
            return True
        if not data:
            return False
        # Each was written in one piece, and pipes do not cut so small pieces.
        (timetable.deadline_ns,) = MESSAGE.unpack(data[-MESSAGE.size :])


def _do(group: int, number: int, told: int) -> None:
    """Told first: whoever finds the program ended by this finds the word too."""
    _tell(told, KILLED if number == signal.SIGKILL else TERMED)
    send(group, number)


def _tell(told: int, word: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(told, word)


def main() -> None:
    """`watcher.py GROUP GRACE_NS LEAD_NS ORPHAN_NS DEADLINES TOLD`; the first deadline is in the pipe already."""
    group, grace_ns, lead_ns, orphan_ns, deadlines, told = (int(word) for word in sys.argv[1:7])
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # only its own timetable ends it
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write("holdfast-watch")
    os.set_blocking(deadlines, False)
    timetable = Timetable(grace_ns, lead_ns)
    _newest(deadlines, timetable)
    _tell(told, READY)
    watch(group, timetable, orphan_ns, deadlines, told)


if __name__ == "__main__":
    main()
