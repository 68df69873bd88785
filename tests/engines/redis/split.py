"""A scenario in a separate process: a partition with clients on both sides, and a primary on each.

    python split.py plain valkey 5 FOLDER

One side has the old primary, a sentinel and a client; the other has two replicas, two sentinels and a client. Both
clients take and give the same lock as fast as they can, ours and beside it a textbook one (SET NX and a counter for a
fence). It prints what happened as one line of JSON; what must never happen raises.
"""

import json
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

import holdfast
from holdfast.testing import (
    GuardedFile,
    History,
    Recorder,
    WorkerProcesses,
    overlapping_holders,
    read_line,
    ready,
    send_line,
)
from tests.support.networks import Network
from tests.support.sentinels import Sentinels

TTL_S = 1.5
SETTINGS = {
    "plain": (),
    "min-replicas": ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"),
    "confirm": (),
}


def side(url, sentinels, folder, label, confirm):
    """Run one client until it has to stop."""
    guard, accepted, counted = GuardedFile(Path(folder) / "guarded.json"), [], []
    with holdfast.connect(url, label=label) as hf, Recorder(Path(folder) / "history.jsonl", label) as recorder:
        promise = hf.promise()
        ready()
        until = time.monotonic() + float(read_line(None))
        beside = threading.Thread(target=textbook, args=(sentinels, label, until, counted))
        beside.start()
        while time.monotonic() < until:
            with suppress(holdfast.HoldfastError):
                turn(hf, guard, recorder, accepted, confirm)
        beside.join()
        told = {"level": promise.level, "fences grow": promise.fences_grow, "accepted": accepted, "textbook": counted}
        told["caveats"] = [limit.sentence for limit in promise.caveats]
        send_line(json.dumps(told))
        hf.close(timeout=5)


def textbook(sentinels, label, until, counted):
    """The textbook lock."""
    options = {"socket_timeout": 0.3, "retry": Retry(NoBackoff(), 0)}
    theirs = Sentinel(sentinels, sentinel_kwargs=options, **options).master_for("main")
    while time.monotonic() < until:
        with suppress(redis.RedisError):
            if theirs.set("textbook", label, nx=True, px=int(TTL_S * 1000)):
                counted.append(theirs.incr("textbook:fence"))
                theirs.delete("textbook")
        time.sleep(0.002)


def turn(hf, guard, recorder, accepted, confirm):
    asked = time.monotonic_ns()
    with hf.lock("x", ttl=TTL_S, timeout=1, confirm=confirm) as lease, recorder.holding(lease, since_ns=asked):
        time.sleep(0.002)
        guard.write(lease.fence, lease.token, lambda value: value + 1)
        accepted.append((lease.fence, lease.token))


def play(network, variant, kind, seconds, folder):
    homes = [network.home(name) for name in ("s0", "s1", "s2", "w0", "w1", "w2", "c0", "c1")]
    confirm = "replicas" if variant == "confirm" else None
    with Sentinels(kind, arguments=SETTINGS[variant], homes=homes[:6]) as group, WorkerProcesses() as workers:
        places = [(each.host, each.port) for each in group.sentinels]
        common = {"url": group.url, "sentinels": places, "folder": folder, "confirm": confirm}
        sides = [
            workers.start(f"{__file__}:side", home=home, label=label, **common)
            for home, label in zip(homes[6:], ("minority", "majority"), strict=True)
        ]
        for each in sides:
            each.wait_ready(30)
        for each in sides:
            each.send_line(str(seconds + 4))
        time.sleep(1)
        few, many = [homes[0], homes[3], homes[6]], [homes[1], homes[2], homes[4], homes[5], homes[7]]
        cut_ns = time.monotonic_ns()
        network.cut(few, many)
        time.sleep(seconds)
        assert (
            int(group.sentinels[1].command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[1]) != group.servers[0].port
        )
        network.heal()
        group.heal()
        healed_ns = time.monotonic_ns()
        told = [json.loads(each.read_line(60)) for each in sides]
        for each in sides:
            assert each.wait(30) == 0, each.output()
    return judged(told, read(folder), cut_ns, healed_ns) | {"variant": variant}


def read(folder):
    with History(Path(folder) / "history.jsonl") as history:
        return history.read()


def judged(told, events, cut_ns, healed_ns):
    accepted = {tuple(each) for side in told for each in side["accepted"]}
    grants = {(event.fence, event.token) for event in events if event.kind == "granted"}
    counted = [fence for side in told for fence in side["textbook"]]
    overlaps = overlapping_holders(events)
    outside = [
        violation
        for violation in overlaps
        if not any(cut_ns <= event.at_ns <= healed_ns + TTL_S * 1e9 for event in violation.events)
    ]
    twice = [fence for fence, times in Counter(fence for fence, _ in accepted).items() if times > 1]
    by = [{event.token for event in events if event.worker == who} & {token for _, token in grants} for who in SIDES]
    assert not twice, f"a guard took fences from two tokens: {twice}"
    assert not outside, f"overlaps without a cause: {outside}"
    return {
        "grants": len(grants), "of the minority": len(by[0]), "accepted": len(accepted),
        "repeated by the textbook": len(counted) - len(set(counted)),
        "repeated by us": len(grants) - len({fence for fence, _ in grants}),
        "overlaps": len(overlaps), "promises": [[side["level"], side["fences grow"]] for side in told],
        "said so": all(any("second holder" in limit for limit in side["caveats"]) for side in told),
    }  # fmt: skip


SIDES = ("minority", "majority")


if __name__ == "__main__":
    with Network() as net:
        print(json.dumps(play(net, sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4])))
