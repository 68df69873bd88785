"""Queues and dead letters on the command line, for people and for programs: `queue` and `dlq`."""

import json
import sqlite3
import threading

import pytest
from cli_tool import HOLDFAST
from terminals import Terminal


@pytest.fixture
def busy(tool):
    """A queue with a message in every place."""
    queue = tool.client(label="worker 7").queue("jobs", ttl=20)
    queue.publish({"order": 1}, headers={"trace": "abc"})
    queue.publish("late", delay=3600)
    bury(queue, "broken", "held")
    with queue.consumer("press 1", prefetch=1) as consumer:
        queue.publish("at work")
        taken = consumer.receive(timeout=5)
        yield queue, taken
        taken[0].release()


def bury(queue, *bodies, reason="no use", key=None):
    """Dead letters, one for each body; what else is ready stays."""
    waiting = queue.stats().ready
    ids = [queue.publish(body, key=key) for body in bodies]
    with queue.consumer("press 0", prefetch=waiting + len(bodies)) as consumer:
        for message in consumer.receive(waiting + len(bodies), timeout=5):
            if message.id in ids:
                message.reject(reason)
            else:
                message.release()
    return ids


def test_how_a_queue_stands_is_told_to_people_and_to_programs(tool, busy):
    """Where the messages are, who is there, and what was counted."""
    queue, _ = busy
    people = tool.inside("queue", "stats", "jobs").out.decode()
    told = tool.json("queue", "stats", "jobs")

    assert told["queue"] == "jobs"
    places = ("ready", "suspects", "delayed", "in_flight", "dead", "consumers", "waiting")
    assert [told[place] for place in places] == list(queue.stats()[1:8]) == [1, 0, 1, 1, 2, 1, 0]
    assert told["counts"]["published"] == 5
    assert 0 <= told["oldest"] < 60
    assert 3500 < told["next_due"] <= 3600
    lines = dict(line.rsplit(maxsplit=1) for line in people.splitlines() if line.strip())
    assert (lines["in flight"], lines["dead"], lines["published"]) == ("1", "2", "5")


def test_a_queue_that_nobody_has_used_is_an_empty_one(tool):
    """A monitor must not fail because a queue has been quiet for so long that it is forgotten."""
    with tool.client().lock("x"):
        pass
    assert tool.json("queue", "stats", "quiet")["ready"] == 0
    assert b"nobody takes messages" in tool.inside("queue", "consumers", "quiet").out
    assert b"no message is ready" in tool.inside("queue", "peek", "quiet").out
    assert b"there are no dead letters" in tool.inside("dlq", "ls", "quiet").out
    assert tool.json("queue", "check", "quiet") == {"queue": "quiet", "sound": True, "messages": 0, "faults": []}


def test_consumers_are_listed_without_their_tokens(tool, busy):
    """Whoever has the token could speak for the consumer."""
    queue, _ = busy
    people = tool.inside("queue", "consumers", "jobs").out.decode().splitlines()
    told = tool.json("queue", "consumers", "jobs")
    (standing,) = queue.consumers()

    assert people[0].split() == ["consumer", "process", "messages", "since", "left", "fence"]
    assert people[1].startswith("press 1")
    assert people[1].split()[-1] == str(standing.fence)
    (one,) = told["consumers"]
    assert (one["label"], one["in_flight"], one["owner"]["label"]) == ("press 1", 1, "worker 7")
    assert 0 < one["remaining"] <= 20
    assert standing.token not in json.dumps(told)


def test_messages_are_looked_at_where_they_are(tool, busy):
    """Left there; one that is at work says with whom."""
    queue, taken = busy
    ready = tool.json("queue", "peek", "jobs")["messages"]
    delayed = tool.json("queue", "peek", "jobs", "--place", "delayed")["messages"]
    flying = tool.json("queue", "peek", "jobs", "--place", "in_flight")["messages"]
    people = tool.inside("queue", "peek", "jobs", "--place", "in_flight").out.decode().splitlines()

    assert [each["body"] for each in (*ready, *delayed)] == [
        "at work" if taken[0].body != "at work" else {"order": 1},
        "late",
    ]
    assert 3500 < delayed[0]["due"] <= 3600
    assert (flying[0]["id"], flying[0]["consumer"]) == (taken[0].id, "press 1")
    assert people[0].split()[:4] == ["id", "key", "sent", "attempts"]
    assert taken[0].id in people[1]
    assert "press 1" in people[1]
    assert queue.stats().ready == 1
    assert tool.inside("queue", "peek", "jobs", "--place", "nowhere").code == 64


def test_messages_are_sent_from_the_command_line(tool, tmp_path):
    """JSON, text, or a message for each line; what is no JSON is not sent at all."""

    def fed(lines):
        (tmp_path / "lines").write_text(lines)
        with (tmp_path / "lines").open() as file:
            return tool("queue", "publish", "jobs", "-", stdin=file)

    one = tool.json("queue", "publish", "jobs", '{"order": 42}', "--header", "trace=a=b", "--dedup-key", "42")["ids"]
    again = tool.json("queue", "publish", "jobs", '{"order": 43}', "--dedup-key", "42")["ids"]
    text = tool.inside("queue", "publish", "jobs", "{order", "--text", "--delay", "60")
    lines = fed('1\n\n["two"]\n')
    wrong = fed("1\n{two\n")

    assert (one, text.code, lines.code, wrong.code) == (again, 0, 0, 64)
    assert b"line 2 is no JSON" in wrong.err
    queue = tool.client().queue("jobs")
    first, *rest = queue.peek()
    assert (first.body, first.headers, [first.id]) == ({"order": 42}, {"trace": "a=b"}, one)
    assert [each.body for each in rest] == [1, ["two"]]
    assert [each.id for each in rest] == lines.out.decode().split()
    (late,) = queue.peek("delayed")
    assert (late.body, late.id) == ("{order", text.out.decode().strip())
    assert tool.inside("queue", "publish", "jobs", "1", "--bound", "4").code == 75
    assert tool.inside("queue", "publish", "jobs", "1", "--header", "x").code == 64
    assert tool.inside("queue", "publish", "jobs", "-", "--dedup-key", "x").code == 64
    assert queue.stats().ready == 3


def test_messages_with_keys_and_priorities_are_sent_and_shown(tool, tmp_path):
    """Who waits for whom is seen: what stands behind, of which key, and how many there are."""
    (tmp_path / "lines").write_text('"first"\n"second"\n"third"\n')
    with (tmp_path / "lines").open() as file:
        ids = tool("queue", "publish", "jobs", "-", "--key", "chat 7", stdin=file).out.decode().split()
    urgent = tool.json("queue", "publish", "jobs", '"now"', "--priority", "high")["ids"]
    ready = tool.json("queue", "peek", "jobs")["messages"]
    behind = tool.json("queue", "peek", "jobs", "--place", "behind")["messages"]
    people = tool.inside("queue", "peek", "jobs", "--place", "behind").out.decode().splitlines()
    lines = tool.inside("queue", "stats", "jobs").out.decode().splitlines()

    assert [(each["id"], each["key"]) for each in ready] == [(urgent[0], None), (ids[0], "chat 7")]
    assert [(each["body"], each["key"]) for each in behind] == [("second", "chat 7"), ("third", "chat 7")]
    assert [line.split()[1:3] for line in people[1:]] == [["chat", "7"]] * 2
    assert ["behind", "2"] in [line.split() for line in lines]
    assert tool.json("queue", "stats", "jobs")["behind"] == 2
    late = tool.inside("queue", "publish", "jobs", "1", "--key", "chat 7", "--delay", "5")
    assert (late.code, b"cannot have a delay" in late.err) == (64, True)
    assert tool.inside("queue", "publish", "jobs", "1", "--priority", "urgent").code == 64
    assert tool.inside("queue", "peek", "jobs", "--place", "held").code == 64
    assert tool.client().queue("jobs").stats().counts["published"] == 4


def test_a_check_tells_what_is_wrong_by_its_exit_code(local):
    """0 if every message is in one place; 1 and a line for each fault if not."""
    queue = local.client().queue("jobs")
    queue.publish_many(range(2))
    well = local.inside("queue", "check", "jobs")
    with sqlite3.connect(local.place.url.removeprefix("sqlite://")) as link:
        link.execute("DELETE FROM queue_message WHERE entry = 1")
    link.close()
    ill, told = local.inside("queue", "check", "jobs"), local.inside("queue", "check", "jobs", "--json")

    assert (well.code, well.out) == (0, b"2 messages, each in exactly one place\n")
    assert (ill.code, ill.out) == (1, b"1 ready, and the queue counts 2\n")
    assert (told.code, json.loads(told.out)["faults"]) == (1, ["1 ready, and the queue counts 2"])


def test_a_check_shows_people_how_far_it_is(tool, busy):
    """Of many messages it takes a while; whoever reads it by a program is shown nothing of that."""
    with Terminal(*HOLDFAST, "queue", "check", "jobs", env=tool.environ) as terminal:
        terminal.until(r"looking .*100%")
        terminal.until("5 messages, each in exactly one place")
        assert terminal.rest() == 0
    assert tool.inside("queue", "check", "jobs").err == b""


def test_dead_letters_are_listed_and_shown(tool):
    """With the reason, by whom, and since when; a body that is no JSON is given as its bytes."""
    client = tool.client()
    (one,) = bury(client.queue("jobs"), {"order": 1}, reason="no such customer", key="order-1")
    raw = client.queue("jobs", codec="bytes")
    (other,) = bury(raw, b"\xff\x00")
    listed = tool.json("dlq", "ls", "jobs")
    people = tool.inside("dlq", "ls", "jobs").out.decode().splitlines()
    shown = tool.inside("dlq", "show", "jobs", one).out.decode()
    told = tool.json("dlq", "show", "jobs", other)
    page = tool("dlq", "ls", "jobs", "--limit", "1")

    assert [each["id"] for each in listed["letters"]] == [one, other]
    assert (listed["dead"], listed["letters"][0]["reason"]) == (2, "no such customer")
    assert [each["key"] for each in listed["letters"]] == ["order-1", None]
    assert people[0].split()[:3] == ["id", "key", "died"]
    assert "no such customer" in people[1]
    for part in (one, "order-1", "no such customer", "press 0", '{"order": 1}'):
        assert part in shown
    assert (told["body"], told["base64"], told["attempts"]) == (None, "/wA=", 1)
    assert f"--after {listed['letters'][0]['place']}".encode() in page.err
    after = tool.json("dlq", "ls", "jobs", "--after", listed["letters"][0]["place"])
    assert [each["id"] for each in after["letters"]] == [other]
    nobody = tool.inside("dlq", "show", "jobs", "none")
    assert nobody.code == 66
    assert b"holdfast dlq ls" in nobody.err


def test_dead_letters_are_sent_again(tool):
    """These, those with a reason, or all; attempts begin anew unless they are kept."""
    queue = tool.client().queue("jobs")
    one, two = bury(queue, "a", "b", reason="timeout of the press")
    bury(queue, "c", "d", "e", reason="no use")

    assert tool.json("dlq", "redrive", "jobs", one, "none", "--keep-attempts") == {"queue": "jobs", "redriven": 1}
    assert [each.attempts for each in queue.peek()] == [1]
    people = tool.inside("dlq", "redrive", "jobs", "--reason", "timeout")
    assert people.out == b"1 dead letter is ready again\n"
    assert [(each.id, each.attempts) for each in queue.peek()] == [(one, 1), (two, 0)]
    assert tool.json("dlq", "redrive", "jobs", "--rate", "100") == {"queue": "jobs", "redriven": 3}
    assert (queue.stats().ready, queue.stats().dead) == (5, 0)
    assert tool.inside("dlq", "redrive", "jobs", "none").code == 66
    assert queue.check()


def test_who_forgets_dead_letters_is_asked(local):
    """What is forgotten does not come back: without a terminal it must be said, and a no is a no."""
    queue = local.client().queue("jobs")
    bury(queue, *range(3))
    unasked = local("dlq", "purge", "jobs")
    with Terminal(*HOLDFAST, "dlq", "purge", "jobs", env=local.environ) as terminal:
        terminal.until("Forget all 3 dead letters of 'jobs' for good")
        terminal.type("n\n")
        terminal.until("holdfast: nothing was done")
        assert terminal.rest() == 1
    assert (unasked.code, queue.stats().dead) == (64, 3)
    assert b"--yes is needed without a terminal" in unasked.err

    assert local.json("dlq", "purge", "jobs", "--older", "3600", "--yes") == {"queue": "jobs", "purged": 0}
    with Terminal(*HOLDFAST, "dlq", "purge", "jobs", env=local.environ) as terminal:
        terminal.until(r"\?")
        terminal.type("y\n")
        terminal.until("forgetting .*3/3")
        terminal.until("3 dead letters are forgotten")
        assert terminal.rest() == 0
    assert queue.stats().dead == 0


def test_a_letter_that_dies_again_is_not_sent_again_and_again(local):
    """All means those that were there: a handler that fails at once must not keep the command busy for ever."""
    queue = local.client().queue("jobs", max_attempts=1)
    bury(queue, *range(20))

    def fail(_):
        raise ValueError("still broken")

    worker = queue.worker(fail, concurrency=2)
    hand = threading.Thread(target=worker.run)
    hand.start()
    try:
        told = local.json("dlq", "redrive", "jobs", "--rate", "40")
    finally:
        worker.stop()
        hand.join()
    assert told["redriven"] == 20


def test_queues_are_listed_for_people_and_for_programs(tool, busy):
    """Who is on call knows of no name: which queues there are, and where their messages wait."""
    tool.client().queue("mail/urgent").publish("x")
    tool.client().pool("jobs").set_items(["a"])  # of the same name, and no queue

    people = [line.split() for line in tool.inside("queue", "ls").out.decode().splitlines()]
    told = tool.json("queue", "ls")

    assert people[0][:8] == ["queue", "ready", "suspects", "delayed", "in", "flight", "behind", "dead"]
    assert [row[:7] for row in people[1:]] == [
        ["jobs", "1", "0", "1", "1", "0", "2"],
        ["mail/urgent", "1", "0", "0", "0", "0", "0"],
    ]
    assert told["more"] is False
    assert [each["queue"] for each in told["queues"]] == ["jobs", "mail/urgent"]
    assert told["queues"][0]["counts"] == tool.json("queue", "stats", "jobs")["counts"]
    assert [each["queue"] for each in tool.json("queue", "ls", "mail/")["queues"]] == ["mail/urgent"]
    cut = tool.inside("queue", "ls", "--limit", "1")
    assert b"more than 1 queues" in cut.err
    assert len(cut.out.splitlines()) == 2
    assert b"there are no queues that begin with 'post'" in tool.inside("queue", "ls", "post").out
