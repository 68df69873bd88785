"""The program that tests run under a lease: it says every few milliseconds that it is at work.

    python beating.py FILE SECONDS [deaf | slow SECONDS]

One line per beat: fence, moment, pid. `deaf` ignores TERM, `slow` notes it and goes on for a while. The first beat is
the earliest moment, and the last one the latest, at which somebody can prove that the program ran.
"""

import os
import signal
import sys
import time

file, seconds, *manner = sys.argv[1:]
ends = [time.monotonic() + float(seconds)]


def late(_number, _frame):
    if len(ends) == 1:  # the first time counts
        ends.append(time.monotonic() + float(manner[1]))
        with open(f"{file}.term", "w") as told:
            told.write(str(time.monotonic_ns()))


if manner[:1] == ["deaf"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif manner[:1] == ["slow"]:
    signal.signal(signal.SIGTERM, late)
book = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
fence = os.environ["HOLDFAST_FENCE"]
while time.monotonic() < ends[-1]:
    os.write(book, f"{fence} {time.monotonic_ns()} {os.getpid()}\n".encode())
    time.sleep(0.003)
