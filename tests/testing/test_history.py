"""The recorder writes whole lines, whichever process dies."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from pathlib import Path

import pytest

from holdfast.testing import Recorder, read_history
from holdfast.testing.history import LINE_BYTES, Tail

CLIENTS = Path(__file__).with_name("clients.py")


def test_what_was_recorded_is_read_back(holdfast_history):
    """Nothing is rounded, renamed or lost on the way."""
    recorder = holdfast_history.recorder("a")

    recorded = [
        recorder.record("requested", "orders", token="t1"),
        recorder.record("granted", "orders", fence=2**53 - 1, token="t1", since_ns=1, until_ns=2),
        recorder.record("write", "orders", fence=3, token="t1", value=-4, accepted=False, detail="late"),
        recorder.died("b", 12345, "by SIGKILL"),
    ]

    assert holdfast_history.read() == recorded


@pytest.mark.parametrize("name", ["", "a b", "line\nbreak", "naïve ☕ 🜁", "\udc80 no UTF-8", '"quoted\\"'])
def test_any_name_survives(holdfast_history, name):
    """Names are any text; a line break in one must not break the line."""
    recorded = holdfast_history.recorder("a").record("requested", name)

    assert holdfast_history.read() == [recorded]


def test_an_event_is_safe_once_it_is_recorded(holdfast_history, holdfast_workers):
    """The last thing that a killed worker did is what the checkers need most."""
    worker = holdfast_workers.start(f"{CLIENTS}:record_and_die", history=holdfast_history.path)
    worker.wait()

    [event] = holdfast_history.read()
    assert (event.kind, event.fence, event.pid) == ("granted", 7, worker.pid)


def test_a_storm_of_kills_loses_and_mixes_no_line(holdfast_history, holdfast_workers):
    """Several processes write, and are killed at random: each leaves 0, 1, 2, ... without a hole."""
    rng = random.Random(7)
    workers = []
    for round_ in range(4):
        running = [
            holdfast_workers.start(f"{CLIENTS}:record_forever", history=holdfast_history.path, worker=f"{round_}{n}")
            for n in range(3)
        ]
        workers += running
        for worker in running:
            worker.wait_ready()
        for worker in running:
            time.sleep(rng.uniform(0.005, 0.05))
            worker.kill()

    values = defaultdict(list)
    for event in holdfast_history.read():
        values[event.pid].append(event.value)
    # A worker that was killed before its first line has left nothing, which is no hole.
    assert values.keys() <= {worker.pid for worker in workers}
    assert len(values) > len(workers) // 2
    assert all(seen == list(range(len(seen))) for seen in values.values())


def test_every_line_fills_the_same_part_of_a_page(holdfast_history):
    """A kill can cut a write between two pages only, so no line may lie across."""
    recorder = holdfast_history.recorder("a")
    for length in range(0, 300, 7):
        recorder.record("fault", "n" * (length % 50), detail="ü" * length)

    lines = holdfast_history.path.read_bytes().splitlines(keepends=True)
    assert {len(line) for line in lines} == {LINE_BYTES}
    assert 4096 % LINE_BYTES == 0


def test_an_event_too_long_for_its_line_is_refused(holdfast_history):
    """Half an event would be worse than none; only the detail, which is for people, is cut."""
    recorder = holdfast_history.recorder("a")

    with pytest.raises(ValueError, match="at most"):
        recorder.record("requested", "n" * LINE_BYTES)

    assert holdfast_history.read() == []


def test_a_torn_last_line_is_left_out(holdfast_history):
    """A full disk or a dead machine may cut the end of a file; what was before still counts."""
    recorder = holdfast_history.recorder("a")
    first = recorder.record("requested", "orders")
    recorder.record("refused", "orders")
    whole = holdfast_history.path.read_bytes()

    for cut in (LINE_BYTES - 1, LINE_BYTES // 2, 1):
        holdfast_history.path.write_bytes(whole[: LINE_BYTES + cut])
        assert holdfast_history.read() == [first]


@pytest.mark.parametrize("damage", [b"torn {\n", b"\n", b'{"kind": "requested"}\n', b"[1]\n"])
def test_a_bad_line_before_the_last_is_an_error(holdfast_history, damage):
    """A history with a hole in the middle proves nothing, so it must not look fine."""
    holdfast_history.path.write_bytes(damage)
    holdfast_history.recorder("a").record("requested", "orders")

    with pytest.raises(ValueError, match="line 1 is no event"):
        holdfast_history.read()


def test_an_unknown_kind_is_an_error(holdfast_history):
    """The checkers would overlook it, and find everything in order."""
    holdfast_history.recorder("a").record("requested", "orders")
    text = holdfast_history.path.read_text()
    holdfast_history.path.write_text(text.replace("requested", "vanished!"))

    with pytest.raises(ValueError, match="unknown kind"):
        holdfast_history.read()


def test_events_come_back_in_the_order_of_time(holdfast_history):
    """Lines stand in the order of the writes, which is not always that of the events."""
    recorder = holdfast_history.recorder("a")
    events = [recorder.record("requested", str(number)) for number in range(5)]
    lines = holdfast_history.path.read_bytes().splitlines(keepends=True)
    holdfast_history.path.write_bytes(b"".join(reversed(lines)))

    assert read_history(holdfast_history.path) == events


def test_a_dead_worker_does_not_record_its_death(holdfast_history):
    """A death has the pid of the dead worker, not of the process that records it; so it has its own method."""
    recorder = holdfast_history.recorder("parent")

    with pytest.raises(ValueError, match="a dead worker"):
        recorder.record("died", "orders")

    assert recorder.died("a", 42).pid == 42


def test_a_tail_gives_each_event_once_while_the_history_grows(tmp_path):
    """A process that watches a run need not read all of it again."""
    path = tmp_path / "history.jsonl"
    with Recorder(path, "a") as recorder:
        tail = Tail(path)
        assert tail.new() == []
        first = recorder.record("requested", "x")
        assert tail.new() == [first]
        others = [recorder.record("waiting", "x"), recorder.record("granted", "x", fence=1)]
        assert tail.new() == others
        assert tail.new() == []


def test_a_tail_leaves_a_torn_line_for_later(tmp_path):
    """Half of an event is none; the other half may come."""
    path = tmp_path / "history.jsonl"
    with Recorder(path, "a") as recorder:
        event = recorder.record("requested", "x")
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    tail = Tail(path)

    assert tail.new() == []
    path.write_bytes(whole)
    assert tail.new() == [event]
