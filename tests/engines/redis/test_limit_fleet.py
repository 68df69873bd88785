"""Rate limits of several processes on one real server, and their policy without it."""

import json
import subprocess
import sys
import threading
import time
from itertools import pairwise

import pytest
from redis_faces import paired

from holdfast.testing import eventually

PROCESSES, REQUESTS = 3, 67
# Waits for a line, then sends hits as fast as it can; reports when each allowed hit was sent and answered.
CLIENT = """
import json, sys, time
import holdfast
url, requests = sys.argv[1], int(sys.argv[2])
with holdfast.connect(url) as hf:
    limiter = hf.limit("10/second; 100/minute", name="api")
    limiter.peek("ann")
    print("ready", flush=True)
    sys.stdin.readline()
    allowed, refused, began = [], [], time.monotonic()
    for _ in range(requests):
        sent = time.monotonic()
        decision = limiter.hit("ann")
        if decision:
            allowed.append((sent, time.monotonic()))
        else:
            refused.append(decision.retry_after)
    print(json.dumps([began, time.monotonic(), allowed, refused]), flush=True)
"""


@pytest.mark.acceptance("A4-17")
def test_of_two_hundred_requests_of_three_processes_ten_pass_in_a_second(one_server):
    """This holds for any window of a second, and the first ten pass."""
    command = [sys.executable, "-c", CLIENT, one_server.url, str(REQUESTS)]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    try:
        assert [child.stdout.readline() for child in children] == ["ready\n"] * PROCESSES
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        reports = [json.loads(child.communicate(timeout=60)[0]) for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()

    allowed = sorted(pair for _, _, pairs, _ in reports for pair in pairs)
    seconds = max(ended for _, ended, _, _ in reports) - min(began for began, _, _, _ in reports)
    assert len(allowed) >= 10
    assert seconds > 1 or len(allowed) == 10
    for first, eleventh in zip(allowed, allowed[10:], strict=False):
        assert eleventh[1] - first[0] >= 1.0
    retries = [retry for _, _, _, refused in reports for retry in refused]
    assert len(allowed) + len(retries) == PROCESSES * REQUESTS
    assert all(0 < retry <= 1 for retry in retries)


@paired
def test_a_decision_is_one_command_and_a_refusal_that_holds_is_none(place):
    """An allowed hit costs one round trip; a known refusal costs the server nothing."""
    limiter = place.connect().limit("50/hour")
    limiter.hit("ann")
    before = commands_of(place.server)

    for _ in range(49):
        assert limiter.hit("ann")
    assert commands_of(place.server) - before == 49
    limiter.hit("ann")
    began, before = time.monotonic(), commands_of(place.server)
    for _ in range(200):
        assert not limiter.hit("ann")
    assert commands_of(place.server) - before <= time.monotonic() - began + 1


def commands_of(server):
    """Return how many scripts the server has run so far."""
    lines = server.command("INFO", "commandstats").decode().splitlines()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if line.startswith("cmdstat_evalsha:"))


@pytest.mark.acceptance("A4-19")
def test_without_its_server_a_limit_follows_its_policy_and_sends_little(place_on, new_server):
    """The default is a local share for each process; each answer emits an event, and a returned server counts again."""
    events, server = [], new_server()
    place = place_on(server)
    client = place.connect(observer=events.append)
    limiters = {policy: client.limit("20/hour", name=policy, on_unavailable=policy) for policy in ("allow", "deny")}
    limiters["local"] = client.limit("20/hour", name="local")
    for limiter in limiters.values():
        assert limiter.hit("ann").remaining == 19

    server.kill()
    began, asked = time.monotonic(), 0
    passed = dict.fromkeys(limiters, 0)
    while time.monotonic() - began < 1.5:
        for policy, limiter in limiters.items():
            passed[policy] += limiter.hit("ann").allowed
        asked += 1
        time.sleep(0.005)
    seconds = time.monotonic() - began

    assert passed == {"local": 2, "allow": asked, "deny": 0}
    tried = [event for event in events if event.kind == "unavailable"]
    assert len(tried) == 3 * asked
    assert seconds < 10, "an outage costs a caller no waiting"
    server.start()
    eventually(lambda: limiters["deny"].hit("bob").allowed, 10, "a limit that asks its server again")
    eventually(lambda: limiters["local"].peek("bob").remaining == 20, 10, "the same of the others")


@pytest.mark.finding("L3")
def test_a_frozen_server_delays_one_caller_at_a_time(place_on, new_server):
    """One caller tries the server, for the wire timeout; every other caller follows the policy at once."""
    server = new_server()
    client = place_on(server).connect()
    limiter = client.limit("1000/hour", name="api", on_unavailable="allow")
    assert limiter.hit("ann").remaining == 999
    server.freeze()
    try:
        assert limiter.hit("ann").allowed, "the first caller learns of the outage"
        until, delays = time.monotonic() + 4.5, []

        def call():
            while (began := time.monotonic()) < until:
                assert limiter.hit("ann").allowed
                delays.append((time.monotonic() - began, began))
                time.sleep(0.002)

        callers = [threading.Thread(target=call) for _ in range(6)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        server.thaw()
    probes = sorted((began, delay) for delay, began in delays if delay > 0.5)
    assert probes, "the limit tries its server again"
    assert all(later[0] >= first[0] + first[1] for first, later in pairwise(probes)), "two callers waited at once"
    eventually(lambda: limiter.hit("bob").remaining > 0, 10, "a limit that asks its server again")
