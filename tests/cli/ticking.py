"""The program that tests run under a lease: it writes a line every few milliseconds.

    python ticking.py FILE SECONDS [stubborn | slow SECONDS]

One line per tick: fence, time, pid. `stubborn` ignores TERM, `slow` records it and continues for a while. The first
tick is the earliest proof that the program ran, and the last tick the latest.
"""

import os
import signal
import sys
import time

file, seconds, *reaction = sys.argv[1:]
ends = [time.monotonic() + float(seconds)]


def on_term(_number, _frame):
    if len(ends) == 1:  # only the first TERM counts
        ends.append(time.monotonic() + float(reaction[1]))
        with open(f"{file}.term", "w") as record:
            record.write(str(time.monotonic_ns()))


if reaction[:1] == ["stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif reaction[:1] == ["slow"]:
    signal.signal(signal.SIGTERM, on_term)
log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
fence = os.environ["HOLDFAST_FENCE"]
while time.monotonic() < ends[-1]:
    os.write(log, f"{fence} {time.monotonic_ns()} {os.getpid()}\n".encode())
    time.sleep(0.003)
