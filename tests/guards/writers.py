"""Child processes that write behind a guard."""

import random
import time

from guarded import opened

import holdfast
from holdfast import Fenced, LeaseLost, guards
from holdfast.names import new_token
from holdfast.testing import Recorder, read_line, send_line


def write_on_each_line(url, kind, where, ttl):
    """Hold the lease; on each line, write under its fence without a check of the lease."""
    client = holdfast.connect(url)
    try:
        with opened(kind, where) as guarded, client.lock("counter", ttl=ttl) as lease:
            send_line(f"held {lease.fence}")
            while read_line() == "write":
                send_line(_written(guarded, lease))
    except LeaseLost as lost:
        send_line(f"LeaseLost {lost.reason}")
    else:
        send_line("released")


def _written(guarded, lease):
    try:
        guarded.write(lease, 1)
    except Fenced as refusal:
        return f"Fenced {refusal.fence} {refusal.newest}"
    return "wrote"


def count(kind, where, history, label, times):
    """Increase the counter repeatedly, under fences out of order and without a lease."""
    dice, refused = random.Random(label), 0
    with opened(kind, where) as guarded, Recorder(history, label) as recorder:
        for _ in range(times):
            stamp = guards.Stamp(time.time_ns() // 1000, new_token())
            time.sleep(dice.uniform(0, 0.004))
            try:
                guarded.admit(stamp)
                value = guarded.read() + 1
                time.sleep(dice.uniform(0, 0.002))
                since_ns = time.monotonic_ns()
                guarded.write(stamp, value)
            except Fenced:
                refused += 1
                continue
            facts = {"fence": stamp.fence, "token": stamp.token, "value": value, "accepted": True}
            recorder.record("write", "counter", since_ns=since_ns, **facts)
    send_line(str(refused))
