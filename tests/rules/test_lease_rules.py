"""The law itself, under random programs: what must hold after every step, whatever comes before it."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.commands import Acquire, Break, Busy, Granted, ReleaseLease, Renew, Undo, WaiterHeartbeat
from holdfast.rules import Moment, Record
from holdfast.rules.lease import OFFER_MAX_US, advance

TTL_MS = 1_000
TOKENS = ("t1", "t2", "t3", "t4")
CLIENT_OF = {"t1": "a", "t2": "a", "t3": "b", "t4": "c"}
MS = 1_000

few = st.sampled_from([*[frozenset()] * 20, frozenset("a"), frozenset("b"), frozenset("c")])
steps = st.lists(
    st.tuples(
        st.sampled_from(("ask", "wait", "wait", "wait", "renew", "release", "undo", "break", "mark")),
        st.sampled_from(TOKENS),
        st.sampled_from((0, 0, 0, 1, 1, 300, 999, 1_000, 1_001, 6_000)),  # milliseconds that pass before it
        few,  # proven dead
        few,  # fallen silent
    ),
    max_size=40,
)


def command_for(kind, token, record):
    fence = record.holder.fence if record.holder else 0
    return {
        "ask": Acquire("n", token, "o", TTL_MS, wait=False),
        "wait": Acquire("n", token, "o", TTL_MS, wait=True),
        "renew": Renew("n", token, TTL_MS),
        "release": ReleaseLease("n", token),
        "undo": Undo("n", token),
        "break": Break("n", fence, "why"),
        "mark": WaiterHeartbeat("n"),
    }[kind]


def program(script):
    """Run it; every step as (before, command, moment, step)."""
    record, now_us = Record(), 1_000_000_000
    for kind, token, passes_ms, gone, silent in script:
        now_us += passes_ms * MS
        client = CLIENT_OF[token]
        moment = Moment(now_us, now_us, client, gone - {client}, silent - {client})
        command = command_for(kind, token, record)
        step = RULES[type(command)].apply(record, command, moment)
        yield record, command, moment, step
        record = step.record


@settings(max_examples=400, deadline=None)
@given(steps)
def test_fences_only_grow_and_no_two_grants_share_one(script):
    """A resource that compares fences must be able to tell any two holders apart, for ever."""
    newest, server_of = 0, {}
    for before, command, _, step in program(script):
        assert step.record.fence >= before.fence
        if isinstance(step.answer, Granted):
            token = server_of.setdefault(step.answer.fence, command.token)
            assert token == command.token
            assert step.answer.fence >= newest
            newest = step.answer.fence


@settings(max_examples=400, deadline=None)
@given(steps)
def test_a_lease_that_runs_is_taken_from_nobody(script):
    """Only its own token, force, proof of death or the end of its ttl ends a lease."""
    for before, command, moment, step in program(script):
        held = before.holder
        if held is None or held.offered or held.expires_us <= moment.now_us or held.client in moment.gone:
            continue
        ended = step.record.holder is None or step.record.holder.token != held.token
        by_itself = isinstance(command, ReleaseLease | Undo) and command.token == held.token
        assert not ended or by_itself or isinstance(command, Break)


@settings(max_examples=400, deadline=None)
@given(steps)
def test_a_waiter_that_lives_is_never_forgotten(script):
    """It waits, is offered the lease, or has ended by its own word; a missed offer only costs its place."""
    waiting = set()
    for before, command, moment, step in program(script):
        after = step.record
        fallen = moment.gone | moment.silent
        waiting = {token for token in waiting if CLIENT_OF[token] not in fallen}
        if isinstance(command, Acquire):
            waiting.discard(command.token)
            if command.wait and isinstance(step.answer, Busy):
                waiting.add(command.token)
        if isinstance(command, Undo | ReleaseLease):
            waiting.discard(command.token)
        if isinstance(command, Break) and before.holder is not None:
            waiting.discard(before.holder.token)
        known = {waiter.token for waiter in after.waiters} | ({after.holder.token} if after.holder else set())
        assert waiting <= known


@settings(max_examples=400, deadline=None)
@given(steps)
def test_nobody_overtakes_the_queue(script):
    """Whoever is granted was first in line, or nobody lived in the line at all."""
    for before, command, moment, step in program(script):
        if not isinstance(step.answer, Granted):
            continue
        now = advance(before, moment)
        assert now.holder is None or now.holder.token == command.token
        assert now.holder is not None or not now.waiters


@settings(max_examples=200, deadline=None)
@given(steps)
def test_an_offer_is_short_and_a_free_name_has_no_waiters(script):
    """An offer to somebody who sleeps must not keep the others for a whole ttl, nor may they wait for nothing."""
    for _, _, moment, step in program(script):
        holder = step.record.holder
        if holder is not None and holder.offered:
            assert holder.expires_us <= moment.now_us + OFFER_MAX_US
        assert holder is not None or not step.record.waiters


@settings(max_examples=200, deadline=None)
@given(steps)
def test_every_command_may_be_sent_twice(script):
    """The second copy of a command, in the same moment, changes nothing that anybody could see."""
    for before, command, moment, step in program(script):
        if isinstance(command, Break):
            continue  # the second copy finds the lease ended, and says so
        again = RULES[type(command)].apply(step.record, command, moment)

        assert type(again.answer) is type(step.answer), (before, command)
        assert again.record.holder == step.record.holder
        assert again.record.waiters == step.record.waiters


def silent_beside_a_word_of_the_holder():
    """Whoever fell silent stays in the line until somebody looks at it; the holder's own word needs no look."""
    nobody, b = frozenset(), frozenset("b")
    waits = [("ask", "t2", 0, nobody, nobody), ("wait", "t3", 0, nobody, nobody), ("wait", "t1", 0, nobody, nobody)]
    return [*waits, ("ask", "t2", 0, nobody, b)]


@settings(max_examples=400, deadline=None)
@given(steps)
@example(silent_beside_a_word_of_the_holder())
def test_the_line_keeps_its_order_and_its_first_is_served(script):
    """First in, first out: nobody is put before somebody who waits already, and an offer goes to the head."""
    for before, _, _, step in program(script):
        line = [waiter.token for waiter in before.waiters]
        after = [waiter.token for waiter in step.record.waiters]
        kept = [token for token in line if token in after]
        offered = step.record.holder

        assert after[: len(kept)] == kept
        if offered is not None and offered.offered and offered.token in line:
            assert not [token for token in line[: line.index(offered.token)] if token in after]
