"""`holdfast queue` and `holdfast dlq`, for people and for programs."""

import json
import sqlite3
import threading

import pytest
from cli_tool import HOLDFAST
from terminals import Terminal


@pytest.fixture
def busy(tool):
    """A queue with a message in every state."""
    queue = tool.client(label="worker 7").queue("jobs", ttl=20)
    queue.publish({"order": 1}, headers={"trace": "abc"})
    queue.publish("late", delay=3600)
    dead_letter(queue, "broken", "held")
    with queue.consumer("press 1", prefetch=1) as consumer:
        queue.publish("at work")
        taken = consumer.receive(timeout=5)
        yield queue, taken
        taken[0].release()


def dead_letter(queue, *bodies, reason="no use", key=None):
    """Make one dead letter of each body, and leave the other ready messages."""
    waiting = queue.stats().ready
    ids = [queue.publish(body, key=key) for body in bodies]
    with queue.consumer("press 0", prefetch=waiting + len(bodies)) as consumer:
        for message in consumer.receive(waiting + len(bodies), timeout=5):
            if message.id in ids:
                message.reject(reason)
            else:
                message.release()
    return ids


def test_stats_are_printed_for_people_and_for_programs(tool, busy):
    """`stats` prints the number of messages in each state, the consumers and the counters."""
    queue, _ = busy
    people = tool.inside("queue", "stats", "jobs").out.decode()
    answer = tool.json("queue", "stats", "jobs")

    assert answer["queue"] == "jobs"
    figures = ("ready", "quarantined", "delayed", "in_flight", "dead", "consumers", "waiting")
    assert [answer[figure] for figure in figures] == list(queue.stats()[1:8]) == [1, 0, 1, 1, 2, 1, 0]
    assert answer["counts"]["published"] == 5
    assert 0 <= answer["oldest"] < 60
    assert 3500 < answer["next_due"] <= 3600
    lines = dict(line.rsplit(maxsplit=1) for line in people.splitlines() if line.strip())
    assert (lines["in flight"], lines["dead"], lines["published"]) == ("1", "2", "5")


def test_an_unknown_queue_is_an_empty_one(tool):
    """A monitor must not fail because the engine forgot a queue that was idle for long."""
    with tool.client().lock("x"):
        pass
    assert tool.json("queue", "stats", "quiet")["ready"] == 0
    assert b"the queue has no consumers" in tool.inside("queue", "consumers", "quiet").out
    assert b"no message is ready" in tool.inside("queue", "peek", "quiet").out
    assert b"there are no dead letters" in tool.inside("dlq", "ls", "quiet").out
    assert tool.json("queue", "check", "quiet") == {"queue": "quiet", "consistent": True, "messages": 0, "faults": []}


def test_consumers_are_listed_without_their_tokens(tool, busy):
    """A process that knows the token could act in the name of the consumer."""
    queue, _ = busy
    people = tool.inside("queue", "consumers", "jobs").out.decode().splitlines()
    answer = tool.json("queue", "consumers", "jobs")
    (consumer,) = queue.consumers()

    assert people[0].split() == ["consumer", "process", "messages", "since", "left", "fence"]
    assert people[1].startswith("press 1")
    assert people[1].split()[-1] == str(consumer.fence)
    (one,) = answer["consumers"]
    assert (one["label"], one["in_flight"], one["holder"]["label"]) == ("press 1", 1, "worker 7")
    assert 0 < one["remaining"] <= 20
    assert consumer.token not in json.dumps(answer)


def test_peek_shows_messages_without_receiving_them(tool, busy):
    """The messages stay; one in flight shows its consumer."""
    queue, taken = busy
    ready = tool.json("queue", "peek", "jobs")["messages"]
    delayed = tool.json("queue", "peek", "jobs", "--place", "delayed")["messages"]
    in_flight = tool.json("queue", "peek", "jobs", "--place", "in_flight")["messages"]
    people = tool.inside("queue", "peek", "jobs", "--place", "in_flight").out.decode().splitlines()

    assert [each["body"] for each in (*ready, *delayed)] == [
        "at work" if taken[0].body != "at work" else {"order": 1},
        "late",
    ]
    assert 3500 < delayed[0]["due"] <= 3600
    assert (in_flight[0]["id"], in_flight[0]["consumer"]) == (taken[0].id, "press 1")
    assert people[0].split()[:4] == ["id", "key", "sent", "attempts"]
    assert taken[0].id in people[1]
    assert "press 1" in people[1]
    assert queue.stats().ready == 1
    assert tool.inside("queue", "peek", "jobs", "--place", "nowhere").code == 64


def test_messages_are_published_from_the_command_line(tool, tmp_path):
    """The body is JSON, text, or one message per line; one bad line and nothing is published."""

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
    assert b"line 2 is not JSON" in wrong.err
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


def test_messages_with_keys_and_priorities_are_published_and_shown(tool, tmp_path):
    """`peek` shows the messages that wait behind others of their key, and `stats` their number."""
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


def test_check_reports_faults_by_its_exit_code(local):
    """The code is 0 if every message is in one place; otherwise 1, with a line for each fault."""
    queue = local.client().queue("jobs")
    queue.publish_many(range(2))
    sound = local.inside("queue", "check", "jobs")
    with sqlite3.connect(local.place.url.removeprefix("sqlite://")) as link:
        link.execute("DELETE FROM queue_message WHERE entry = 1")
    link.close()
    broken, answer = local.inside("queue", "check", "jobs"), local.inside("queue", "check", "jobs", "--json")

    assert (sound.code, sound.out) == (0, b"2 messages, each in exactly one place\n")
    assert (broken.code, broken.out) == (1, b"1 ready, and the queue counts 2\n")
    assert (answer.code, json.loads(answer.out)["faults"]) == (1, ["1 ready, and the queue counts 2"])


def test_check_shows_its_progress_on_a_terminal(tool, busy):
    """With many messages it takes a while; a program that reads the output sees no progress bar."""
    with Terminal(*HOLDFAST, "queue", "check", "jobs", env=tool.environ) as terminal:
        terminal.until(r"checking .*100%")
        terminal.until("5 messages, each in exactly one place")
        assert terminal.rest() == 0
    assert tool.inside("queue", "check", "jobs").err == b""


def test_dead_letters_are_listed_and_shown(tool):
    """The list has the reason, the consumer and the age; a body that is not JSON is given in base64."""
    client = tool.client()
    (one,) = dead_letter(client.queue("jobs"), {"order": 1}, reason="no such customer", key="order-1")
    raw = client.queue("jobs", codec="bytes")
    (other,) = dead_letter(raw, b"\xff\x00")
    listed = tool.json("dlq", "ls", "jobs")
    people = tool.inside("dlq", "ls", "jobs").out.decode().splitlines()
    shown = tool.inside("dlq", "show", "jobs", one).out.decode()
    answer = tool.json("dlq", "show", "jobs", other)
    page = tool("dlq", "ls", "jobs", "--limit", "1")

    assert [each["id"] for each in listed["dead_letters"]] == [one, other]
    assert (listed["dead"], listed["dead_letters"][0]["reason"]) == (2, "no such customer")
    assert [each["key"] for each in listed["dead_letters"]] == ["order-1", None]
    assert people[0].split()[:3] == ["id", "key", "died"]
    assert "no such customer" in people[1]
    for part in (one, "order-1", "no such customer", "press 0", '{"order": 1}'):
        assert part in shown
    assert (answer["body"], answer["base64"], answer["attempts"]) == (None, "/wA=", 1)
    assert f"--after {listed['dead_letters'][0]['position']}".encode() in page.err
    after = tool.json("dlq", "ls", "jobs", "--after", listed["dead_letters"][0]["position"])
    assert [each["id"] for each in after["dead_letters"]] == [other]
    unknown = tool.inside("dlq", "show", "jobs", "none")
    assert unknown.code == 66
    assert b"holdfast dlq ls" in unknown.err


def test_dead_letters_are_redriven(tool):
    """By ids, by reason, or all; the attempts are reset unless --keep-attempts is given."""
    queue = tool.client().queue("jobs")
    one, two = dead_letter(queue, "a", "b", reason="timeout of the press")
    dead_letter(queue, "c", "d", "e", reason="no use")

    assert tool.json("dlq", "redrive", "jobs", one, "none", "--keep-attempts") == {"queue": "jobs", "redriven": 1}
    assert [each.attempts for each in queue.peek()] == [1]
    people = tool.inside("dlq", "redrive", "jobs", "--reason", "timeout")
    assert people.out == b"1 dead letter is ready again\n"
    assert [(each.id, each.attempts) for each in queue.peek()] == [(one, 1), (two, 0)]
    assert tool.json("dlq", "redrive", "jobs", "--rate", "100") == {"queue": "jobs", "redriven": 3}
    assert (queue.stats().ready, queue.stats().dead) == (5, 0)
    assert tool.inside("dlq", "redrive", "jobs", "none").code == 66
    assert queue.check()


def test_purge_asks_for_confirmation(local):
    """A purged message does not come back: without a terminal the command needs --yes, and "no" does nothing."""
    queue = local.client().queue("jobs")
    dead_letter(queue, *range(3))
    unasked = local("dlq", "purge", "jobs")
    with Terminal(*HOLDFAST, "dlq", "purge", "jobs", env=local.environ) as terminal:
        terminal.until("Delete all 3 dead letters of 'jobs' for good")
        terminal.type("n\n")
        terminal.until("holdfast: nothing was done")
        assert terminal.rest() == 1
    assert (unasked.code, queue.stats().dead) == (64, 3)
    assert b"Add --yes to confirm" in unasked.err

    assert local.json("dlq", "purge", "jobs", "--older", "3600", "--yes") == {"queue": "jobs", "purged": 0}
    with Terminal(*HOLDFAST, "dlq", "purge", "jobs", env=local.environ) as terminal:
        terminal.until(r"\?")
        terminal.type("y\n")
        terminal.until("deleting .*3/3")
        terminal.until("3 dead letters are deleted")
        assert terminal.rest() == 0
    assert queue.stats().dead == 0


def test_redrive_sends_a_message_that_dies_again_only_once(local):
    """The word "all" means those that exist at the start: a handler that always fails must not keep it busy."""
    queue = local.client().queue("jobs", max_attempts=1)
    dead_letter(queue, *range(20))

    def fail(_):
        raise ValueError("still broken")

    worker = queue.worker(fail, concurrency=2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        answer = local.json("dlq", "redrive", "jobs", "--rate", "40")
    finally:
        worker.stop()
        thread.join()
    assert answer["redriven"] == 20


def test_queues_are_listed_for_people_and_for_programs(tool, busy):
    """An engineer on call does not know the names: `ls` lists the queues and the states of their messages."""
    tool.client().queue("mail/urgent").publish("x")
    tool.client().pool("jobs").set_items(["a"])  # of the same name, and no queue

    people = [line.split() for line in tool.inside("queue", "ls").out.decode().splitlines()]
    answer = tool.json("queue", "ls")

    assert people[0][:8] == ["queue", "ready", "quarantined", "delayed", "in", "flight", "behind", "dead"]
    assert [row[:7] for row in people[1:]] == [
        ["jobs", "1", "0", "1", "1", "0", "2"],
        ["mail/urgent", "1", "0", "0", "0", "0", "0"],
    ]
    assert answer["more"] is False
    assert [each["queue"] for each in answer["queues"]] == ["jobs", "mail/urgent"]
    assert answer["queues"][0]["counts"] == tool.json("queue", "stats", "jobs")["counts"]
    assert [each["queue"] for each in tool.json("queue", "ls", "mail/")["queues"]] == ["mail/urgent"]
    cut = tool.inside("queue", "ls", "--limit", "1")
    assert b"more than 1 queues" in cut.err
    assert len(cut.out.splitlines()) == 2
    assert b"there are no queues that begin with 'post'" in tool.inside("queue", "ls", "post").out
