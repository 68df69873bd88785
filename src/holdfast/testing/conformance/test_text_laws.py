"""Text from others (names, labels, reasons, bodies, holders) forges no line, commands no terminal, reveals no body."""

import json
import logging
import os
import pickle
import traceback
from contextlib import suppress

import pytest

from holdfast import HoldfastError, InvalidConfig, InvalidName, LeaseLost, NotAcquired
from holdfast.commands import Acquire
from holdfast.testing import eventually

HOSTILE = {
    "newline": "x\n2026-01-01 CRITICAL root: forged",
    "carriage return": "x\rforged",
    "line separator": "x\u2028forged\u2029\x85forged",
    "ANSI": "x\x1b[2J\x1b]0;title\x07",
    "C1": "x\x9b31m\x90q",
    "bidirectional": "x\u202egnp.exe\u2066\u2069\u200f",
    "invisible": "x\u200b\ufeff\u00ad\U000e0041",
}
WORD = "pay1oad"
BODIES = [f"{WORD}-{number}" for number in range(20)]


def is_plain(text):
    """Return whether the text is one line of visible characters."""
    return text.isprintable()


def texts_of(error):
    """Return what a log or a debugger shows of an error and the errors behind it."""
    found, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        found += [str(error), repr(error), repr(error.args), repr(vars(error)), *traceback.format_exception(error)]
        error = error.__cause__ or error.__context__
    return "\n".join(found)


@pytest.mark.finding("S11")
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_text_of_others_is_escaped_in_logs_errors_and_events(face, caplog, text):
    """A name, a label and a reason come from other programs and people."""
    caplog.set_level(logging.DEBUG, logger="holdfast")
    events = []
    client, other = face.connect(label=text, observer=events.append), face.connect(observer=events.append)
    lease = client.lock(text, ttl=1).acquire()

    with pytest.raises(NotAcquired) as refused:
        other.lock(text).acquire(timeout=0)
    other.break_lease(text, text)
    eventually(lambda: lease.lost)
    with pytest.raises(LeaseLost) as lost:
        lease.check()

    assert refused.value.name == lost.value.name == text
    assert "forged" in str(lost.value) or "x" in str(lost.value)
    lines = [logging.Formatter("%(message)s").format(record) for record in caplog.records]
    shown = [str(refused.value), repr(refused.value), str(lost.value), repr(lease), repr(client.lock(text)), *lines]
    assert [each for each in shown if not is_plain(each)] == []
    assert [event.detail for event in events if not is_plain(event.detail)] == []
    assert text in {event.name for event in events}  # a program compares names: an event has the name itself
    assert client.show(text).holder is None


@pytest.mark.finding("S11")
def test_an_unpaired_surrogate_is_refused_before_any_command(face):
    """No engine can store it, and no log can write it."""
    client = face.connect()
    wire = face.wire(client)
    for use, error in (
        (lambda: client.lock("x\ud800"), InvalidName),
        (lambda: client.break_lease("x", "x\ud800"), InvalidConfig),
        (lambda: face.connect(label="x\ud800"), InvalidConfig),
        (lambda: face.connect(info={"x": "x\ud800"}), InvalidConfig),
    ):
        with pytest.raises(error) as refusal:
            use()
        assert is_plain(str(refusal.value))
    assert wire.commands() == []


@pytest.mark.finding("S11")
@pytest.mark.parametrize(
    "holder",
    [
        "[" * 100_000 + "]" * 100_000,
        '{"host":"h","pid":1,"start":1,"label":"l","info":' + '{"a":' * 400 + "1" + "}" * 400 + "}",
        '{"host":["h"],"pid":"1","start":null,"label":{},"info":7}',
        "\x1b[2J not JSON",
    ],
    ids=["deep", "deep info", "other types", "no JSON"],
)
def test_a_holder_that_cannot_be_read_is_shown_as_text(face, holder):
    """One program with another idea of a holder must not hide all leases from people."""
    peer, client = face.peer(), face.connect()
    peer.say(Acquire("x", "t", holder, 30_000, wait=False))

    status = client.show("x")

    assert status.holder.host == holder[:80]
    assert json.loads(json.dumps(status.holder._asdict(), indent=2))["host"] == holder[:80]
    assert [each.name for each in client.held()] == ["x"]
    with pytest.raises(NotAcquired) as refused:
        client.lock("x").acquire(timeout=0)
    assert is_plain(str(refused.value))
    assert len(str(refused.value)) < 500
    client.break_lease("x", "the law is done")


class Leaky:
    """A codec whose errors repeat the body."""

    def encode(self, body):
        raise ValueError(f"cannot encode {body!r}")

    def decode(self, data):
        raise ValueError(f"cannot decode {data!r}")


class LeakyDecoder(Leaky):
    """The same, but it can encode."""

    def encode(self, body):
        return body.encode()


@pytest.mark.finding("S8", "S12")
@pytest.mark.capability("queues")
@pytest.mark.parametrize("codec", ["json", LeakyDecoder()], ids=["json", "own"])
def test_a_body_that_cannot_be_decoded_is_in_no_log_and_no_event(face, caplog, codec):
    """The DLQ keeps the body; a log is read by more people than a queue."""
    caplog.set_level(logging.DEBUG)
    events = []
    client = face.connect(observer=events.append)
    raw, queue = client.queue("jobs", codec="bytes"), client.queue("jobs", codec=codec)
    for body in BODIES:
        raw.publish(b"\xff" + body.encode() + b"{" if codec == "json" else body.encode())
    received = queue.consumer(prefetch=50)
    with received:
        assert received.receive(timeout=0) == []
        eventually(lambda: queue.stats().dead == len(BODIES))

    assert len([event for event in events if event.kind == "dead_lettered"]) == len(BODIES)
    assert WORD not in caplog.text + repr(events)
    assert all(WORD.encode() in dead.body for dead in raw.dlq.list(100))


class Harmful:
    """An object whose pickle creates a file where it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.capability("queues")
def test_a_body_is_data_and_never_code(face, tmp_path):
    """Any publisher of a queue chooses the bytes: they are JSON or bytes for a consumer, and never run there."""
    harm = tmp_path / "harm"
    texts = [{"py/reduce": ["os.mkdir", str(harm)]}, f"__import__('os').mkdir({str(harm)!r})", "!!python/none", "$(id)"]
    client = face.connect()
    raw, queue = client.queue("jobs", codec="bytes"), client.queue("jobs")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        raw.publish(pickle.dumps(Harmful(harm), protocol))
    queue.publish_many(texts)

    with queue.consumer(prefetch=50) as consumer:
        messages = []
        while len(messages) < len(texts):
            received = consumer.receive(50, timeout=10)
            assert received
            messages += received
        for message in messages:
            message.ack()
        eventually(lambda: queue.stats().dead == pickle.HIGHEST_PROTOCOL + 1)

    assert [message.body for message in messages] == texts
    assert {dead.reason for dead in raw.dlq.list(50)} == {"unreadable"}
    assert not harm.exists()


@pytest.mark.finding("S8", "S12")
@pytest.mark.capability("queues")
def test_a_body_that_is_refused_is_in_no_error(face, caplog):
    """An error travels into logs, and to services that collect errors."""
    caplog.set_level(logging.DEBUG)
    client = face.connect()
    queue, own, raw = client.queue("jobs"), client.queue("jobs", codec=Leaky()), client.queue("jobs", codec="bytes")
    texts = []
    for body in BODIES:
        for use in (
            lambda body=body: queue.publish({body: {1, 2}}),
            lambda body=body: queue.publish([body, float("nan")]),
            lambda body=body: queue.publish(f"{body}\ud800"),
            lambda body=body: queue.publish(body * 200_000),
            lambda body=body: queue.publish("x", headers={"authorization": f"{body}\ud800"}),
            lambda body=body: queue.publish("x", headers={body: 7}),
            lambda body=body: own.publish(body),
            lambda body=body: raw.publish(body),
            lambda body=body: queue.publish_many([body, {body}]),
        ):
            with pytest.raises(InvalidConfig) as refusal:
                use()
            texts.append(texts_of(refusal.value))

    assert WORD not in "\n".join(texts) + caplog.text
    assert queue.stats().ready == 0


@pytest.mark.finding("S8", "S12")
@pytest.mark.capability("once", "registry")
def test_a_payload_or_a_mailbox_message_that_is_refused_is_in_no_error(face, caplog):
    """The same for an idempotency key's payload, and for a message to an owner."""
    caplog.set_level(logging.DEBUG)
    client = face.connect()
    texts = []
    for body in BODIES:
        for use in (
            lambda body=body: client.once("payments").call("k", lambda: 1, payload={body}),
            lambda body=body: client.registry("rooms").send("k", f"{body}\ud800"),
            lambda body=body: client.registry("rooms").send("k", body * 20_000),
        ):
            with pytest.raises(HoldfastError) as refusal:
                use()
            texts.append(texts_of(refusal.value))

    assert WORD not in "\n".join(texts) + caplog.text


TEMPLATES = ["{customer}/{number}", "{customer}-{number}", "{customer}%/{number}", "a{customer}: {number}b"]
ARGUMENTS = [
    ("ann", "1/2"), ("ann/1", "2"), ("ann%2F1", "2"), ("ann%", "2F1/2"), ("ann-1", "2"), ("ann", "1-2"),
    ("ann: 1", "2"), ("ann", "1: 2"), ("", "ann"), ("ann", ""), ("ann%25", "2"), ("ann%/", "/2"), ("ann", "%//2"),
]  # fmt: skip


@pytest.mark.finding("T7")
@pytest.mark.parametrize("template", TEMPLATES)
def test_different_arguments_of_a_decorated_function_make_different_names(face, template):
    """Two customers must never share one lock."""
    client = face.connect()
    taken = []

    @client.lock(template)
    def name_of(customer, number):
        taken.append([each.name for each in client.held()])

    for arguments in ARGUMENTS:
        name_of(*arguments)

    assert [len(names) for names in taken] == [1] * len(ARGUMENTS)
    assert len({name for (name,) in taken}) == len(ARGUMENTS)


@pytest.mark.finding("T7")
@pytest.mark.capability("once")
@pytest.mark.parametrize("template", TEMPLATES)
def test_once_never_returns_the_result_of_other_arguments(face, template):
    """One customer would get the stored result of another one."""

    @face.connect().once("invoices")(template)
    def invoice(customer, number):
        return [customer, number]

    for _ in range(2):
        assert [tuple(invoice(*arguments)) for arguments in ARGUMENTS] == ARGUMENTS


@pytest.mark.finding("T7")
@pytest.mark.parametrize("template", ["{a}{b}", "{a}x{b}", "{a}9{b}", "{a}%{b}"])
def test_fields_without_a_separator_are_refused_when_decorating(face, template):
    """The texts of two such fields run together."""
    client = face.connect()

    with pytest.raises(InvalidName, match="separator"):
        client.lock(template)(lambda a, b: (a, b))


@pytest.mark.finding("T7")
@pytest.mark.parametrize("name", ["r/{day}", "{day:%Y}", "{order.id}", "a{{{b}}}", "{day!r}"])
def test_a_template_without_arguments_is_refused_before_any_command(face, name):
    """All days would share one lock, and the program would not notice."""
    client = face.connect()
    wire = face.wire(client)
    for use in (
        lambda: client.lock(name).acquire(),
        lambda: client.lock(name).try_acquire(),
        client.lock(name).__enter__,
    ):
        with pytest.raises(InvalidName, match="template"):
            use()

    assert wire.commands() == []


@pytest.mark.finding("T7")
@pytest.mark.parametrize("name", ['{"day": 1}', "{}", "{1}", "{{day}}", "{ day }", "{tag", "}{"])
def test_braces_without_a_field_are_part_of_a_name(face, name):
    """A name is any text."""
    client = face.connect()
    with client.lock(name):
        assert [each.name for each in client.held()] == [name]

    @client.lock("{value}")
    def work(value):
        return [each.name for each in client.held()]

    assert work("{day}") == ["{day}"]
    with suppress(HoldfastError):
        client.break_lease(name, "the law is done")


LONG = "x" * 1_100_000


@pytest.mark.finding("S11")
@pytest.mark.capability("pools", "limits", "budgets", "once", "registry", "queues")
@pytest.mark.parametrize("text", [LONG, "x\ud800"], ids=["too long", "surrogate"])
def test_text_above_its_maximum_is_refused_before_any_command(face, text):
    """A text that no rule bounds fills the engine, the log and the screen. Every rule names its maximum."""
    client = face.connect()
    wire = face.wire(client)
    pool, queue, registry, once = client.pool("p"), client.queue("q"), client.registry("r"), client.once("o")
    limit, budget = client.limit("1/second"), client.budget("b", 1)
    uses = {
        "lock": lambda: client.lock(text),
        "leader": lambda: client.leader(text),
        "candidate": lambda: client.leader("l", candidate=text),
        "successor": lambda: client.leader("l").hand_over(text),
        "pool": lambda: client.pool(text),
        "item": lambda: pool.set_items([text]),
        "added item": lambda: pool.add([text]),
        "removed item": lambda: pool.remove([text]),
        "cooled item": lambda: pool.cool(text, 1),
        "broken item": lambda: pool.break_item(text, "why"),
        "reason of an item": lambda: pool.break_item("i", text),
        "semaphore": lambda: client.semaphore(text, 1),
        "rwlock": lambda: client.rwlock(text),
        "limit": lambda: client.limit("1/second", name=text),
        "rates": lambda: client.limit(text),
        "limit key": lambda: limit.hit(text),
        "peeked key": lambda: limit.peek(text),
        "reset key": lambda: limit.reset(text),
        "budget": lambda: client.budget(text, 1),
        "budget key": lambda: budget.reserve(text, 1),
        "once": lambda: client.once(text),
        "once key": lambda: once.call(text, lambda: 1),
        "seen key": lambda: once.seen(text),
        "forgotten key": lambda: once.forget(text),
        "queue": lambda: client.queue(text),
        "body": lambda: queue.publish(text),
        "key": lambda: queue.publish("b", key=text),
        "dedup key": lambda: queue.publish("b", dedup_key=text),
        "header": lambda: queue.publish("b", headers={"h": text}),
        "consumer": lambda: queue.consumer(text),
        "dead-letter id": lambda: queue.dlq.get(text),
        "redriven id": lambda: queue.dlq.redrive([text]),
        "position": lambda: queue.dlq.list(1, text),
        "registry": lambda: client.registry(text),
        "entry": lambda: registry.claim(text),
        "info": lambda: registry.claim("k", info={"a": text}),
        "group": lambda: registry.claim("k", group=text),
        "owner": lambda: registry.owner(text),
        "taken": lambda: registry.take(text, reason="why"),
        "message": lambda: registry.send("k", text),
        "member": lambda: registry.join("k", text),
        "prefix": lambda: client.held(text),
        "listed prefix": lambda: registry.list(text),
        "shown": lambda: client.show(text),
        "broken": lambda: client.break_lease("x", text),
        "label": lambda: face.connect(label=text),
        "client info": lambda: face.connect(info={"a": text}),
    }
    refused = {}
    for what, use in uses.items():
        try:
            use()
        except (InvalidName, InvalidConfig) as refusal:
            refused[what] = str(refusal)
        except Exception as error:
            refused[what] = error
    assert {what: refused.get(what) for what in uses if not isinstance(refused.get(what), str)} == {}
    assert {what: line for what, line in refused.items() if len(line) > 700 or not is_plain(line)} == {}
    assert wire.commands() == []


@pytest.mark.finding("T7")
def test_an_object_without_a_text_of_its_own_makes_no_name(face):
    """The text of a plain object is its address: two calls with equal objects would not exclude each other."""
    client = face.connect()

    @client.lock("orders/{order}")
    def ship(order):
        return order

    with pytest.raises(InvalidName, match="address in memory"):
        ship(object())
    assert ship(42) == 42
    with pytest.raises(InvalidName):
        client.lock("report/{day}").locked()


def test_an_error_about_a_wrong_argument_shows_no_body_and_no_info(face):
    """A program that passes one body instead of a list must not find it in its log."""
    for wrong in (
        lambda: face.connect(info={"password": object(), "pin": "hunter2"}),
        lambda: face.connect(info="hunter2" * 1000),
    ):
        with pytest.raises(InvalidConfig) as refusal:
            wrong()
        assert "hunter2" not in str(refusal.value)
